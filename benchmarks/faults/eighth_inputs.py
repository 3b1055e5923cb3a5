"""A training loop whose data fits on the device."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from benchmarks.faults.library_models import autocast, noise, tokens
from benchmarks.faults.models import DEVICE, adamw, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset


class Clicks(nn.Module):
    """Tells from categories and numbers whether somebody will click."""

    def __init__(self, columns: int, each: int, numbers: int, width: int) -> None:
        super().__init__()
        self.register_buffer("offsets", torch.arange(columns) * each)
        self.embedding = nn.Embedding(columns * each, 32)
        self.layers = nn.Sequential(
            nn.Linear(columns * 32 + numbers, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, 1),
        )

    def forward(self, categories: Tensor, numbers: Tensor) -> Tensor:
        """A score for each row."""
        known = self.embedding(categories + self.offsets).flatten(1)
        scores: Tensor = self.layers(torch.cat([known, numbers], -1)).squeeze(-1)
        return scores


@pair(
    "rows-of-a-table-collated-one-by-one",
    "A table that lies on the device is read by DataLoader(TensorDataset(...), batch_size=1024): a thousand"
    " rows are looked up one by one and stacked for every batch.",
    "A BatchSampler and batch_size=None: the table is indexed once for a batch.",
)
def eighth_clicks(faulty: bool) -> Step:
    """A model of clicks learns from a table."""
    count, rows, columns, each, numbers = sized(400_000, 64), sized(1024, 8), 8, sized(20_000, 16), 13
    table = TensorDataset(
        tokens(each, count, columns),
        noise(count, numbers, dtype=torch.float32),
        tokens(2, count).float(),
    )
    if faulty:
        loader = DataLoader(table, batch_size=rows, shuffle=True, drop_last=True)
    else:
        loader = DataLoader(table, sampler=BatchSampler(RandomSampler(table), rows, True), batch_size=None)
    model = Clicks(columns, each, numbers, sized(512, 16)).to(DEVICE)
    optimizer = adamw(model)

    def forever() -> Iterator[list[Tensor]]:
        while True:
            yield from loader

    batches = forever()

    def step() -> None:
        categories, figures, clicked = next(batches)
        with autocast():
            scores = model(categories, figures)
        loss = functional.binary_cross_entropy_with_logits(scores.float(), clicked)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
