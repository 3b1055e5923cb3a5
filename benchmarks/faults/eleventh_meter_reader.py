"""A transformer that foretells the readings of meters."""

from __future__ import annotations

import torch
from benchmarks.faults.models import DEVICE, HALF, Block, adamw, pinned, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional

PATCH, CHANNELS = 4, 8


class Forecaster(nn.Module):
    """Patches of readings go through layers of a transformer."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(PATCH * CHANNELS, width)
        self.layers = nn.ModuleList(Block(width, width // 64, 4 * width) for _ in range(layers))
        self.last = nn.Linear(width, PATCH * CHANNELS)

    def forward(self, readings: Tensor) -> Tensor:
        """The next patch at every patch."""
        x = self.first(readings)
        for layer in self.layers:
            x = layer(x)
        return self.last(x)


@pair(
    "batches-copied-from-pageable-memory",
    "Each batch (4 MB) is copied from pageable memory with .to(device), and the copy waits for the device.",
    "It is pinned and copied with non_blocking=True.",
    kind="fair",
)
def eleventh_meter_reader(faulty: bool) -> Step:
    """Readings of a week are foretold from those before."""
    model = Forecaster(sized(8, 1), sized(1536, 64)).to(DEVICE, HALF)
    optimizer = adamw(model)
    weeks = [torch.randn(sized(64, 2), sized(512, 8), PATCH * CHANNELS) for _ in range(4)]
    if not faulty:
        weeks = [pinned(week) for week in weeks]
    turn = 0

    def step() -> None:
        nonlocal turn
        week = weeks[turn % len(weeks)].to(DEVICE, non_blocking=not faulty).to(HALF)
        turn += 1
        loss = functional.mse_loss(model(week)[:, :-1].float(), week[:, 1:].float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step
