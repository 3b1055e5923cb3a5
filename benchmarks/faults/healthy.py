"""Programs with nothing to mend."""

from __future__ import annotations

import torch
from benchmarks.faults.inputs import Rows, endless
from benchmarks.faults.models import (
    DEVICE,
    HALF,
    ResNet,
    adamw,
    gpt,
    graphed,
    images,
    sized,
    wide_mlp,
    words,
)
from benchmarks.faults.registry import Step, healthy
from benchmarks.faults.serving import static_decoding
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader


@healthy("A wide GPT in bf16, compiled, with fused attention and a fused optimizer.")
def healthy_transformer() -> Step:
    """Large products, the rest fused."""
    model = gpt(4, 2048)
    tokens = words(16, 1024)
    optimizer = adamw(model)

    def loss_of(tokens: Tensor) -> Tensor:
        return functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())

    run = torch.compile(loss_of)

    def step() -> None:
        optimizer.zero_grad()
        run(tokens).backward()
        optimizer.step()

    return step


@healthy("A residual network under bf16 autocast, channels last, with a large batch.")
def healthy_convnet() -> Step:
    """The device is busy with convolutions."""
    model = ResNet(sized(128, 8), 2).to(DEVICE, memory_format=torch.channels_last)
    optimizer = adamw(model)
    pictures = images(256, 128)
    labels = torch.randint(0, 128, (len(pictures),), device=DEVICE)
    run = torch.compile(model)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = functional.cross_entropy(run(pictures), labels)
        loss.backward()
        optimizer.step()

    return step


@healthy("A small network whose whole step of training is a CUDA graph.")
def healthy_graphed_mlp() -> Step:
    """Short kernels, launched at once."""
    model = nn.Sequential(
        nn.Linear(512, 1024), nn.GELU(), nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 64)
    )
    model = model.to(DEVICE, HALF)
    optimizer = adamw(model, capturable=DEVICE == "cuda")
    batch = torch.randn(sized(1024, 8), 512, device=DEVICE, dtype=HALF)

    def step() -> None:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    return graphed(step)


@healthy("Large fields updated by one compiled kernel, as fast as memory allows.")
def healthy_elementwise() -> Step:
    """Memory is read and written once."""
    heat, flow = (torch.rand(sized(1 << 28, 1 << 10), device=DEVICE) for _ in range(2))

    def update(heat: Tensor, flow: Tensor) -> Tensor:
        return heat.add_(0.001 * torch.tanh(flow - heat)).clamp_(0.0, 1.0)

    run = torch.compile(update)

    def step() -> None:
        with torch.no_grad():
            for _ in range(4):
                run(heat, flow)

    return step


@healthy("A language model makes words by replaying a graph, with a cache of fixed size.")
def healthy_decode() -> Step:
    """Decoding without launches from Python."""
    return static_decoding(with_graph=True, layers=6, width=1024, rows=8)


@healthy("Linear layers of 8192 in bf16, nothing else.")
def healthy_products() -> Step:
    """The products take all the time there is."""
    model = wide_mlp(8192, 4)
    batch = torch.randn(sized(8192, 16), sized(8192, 64), device=DEVICE, dtype=HALF)

    def step() -> None:
        with torch.no_grad():
            for _ in range(2):
                model(batch)

    return step


@healthy("Workers look rows up ahead, in pinned memory, while long products run.")
def healthy_loader() -> Step:
    """Batches are there before they are asked for."""
    width = sized(8192, 64)
    loader = DataLoader(
        Rows(width), batch_size=sized(256, 4), num_workers=sized(4, 1), pin_memory=DEVICE == "cuda",
        prefetch_factor=4, persistent_workers=True,
    )  # fmt: skip
    model = wide_mlp(8192, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, fused=True)
    batches = endless(loader)

    def step() -> None:
        batch = next(batches).to(DEVICE, HALF, non_blocking=True)
        optimizer.zero_grad()
        model(batch.repeat(32, 1)).square().mean().backward()
        optimizer.step()

    return step
