"""Programs whose kernels are slower, or more, than they need be."""

from __future__ import annotations

from typing import Any

import torch
from benchmarks.faults.models import (
    DEVICE,
    HALF,
    Gpt,
    Residual,
    ResNet,
    adamw,
    gpt,
    graphed,
    images,
    next_word_loss,
    on_images,
    sized,
    train_words,
    wide_mlp,
    words,
)
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional


@pair(
    "device-unfilled",
    "The last layers of a residual network replay a graph for two pictures, eight times.",
    "One graph takes all sixteen pictures.",
)
def device_unfilled(faulty: bool) -> Step:
    """Kernels that keep a few multiprocessors busy, one after another."""
    width, pictures, side = sized(512, 16), 16, sized(14, 4)
    model = on_images(nn.Sequential(*[Residual(width) for _ in range(4)])).eval()
    parts = 8 if faulty else 1
    batch = torch.randn(pictures // parts, width, side, side, device=DEVICE, dtype=HALF)
    batch = batch.to(memory_format=torch.channels_last)
    with torch.no_grad():
        run = graphed(lambda: model(batch))

    def step() -> None:
        with torch.no_grad():
            for _ in range(parts):
                run()

    return step


@pair(
    "full-precision-matmuls",
    "A GPT is trained in fp32, with TF32 off.",
    "bf16 autocast.",
)
def full_precision_matmuls(faulty: bool) -> Step:
    """Products that no tensor core takes part in."""
    torch.set_float32_matmul_precision("highest")
    return autocast_training(faulty, width=1024, rows=8, length=512)


@pair(
    "tf32-matmuls",
    "A wide GPT is trained in fp32, with TF32 on.",
    "bf16 autocast.",
)
def tf32_matmuls(faulty: bool) -> Step:
    """Products at half the rate that bf16 would have."""
    torch.set_float32_matmul_precision("high")
    return autocast_training(faulty, width=3072, rows=8, length=1024)


def autocast_training(faulty: bool, *, width: int, rows: int, length: int) -> Step:
    """Training of fp32 weights, as they are or under autocast."""
    with torch.device(DEVICE):
        model = Gpt(2, sized(width, 64))
    optimizer = adamw(model)
    tokens = words(rows, length)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(DEVICE, torch.bfloat16, enabled=not faulty):
            loss = next_word_loss(model, tokens)
        loss.backward()
        optimizer.step()

    return step


@pair(
    "misaligned-matmuls",
    "A GPT has 50257 words and hidden layers of 4095.",
    "Both are padded to a multiple of 64.",
)
def misaligned_matmuls(faulty: bool) -> Step:
    """Rows that start at odd addresses keep products from the fast kernels."""
    count, hidden = (50257, 4095) if faulty else (50304, 4096)
    model = gpt(2, 1024, words=sized(count, 101), hidden=sized(hidden, 127))
    optimizer = adamw(model)
    tokens = words(8, 512, 100)
    return lambda: train_words(model, tokens, optimizer)


@pair(
    "misaligned-matmuls",
    "Linear layers of 8192 end in a head of 10 classes.",
    "The head is padded to 64.",
    kind="fair",
)
def fair_odd_head(faulty: bool) -> Step:
    """One small odd product beside large even ones."""
    head = nn.Linear(sized(8192, 64), 10 if faulty else 64)
    model = nn.Sequential(wide_mlp(8192, 3), head).to(DEVICE, HALF)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, fused=True)
    batch = torch.randn(sized(8192, 16), sized(8192, 64), device=DEVICE, dtype=HALF)
    labels = torch.randint(0, 10, (len(batch),), device=DEVICE)

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(batch)[:, :10], labels).backward()
        optimizer.step()

    return step


@pair(
    "unfused-attention",
    "A GPT computes softmax(QKᵀ)V by hand over 1024 positions.",
    "scaled_dot_product_attention.",
)
def unfused_attention(faulty: bool) -> Step:
    """The scores of all pairs of positions go through memory several times."""
    model = gpt(2, 768, by_hand=faulty)
    optimizer = adamw(model)
    tokens = words(16, 1024)
    return lambda: train_words(model, tokens, optimizer)


@pair(
    "per-tensor-optimizer",
    "A GPT is trained with AdamW(foreach=False): a dozen kernels for each of its tensors.",
    "AdamW(fused=True).",
)
def per_tensor_optimizer(faulty: bool) -> Step:
    """Hundreds of short kernels that could be a few."""
    model = gpt(3, 512)
    optimizer = adamw(model, fused=False, foreach=False) if faulty else adamw(model)
    tokens = words(16, 256)
    return lambda: train_words(model, tokens, optimizer)


@pair(
    "per-tensor-optimizer",
    "Three linear layers of 4096 with a batch of 32768 are trained with SGD(foreach=False).",
    "SGD(fused=True).",
    kind="fair",
)
def fair_optimizer(faulty: bool) -> Step:
    """A few tensors, updated in hardly any time."""
    model = wide_mlp(4096, 3)
    ways = {"foreach": False} if faulty else {"fused": True}
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, momentum=0.9, **ways)
    batch = torch.randn(sized(32768, 16), sized(4096, 64), device=DEVICE, dtype=HALF)

    def step() -> None:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    return step


