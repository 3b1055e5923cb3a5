"""A flow that learns the density of measurements, compiled."""

from __future__ import annotations

import torch
from benchmarks.faults.library_models import noise
from benchmarks.faults.models import DEVICE, adamw, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn


class Coupling(nn.Module):
    """One half of the numbers shifts and scales the other."""

    def __init__(self, count: int, width: int, *, checked: bool) -> None:
        super().__init__()
        half = count // 2
        self.checked = checked
        self.net = nn.Sequential(
            nn.Linear(half, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 2 * half)
        )

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """What comes out, and how much it was stretched."""
        kept, moved = x.chunk(2, -1)
        scale, shift = self.net(kept).chunk(2, -1)
        scale = torch.tanh(scale)
        moved = moved * scale.exp() + shift
        if self.checked and not torch.isfinite(moved).all():
            raise ValueError("the flow has left the numbers")
        return torch.cat([moved, kept], -1), scale.sum(-1)


class Flow(nn.Module):
    """Couplings, one after another."""

    def __init__(self, count: int, width: int, layers: int, *, checked: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Coupling(count, width, checked=checked) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        """Logarithm of the density, but for a constant."""
        stretched = torch.zeros(x.shape[0], device=x.device)
        for layer in self.layers:
            x, more = layer(x)
            stretched = stretched + more
        return stretched - 0.5 * x.square().sum(-1)


@pair(
    "graph-breaks-at-checks-of-values",
    "Each layer of a compiled model asks in Python whether its result is finite: the graph breaks there and"
    " waits for the device.",
    "The loss is checked once, outside of the compiled model.",
)
def eleventh_density_flow(faulty: bool) -> Step:
    """A flow of many couplings is fitted to measurements."""
    count = sized(64, 8)
    flow = Flow(count, sized(512, 16), sized(16, 2), checked=faulty).to(DEVICE)
    model = torch.compile(flow)
    optimizer = adamw(flow)
    measured = noise(sized(8192, 8), count, dtype=torch.float32)

    def step() -> None:
        loss = -model(measured).mean()
        if not faulty and not torch.isfinite(loss):
            raise ValueError("the flow has left the numbers")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step
