"""Models that look things up: the atoms of molecules, and the visitors and goods of a shop."""

from __future__ import annotations

import itertools
import random

import torch
from benchmarks.faults.models import DEVICE, HALF, adamw, pinned, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional

LOG_EVERY = 50


# ---------------------------------------------------------------- molecules


class Bonds(nn.Module):
    """Every atom hears from those it is bound to."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.say = nn.Linear(width, width)
        self.hear = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor, bonds: Tensor) -> Tensor:
        """Keeps the shape of the atoms."""
        said = self.say(x).relu().index_select(0, bonds[0])
        heard = torch.zeros_like(x).index_add(0, bonds[1], said)
        return x + self.hear(self.norm(x + heard))


def molecules(count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Atoms, bonds between neighbours in a chain and a few rings, and whose each atom is."""
    rng = random.Random(4)
    sizes = torch.tensor([rng.randint(24, 56) for _ in range(count)])
    whose = torch.repeat_interleave(torch.arange(count), sizes)
    here = torch.arange(len(whose))
    pairs = torch.cat([torch.stack([here[:-gap], here[gap:]]) for gap in (1, 5)], 1)
    pairs = pairs[:, whose[pairs[0]] == whose[pairs[1]]]
    bonds = torch.cat([pairs, pairs.flip(0)], 1)
    return torch.randint(0, 100, (len(whose),)), bonds, whose


def read_each(x: Tensor, gate: Tensor, whose: Tensor, count: int) -> Tensor:
    """What matters of each molecule."""
    read = []
    for number in range(count):
        mine = whose == number
        shares = torch.softmax(gate[mine], 0)
        read.append((shares * x[mine]).sum(0))
    return torch.stack(read)


def read_all(x: Tensor, gate: Tensor, whose: Tensor, count: int) -> Tensor:
    """What matters of each molecule, of all at once."""
    highest = torch.full((count, 1), -torch.inf, device=x.device, dtype=gate.dtype)
    highest = highest.scatter_reduce(0, whose[:, None], gate.detach(), "amax")
    raised = torch.exp(gate - highest.index_select(0, whose))
    total = torch.zeros(count, 1, device=x.device, dtype=gate.dtype).index_add(0, whose, raised)
    shares = raised / total.index_select(0, whose)
    return torch.zeros(count, x.shape[1], device=x.device).index_add(0, whose, shares * x)


@pair(
    "mask-for-each-graph",
    "The readout goes through 256 molecules one by one and takes the atoms of each with a boolean mask, which"
    " waits for the device every time.",
    "A softmax and a sum over all atoms at once with scatter_reduce and index_add.",
)
def fifteenth_molecule_scorer(faulty: bool) -> Step:
    """A graph network with an attentive readout learns how well molecules dissolve."""
    count, width = sized(256, 4), sized(512, 32)
    with torch.device(DEVICE):
        embedding, gate, head = nn.Embedding(100, width), nn.Linear(width, 1), nn.Linear(width, 1)
        layers = nn.ModuleList(Bonds(width) for _ in range(sized(6, 2)))
    model = nn.ModuleList([embedding, gate, layers]).to(HALF)
    host = [pinned(part) for part in (*molecules(count), torch.randn(count))]
    optimizer = adamw(nn.ModuleList([model, head]))
    numbers, errors = itertools.count(), []
    read = read_each if faulty else read_all

    def step() -> Tensor:
        atoms, bonds, whose, wanted = (part.to(DEVICE, non_blocking=True) for part in host)
        x = embedding(atoms)
        for layer in layers:
            x = layer(x, bonds)
        told = head(read(x.float(), gate(x).float(), whose, count)).squeeze(-1)
        loss = functional.smooth_l1_loss(told, wanted)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if next(numbers) % LOG_EVERY == LOG_EVERY - 1:
            errors.append((told.detach() - wanted).abs().mean().item())
        return loss.detach()

    return step


# ---------------------------------------------------------------- a shop


@pair(
    "dense-gradient-of-a-table",
    "The tables of eight million shoppers and two million goods get dense gradients: every step zeroes, fills"
    " and updates 2.5 GB for about 260,000 rows that were used.",
    "nn.Embedding(..., sparse=True); Adagrad then touches only the rows of the batch.",
)
def fifteenth_shop_ranker(faulty: bool) -> Step:
    """A shop learns which goods a visitor will open, from who they are and what they saw before."""
    rows, past, wide = sized(8192, 4), sized(30, 3), sized(64, 8)
    people, goods = sized(8_000_000, 100), sized(2_000_000, 100)
    with torch.device(DEVICE):
        visitors = nn.Embedding(people, wide, sparse=not faulty)
        things = nn.Embedding(goods, wide, sparse=not faulty)
        ranker = nn.Sequential(
            nn.Linear(3 * wide, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 1)
        ).to(HALF)
    tables = torch.optim.Adagrad([visitors.weight, things.weight], lr=0.02)
    optimizer, numbers = adamw(ranker), itertools.count()
    days = [
        (
            pinned(torch.randint(0, people, (rows,))),
            pinned(torch.randint(0, goods, (rows, past + 1))),
            pinned(torch.randint(0, 2, (rows,)).float()),
        )
        for _ in range(4)
    ]
    losses: list[float] = []

    def step() -> Tensor:
        number = next(numbers)
        who, what, opened = (part.to(DEVICE, non_blocking=True) for part in days[number % 4])
        known = things(what)
        parts = (visitors(who), known[:, :-1].mean(1), known[:, -1])
        scores = ranker(torch.cat(parts, -1).to(HALF)).squeeze(-1).float()
        loss = functional.binary_cross_entropy_with_logits(scores, opened)
        loss.backward()
        for each in (tables, optimizer):
            each.step()
            each.zero_grad()
        if number % LOG_EVERY == LOG_EVERY - 1:
            losses.append(loss.item())
        return loss.detach()

    return step
