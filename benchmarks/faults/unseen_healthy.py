"""Programs that no rule was tuned to: with nothing to mend, or with a pattern that costs nothing."""

from __future__ import annotations

from collections.abc import Callable

import torch
from benchmarks.faults.models import DEVICE, HALF, Policy, adamw, graphed, sized
from benchmarks.faults.registry import Step, healthy, pair
from benchmarks.faults.unseen_kernels import Biased
from benchmarks.faults.unseen_models import (
    Encoding,
    Heads,
    mixers,
    noise,
    patches,
    tower,
    training,
    vit,
)
from torch import Tensor, nn
from torch.nn import functional


@pair(
    "python-between-ops",
    "An agent of 8192 wide layers writes records in Python between its operations.",
    "It does not.",
    kind="fair",
)
def unseen_fair_records(faulty: bool) -> Step:
    """Some tenths of a millisecond of Python, while the device has long products to do."""
    agent, seen = Policy(64, sized(8192, 32)).to(DEVICE, HALF), noise(sized(8192, 4), 64)
    memory = noise(len(seen), sized(8192, 32))
    book: list[str] = []

    def step() -> None:
        with torch.no_grad():
            now = memory
            for _ in range(3):
                now = agent(seen, now)[2]
                if faulty:
                    book[:] = sorted(f"{number * 37 % 101:05d}" for number in range(400))

    return step


@pair(
    "scalar-reads",
    "Two wide towers show their loss in a progress bar, read before backward.",
    "The loss is added up on the device.",
    kind="fair",
)
def unseen_fair_postfix(faulty: bool) -> Step:
    """One read in the middle of a step, between long products."""
    loss_of, optimizer = towers()
    total = torch.zeros((), device=DEVICE)
    bar: dict[str, float] = {}

    def step() -> None:
        optimizer.zero_grad()
        loss = loss_of()
        if faulty:
            bar["loss"] = loss.item()
        else:
            total.add_(loss.detach())
        loss.backward()
        optimizer.step()

    return step


@pair(
    "unfused-attention",
    "A very wide model of text attends to 16 positions by hand.",
    "scaled_dot_product_attention(attn_mask=bias).",
    kind="fair",
)
def unseen_fair_short_attention(faulty: bool) -> Step:
    """Few pairs of positions beside large products."""
    length, width = 16, sized(4096, 64)
    with torch.device(DEVICE):
        model = Encoding(width, Biased(width, length, by_hand=faulty)).to(HALF)
    texts = noise(sized(512, 2), length, width)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5, fused=True)
    return training(lambda: model(texts).square().mean(), optimizer)


@pair(
    "allocation-churn",
    "Four linear layers of 4096 with a batch of 32768 call zero_grad(set_to_none=False).",
    "zero_grad().",
    kind="fair",
)
def unseen_fair_zeroed(faulty: bool) -> Step:
    """A few fills beside long products."""
    width = sized(4096, 32)
    model = tower(*[width] * 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    batch = noise(sized(32_768, 4), width)

    def step() -> None:
        optimizer.zero_grad(set_to_none=not faulty)
        model(batch).square().mean().backward()
        optimizer.step()

    return step


def towers() -> tuple[Callable[[], Tensor], torch.optim.Optimizer]:
    """Contrastive learning of pictures and texts by two wide towers."""
    width = sized(8192, 32)
    both = nn.ModuleList(tower(width // 2, width, width, width // 8) for _ in range(2))
    seen = [noise(sized(4096, 8), width // 2) for _ in both]
    right = torch.arange(len(seen[0]), device=DEVICE)

    def loss_of() -> Tensor:
        made = [functional.normalize(one(some), dim=-1) for one, some in zip(both, seen, strict=True)]
        return functional.cross_entropy(10 * made[0] @ made[1].T, right)

    return loss_of, torch.optim.SGD(both.parameters(), lr=1e-4, fused=True)


@healthy("Two wide towers learn from each other, eagerly, in bf16.")
def unseen_healthy_towers() -> Step:
    """Eager training: long products, hardly anything beside them."""
    return training(*towers())


@healthy("A very wide vision transformer is trained eagerly in bf16.")
def unseen_healthy_vit() -> Step:
    """Eager training: each kernel is far longer than its launch."""
    model = vit(2, 4096)
    pictures, classes = patches(32, 256)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5, fused=True)
    return training(lambda: functional.cross_entropy(model(pictures), classes), optimizer)


@healthy("A very wide encoder answers large batches eagerly in bf16.")
def unseen_healthy_encoder() -> Step:
    """Eager inference that the device leads."""
    width = sized(4096, 64)
    with torch.device(DEVICE):
        model = nn.Sequential(*[Encoding(width, Heads(width)) for _ in range(2)]).to(HALF).eval()
    texts = noise(sized(16, 2), sized(512, 8), width)

    def step() -> None:
        with torch.no_grad():
            model(texts)

    return step


@healthy("A wide mixer is trained compiled, with a fused optimizer.")
def unseen_healthy_mixer() -> Step:
    """Compiled training of large products."""
    model = mixers(3, 256, 2048)
    batch = noise(sized(64, 2), sized(256, 8), sized(2048, 32))
    run = torch.compile(lambda x: model(x).float().square().mean())
    return training(lambda: run(batch), adamw(model))


@healthy("Four thousand players with a memory move eight times in one CUDA graph.")
def unseen_healthy_rollout() -> Step:
    """A loop over time that the host launches once."""
    agent = Policy(64, sized(1024, 32)).to(DEVICE, HALF)
    seen, memory, world = noise(sized(4096, 4), 64), noise(sized(4096, 4), sized(1024, 32)), noise(16, 64)

    def play() -> None:
        now, kept = seen, memory
        with torch.no_grad():
            for _ in range(8):
                scores, _value, kept = agent(now, kept)
                now = torch.tanh(scores.softmax(-1) @ world)

    return graphed(play)
