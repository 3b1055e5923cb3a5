"""A model of what somebody does next, from a large table of what people did."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from benchmarks.faults.models import DEVICE, HALF, Gpt, adamw, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

ACTIONS = 1024


class Histories(Dataset[tuple[Tensor, Tensor]]):
    """What people did, and what they did next."""

    def __init__(self, people: int, length: int) -> None:
        self.actions = torch.randint(0, ACTIONS, (people, length), dtype=torch.int16)
        self.following = torch.randint(0, ACTIONS, (people,))

    def __len__(self) -> int:
        return self.following.numel()

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.actions[index], self.following[index]


def endless(loader: DataLoader[tuple[Tensor, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of one epoch after another."""
    while True:
        yield from loader


@pair(
    "iterator-made-anew-for-every-batch",
    "next(iter(loader)) in every step: the sampler shuffles all two million indices for one batch.",
    "One iterator is kept for a whole epoch.",
)
def eleventh_habit_model(faulty: bool) -> Step:
    """A small transformer learns habits."""
    length = sized(64, 8)
    loader = DataLoader(Histories(sized(2_000_000, 100), length), sized(512, 4), shuffle=True, drop_last=True)
    batches = endless(loader)
    model = Gpt(sized(4, 1), sized(384, 64), words=ACTIONS).to(DEVICE, HALF)
    optimizer = adamw(model)

    def step() -> None:
        actions, following = next(iter(loader)) if faulty else next(batches)
        hidden = model.hidden(actions.to(DEVICE).long())
        loss = functional.cross_entropy(model.head(hidden[:, -1]), following.to(DEVICE))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step