@pair(
    "optimizer-share",
    "A GPT of 800 million weights sees 512 words a step and is updated by AdamW(foreach=True).",
    "AdamW(fused=True) reads and writes each weight once.",
)
def optimizer_share(faulty: bool) -> Step:
    """The optimizer takes longer than the gradients."""
    model = gpt(4, 4096)
    optimizer = adamw(model, fused=False, foreach=True) if faulty else adamw(model)
    tokens = words(2, 256)
    return lambda: train_words(model, tokens, optimizer)


@pair(
    "unfused-loss",
    "The loss over 50304 words is computed in fp32, step by step, with smoothed labels.",
    "The same function is compiled.",
)
def unfused_loss(faulty: bool) -> Step:
    """Gigabytes of logits go through memory for each line of the loss."""
    count = sized(50304, 128)
    model = gpt(2, 512, words=count)
    optimizer = adamw(model)
    tokens = words(12, 512, count)

    def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
        chances = torch.log_softmax(logits.flatten(0, 1).float(), -1)
        right = functional.nll_loss(chances, targets.flatten())
        return 0.9 * right - 0.1 * chances.mean()

    run = loss_of if faulty else torch.compile(loss_of)

    def step() -> None:
        optimizer.zero_grad()
        run(model(tokens), tokens).backward()
        optimizer.step()

    return step


@pair(
    "elementwise-chains",
    "A simulation updates large fields with a long chain of elementwise operations.",
    "torch.compile makes one kernel of them.",
)
def elementwise_chains(faulty: bool) -> Step:
    """Each operation reads and writes whole fields."""
    cells = sized(1 << 26, 1 << 10)
    heat, flow, source = (torch.rand(cells, device=DEVICE) for _ in range(3))

    def update(heat: Tensor, flow: Tensor, source: Tensor) -> tuple[Tensor, Tensor]:
        rate = torch.exp(-1.0 / (heat + 0.1)) * source
        flow = 0.9 * flow + 0.1 * torch.tanh(rate - flow)
        loss = 0.01 * heat * heat + 0.02 * torch.sin(flow)
        heat = torch.clamp(heat + 0.001 * (rate - loss) + 0.002 * flow, 0.0, 1.0)
        return heat, flow

    run = update if faulty else torch.compile(update)

    def step() -> None:
        with torch.no_grad():
            now = heat, flow
            for _ in range(2):
                now = run(*now, source)

    return step


@pair(
    "layout-conversions",
    "A residual network under autocast keeps its channels first, so that every convolution turns them.",
    "channels_last.",
)
def layout_conversions(faulty: bool) -> Step:
    """Kernels that only move channels to the end and back."""
    layout = torch.contiguous_format if faulty else torch.channels_last
    model = ResNet(sized(64, 8)).to(DEVICE, memory_format=layout)
    optimizer = adamw(model)
    pictures = images(192, 128, dtype=torch.float32).contiguous(memory_format=layout)
    labels = torch.randint(0, 128, (len(pictures),), device=DEVICE)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = functional.cross_entropy(model(pictures), labels)
        loss.backward()
        optimizer.step()

    return step


@pair(
    "scatter-heavy",
    "A graph network adds up the messages of each kind of edge with index_put_(accumulate=True), in a loop.",
    "All kinds are added up by one index_add_.",
)
def scatter_heavy(faulty: bool) -> Step:
    """Scattered additions, each sorted and added on its own."""
    kinds, nodes, edges, width = sized(16, 3), sized(20_000, 50), sized(20_000, 60), 64
    states = torch.randn(nodes, width, device=DEVICE)
    sources = torch.randint(0, nodes, (kinds, edges), device=DEVICE)
    targets = torch.randint(0, nodes, (kinds, edges), device=DEVICE)
    mix = nn.Linear(width, width).to(DEVICE)

    def step() -> None:
        with torch.no_grad():
            messages = mix(states)
            total = torch.zeros_like(states)
            if faulty:
                for kind in range(kinds):
                    total.index_put_((targets[kind],), messages[sources[kind]], accumulate=True)
            else:
                total.index_add_(0, targets.flatten(), messages[sources.flatten()])
            torch.relu(total)

    return step


class CastLinear(nn.Module):
    """A linear layer that keeps fp32 weights and casts them whenever it runs."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, width) / width**0.5)

    def forward(self, x: Tensor) -> Tensor:
        """The product with the weights of this moment."""
        return functional.linear(x, self.weight.to(x.dtype))


@pair(
    "weight-casts",
    "Served layers of 4096 cast their fp32 weights to bf16 in every forward pass.",
    "The weights are kept in bf16.",
)
def weight_casts(faulty: bool) -> Step:
    """More bytes move for the casts than for the products."""
    width = sized(4096, 64)
    made: list[Any] = [CastLinear(width) for _ in range(sized(12, 2))]
    model = nn.Sequential(*made).to(DEVICE)
    if not faulty:
        model = model.to(torch.bfloat16)
    batch = torch.randn(sized(256, 4), width, device=DEVICE, dtype=torch.bfloat16)

    def step() -> None:
        with torch.no_grad():
            model(batch)

    return step
