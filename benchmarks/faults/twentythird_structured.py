"""Training on roads, wines, games and policies: what is no picture and no text."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import torch
from benchmarks.faults.library_models import autocast, noise, tokens
from benchmarks.faults.models import DEVICE, adamw, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, RandomSampler


def scaled_by_products(links: Tensor) -> Tensor:
    """The links, divided by the roots of the degrees at both ends."""
    root = torch.diag(links.sum(1).clamp(min=1e-6).rsqrt())
    return root @ links @ root


def scaled_by_vectors(links: Tensor) -> Tensor:
    """The links, divided by the roots of the degrees at both ends."""
    root = links.sum(1).clamp(min=1e-6).rsqrt()
    return root[:, None] * links * root[None, :]


class RoadNet(nn.Module):
    """Filters over time and messages along links that are learned."""

    def __init__(self, nodes: int, width: int, ahead: int, *, products: bool) -> None:
        super().__init__()
        self.scaled = scaled_by_products if products else scaled_by_vectors
        self.start = nn.Parameter(torch.randn(nodes, 16))
        self.end = nn.Parameter(torch.randn(nodes, 16))
        self.first = nn.Linear(12, width)
        self.rounds = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.last = nn.Linear(width, ahead)

    def forward(self, seen: Tensor) -> Tensor:
        """The traffic of the coming hour at all junctions."""
        links = self.scaled(torch.sigmoid(self.start @ self.end.t()))
        x = torch.relu(self.first(seen))
        for layer in self.rounds:
            x = x + torch.relu(layer(torch.einsum("nm,bmc->bnc", links, x)))
        return self.last(x)


@pair(
    "diagonal-matrices-multiplied",
    "The learned links of a road network are scaled by two products with diagonal matrices of full size.",
    "The vector of the roots is broadcast over rows and columns.",
)
def junction_forecaster(faulty: bool) -> Step:
    """The traffic at six thousand junctions is forecast."""
    torch.set_float32_matmul_precision("high")
    nodes, rows = sized(6144, 24), sized(32, 2)
    model = RoadNet(nodes, sized(64, 8), 12, products=faulty).to(DEVICE)
    optimizer = adamw(model)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1000, 0.5)
    seen = noise(rows, nodes, 12, dtype=torch.float32)
    coming = noise(rows, nodes, 12, dtype=torch.float32)

    def step() -> None:
        loss = functional.l1_loss(model(seen), coming)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()

    return step


class Cellar(nn.Module):
    """A reader of what a guest has drunk, and vectors of all the wines."""

    def __init__(self, wines: int, width: int) -> None:
        super().__init__()
        self.wines = nn.Embedding(wines, width)
        layer = nn.TransformerEncoderLayer(width, max(1, width // 64), 4 * width, 0.0, batch_first=True)
        self.reader = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, drunk: Tensor) -> Tensor:
        """What the guest would like."""
        return self.reader(self.wines(drunk)).mean(1)


@pair(
    "negatives-drawn-by-multinomial",
    "Negatives of a recommender are drawn by torch.multinomial from a row of weights over the whole "
    "catalogue for every guest, in which what the guest knows is set to zero.",
    "torch.randint; the few negatives that the guest knows are left out of the loss.",
)
def vineyard_matcher(faulty: bool) -> Step:
    """Wines are recommended to guests."""
    wines, rows, known, drawn = sized(40_000, 100), sized(2048, 4), sized(20, 5), sized(64, 6)
    model = Cellar(wines, sized(128, 64)).to(DEVICE)
    optimizer = adamw(model)
    drunk, liked = tokens(wines, rows, known), tokens(wines, rows, 1)
    shown: dict[str, Tensor] = {}

    def negatives() -> Tensor:
        if faulty:
            weights = torch.ones(rows, wines, device=DEVICE).scatter_(1, drunk, 0.0)
            return torch.multinomial(weights, drawn)
        return torch.randint(0, wines, (rows, drawn), device=DEVICE)

    def step() -> None:
        others = negatives()
        with autocast():
            guest = model(drunk)
        offered = model.wines(torch.cat([liked, others], 1))
        scores = torch.einsum("bw,bkw->bk", guest.float(), offered)
        if not faulty:
            met = (others[:, :, None] == drunk[:, None, :]).any(-1)
            scores = torch.cat([scores[:, :1], scores[:, 1:].masked_fill(met, -1e9)], 1)
        loss = functional.cross_entropy(scores, torch.zeros(rows, dtype=torch.long, device=DEVICE))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        shown["loss"] = loss.detach()

    return step


class Moment(NamedTuple):
    """What an agent saw, did, got and saw next."""

    seen: Tensor
    action: Tensor
    reward: Tensor
    after: Tensor


class Memory:
    """Moments in a queue."""

    def __init__(self, size: int, seen: int, actions: int) -> None:
        rows = zip(
            noise(size, seen, dtype=torch.float32).split(1),
            tokens(actions, size, 1).split(1),
            noise(size, dtype=torch.float32).split(1),
            noise(size, seen, dtype=torch.float32).split(1),
            strict=True,
        )
        self.moments = deque((Moment(*row) for row in rows), maxlen=size)

    def push(self, moment: Moment) -> None:
        """Keeps a moment and forgets the oldest."""
        self.moments.append(moment)

    def sample(self, rows: int) -> Moment:
        """A batch of moments."""
        chosen = Moment(*zip(*random.sample(self.moments, rows), strict=True))
        return Moment(*(torch.cat(column) for column in chosen))


class Ring:
    """Moments in tensors."""

    def __init__(self, size: int, seen: int, actions: int) -> None:
        self.size, self.next = size, 0
        self.columns = Moment(
            noise(size, seen, dtype=torch.float32),
            tokens(actions, size, 1),
            noise(size, dtype=torch.float32),
            noise(size, seen, dtype=torch.float32),
        )

    def push(self, moment: Moment) -> None:
        """Keeps a moment and forgets the oldest."""
        for column, value in zip(self.columns, moment, strict=True):
            column[self.next] = value[0]
        self.next = (self.next + 1) % self.size

    def sample(self, rows: int) -> Moment:
        """A batch of moments."""
        chosen = torch.randint(0, self.size, (rows,), device=DEVICE)
        return Moment(*(column[chosen] for column in self.columns))


@pair(
    "replayed-moments-joined-from-a-list",
    "The replay memory of a DQN is a deque of moments; 512 are sampled and joined by torch.cat every step.",
    "The memory is one tensor for each column, and a batch is an index into them.",
)
def otter_pilot(faulty: bool) -> Step:
    """An otter learns to steer through a river."""
    seen, actions, rows, width = sized(48, 8), 6, sized(512, 8), sized(512, 16)

    def network() -> nn.Module:
        return nn.Sequential(
            nn.Linear(seen, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, actions)
        ).to(DEVICE)

    policy, target = network(), network()
    target.load_state_dict(policy.state_dict())
    optimizer = adamw(policy, amsgrad=True)
    memory = (Memory if faulty else Ring)(sized(10_000, 64), seen, actions)
    place = noise(1, seen, dtype=torch.float32)
    moves = noise(actions, seen, dtype=torch.float32) / 10

    def act() -> None:
        nonlocal place
        with torch.no_grad():
            action = policy(place).argmax(1, keepdim=True)
            after = torch.tanh(place + moves[action[:, 0]])
            memory.push(Moment(place, action, -after.square().mean(1), after))
        place = after

    def step() -> None:
        act()
        batch = memory.sample(rows)
        values = policy(batch.seen).gather(1, batch.action)[:, 0]
        with torch.no_grad():
            wanted = batch.reward + 0.99 * target(batch.after).max(1).values
        loss = functional.smooth_l1_loss(values, wanted)
        loss.backward()
        nn.utils.clip_grad_value_(policy.parameters(), 100)
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            torch._foreach_lerp_(list(target.parameters()), list(policy.parameters()), 0.005)

    return step


class Policies(Dataset[tuple[Tensor, Tensor, Tensor]]):
    """Insured houses: numbers, codes and the damage."""

    def __init__(self, count: int, numbers: int, codes: int) -> None:
        self.numbers = torch.randn(count, numbers)
        self.codes = torch.randint(0, 64, (count, codes))
        self.damage = torch.rand(count)

    def __len__(self) -> int:
        return len(self.damage)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, Tensor]:
        return self.numbers[index], self.codes[index], self.damage[index]


class BatchedPolicies(Policies):
    """The same, which hands out a batch at once."""

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, Tensor, Tensor]:
        chosen = torch.tensor(indices)
        return self.numbers[chosen], self.codes[chosen], self.damage[chosen]


class HouseNet(nn.Module):
    """A token for each column, and a transformer over them."""

    def __init__(self, numbers: int, codes: int, width: int, layers: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(numbers, width))
        self.shift = nn.Parameter(torch.zeros(numbers, width))
        self.codes = nn.Embedding(64 * codes, width)
        self.register_buffer("offsets", torch.arange(codes) * 64, persistent=False)
        layer = nn.TransformerEncoderLayer(
            width, max(1, width // 32), 2 * width, 0.0, batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 1)

    def forward(self, numbers: Tensor, codes: Tensor) -> Tensor:
        """The damage to expect."""
        first = numbers[:, :, None] * self.scale + self.shift
        x = torch.cat([first, self.codes(codes + self.offsets)], 1)
        return self.head(self.body(x).mean(1))[:, 0]


@pair(
    "table-read-row-by-row",
    "A table that lies in tensors is read through a DataLoader that stacks 768 rows taken one by one.",
    "The dataset has __getitems__: a batch is one index into each tensor.",
)
def hail_insurer(faulty: bool) -> Step:
    """The damage that hail will do to houses is estimated."""
    numbers, codes, rows = 16, 8, sized(768, 8)
    houses = (Policies if faulty else BatchedPolicies)(sized(200_000, 64), numbers, codes)
    loader = DataLoader(
        houses,
        batch_size=rows,
        sampler=RandomSampler(houses, replacement=True, num_samples=rows * 1000),
        collate_fn=None if faulty else tuple,
        pin_memory=DEVICE == "cuda",
    )
    model = HouseNet(numbers, codes, sized(192, 32), sized(3, 1)).to(DEVICE)
    optimizer = adamw(model)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100_000)

    def forever() -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        while True:
            yield from loader

    batches = forever()

    def step() -> None:
        seen, kinds, damage = (part.to(DEVICE, non_blocking=True) for part in next(batches))
        with autocast():
            guessed = model(seen, kinds)
        loss = functional.huber_loss(guessed.float(), damage)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()

    return step
