"""Molecules, cranes and shopping baskets: graphs, games and tables."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from benchmarks.faults.library_models import autocast
from benchmarks.faults.models import DEVICE, adamw, pinned, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler


class Bonds(nn.Module):
    """A round of messages along the bonds of molecules."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mix = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))
        self.norm = nn.LayerNorm(width)

    def forward(self, atoms: Tensor, source: Tensor, target: Tensor) -> Tensor:
        """New vectors of all atoms."""
        heard = atoms.index_add(0, target, atoms.index_select(0, source))
        return atoms + self.mix(self.norm(heard))


class ScentNet(nn.Module):
    """Smells of molecules from their atoms and bonds."""

    def __init__(self, elements: int, width: int, rounds: int, smells: int) -> None:
        super().__init__()
        self.elements = nn.Embedding(elements, width)
        self.rounds = nn.ModuleList(Bonds(width) for _ in range(rounds))
        self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, smells))

    def atoms(self, kinds: Tensor, source: Tensor, target: Tensor) -> Tensor:
        """A vector for every atom."""
        x = self.elements(kinds)
        for layer in self.rounds:
            x = layer(x, source, target)
        return x


def molecule_by_molecule(atoms: Tensor, owner: Tensor, sizes: Tensor) -> Tensor:
    """The mean of each molecule's atoms."""
    return torch.stack([atoms[owner == number].mean(0) for number in range(len(sizes))])


def by_sums(atoms: Tensor, owner: Tensor, sizes: Tensor) -> Tensor:
    """The same with one sum for all molecules."""
    sums = atoms.new_zeros(len(sizes), atoms.shape[1]).index_add(0, owner, atoms)
    return sums / sizes.unsqueeze(1)


def bottled(molecules: int, elements: int, smells: int) -> dict[str, Tensor]:
    """A batch of molecules as chains with some rings, all in one graph."""
    chance = np.random.default_rng(17)
    sizes = chance.integers(12, 60, molecules)
    starts = np.concatenate([[0], sizes.cumsum()[:-1]])
    pairs: list[tuple[int, int]] = []
    for start, size in zip(starts, sizes, strict=True):
        pairs += [(start + i, start + i + 1) for i in range(size - 1)]
        pairs += [(start + int(a), start + int(a) + 5) for a in chance.integers(0, size - 5, 3)]
    ends = np.array(pairs)
    both = np.concatenate([ends, ends[:, ::-1]])
    return {
        "kinds": torch.from_numpy(chance.integers(0, elements, int(sizes.sum()))),
        "source": torch.from_numpy(both[:, 0].copy()),
        "target": torch.from_numpy(both[:, 1].copy()),
        "owner": torch.from_numpy(np.repeat(np.arange(molecules), sizes)),
        "sizes": torch.from_numpy(sizes),
        "smells": torch.from_numpy((chance.random((molecules, smells)) < 0.1).astype(np.float32)),
    }


@pair(
    "readout-in-a-loop-over-graphs",
    "A graph network pools its atoms by a Python loop over the molecules, with a boolean mask for each.",
    "index_add by the number of the molecule, divided by the number of atoms.",
)
def nineteenth_scent_predictor(faulty: bool) -> Step:
    """How molecules smell is predicted."""
    molecules, elements, smells = sized(96, 4), 30, 110
    model = ScentNet(elements, sized(512, 16), sized(8, 2), smells).to(DEVICE)
    optimizer = adamw(model)
    batch = {name: pinned(value) for name, value in bottled(molecules, elements, smells).items()}
    readout = molecule_by_molecule if faulty else by_sums
    hits = torch.zeros((), device=DEVICE)

    def step() -> Tensor:
        sent = {name: value.to(DEVICE, non_blocking=True) for name, value in batch.items()}
        with autocast():
            atoms = model.atoms(sent["kinds"], sent["source"], sent["target"])
            scores = model.head(readout(atoms.float(), sent["owner"], sent["sizes"]))
        loss = functional.binary_cross_entropy_with_logits(scores.float(), sent["smells"])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        hits.lerp_(((scores.detach() > 0) == (sent["smells"] > 0.5)).float().mean(), 0.02)
        return loss.detach()

    return step


class CraneYard:
    """A yard seen by a camera: four small pictures at a time, a reward and now and then an end."""

    def __init__(self, side: int, actions: int) -> None:
        self.chance = np.random.default_rng(31)
        self.views = self.chance.integers(0, 256, (64, 4, side, side), dtype=np.uint8)
        self.actions = actions
        self.at = 0

    def act(self) -> tuple[np.ndarray, int, float, np.ndarray, bool]:
        """One move of the crane: what was seen, done, gained and seen then."""
        before, self.at = self.at, (self.at + int(self.chance.integers(1, 5))) % len(self.views)
        move, gain = int(self.chance.integers(self.actions)), float(self.chance.normal())
        return self.views[before], move, gain, self.views[self.at], bool(self.chance.random() < 0.02)


class ListMemory:
    """The last moves in a deque."""

    def __init__(self, room: int) -> None:
        self.moves: deque[tuple[np.ndarray, int, float, np.ndarray, bool]] = deque(maxlen=room)

    def keep(self, move: tuple[np.ndarray, int, float, np.ndarray, bool]) -> None:
        """Keeps a move."""
        self.moves.append((move[0].copy(), move[1], move[2], move[3].copy(), move[4]))

    def sample(self, rows: int) -> list[Tensor]:
        """Some of the moves, field by field."""
        fields = zip(*(self.moves[at] for at in random.choices(range(len(self.moves)), k=rows)), strict=True)
        seen, moves, gains, then, ends = (np.stack(field) for field in fields)
        parts = [seen, moves, gains.astype(np.float32), then, ends.astype(np.float32)]
        return [torch.from_numpy(part).to(DEVICE) for part in parts]


class TensorMemory:
    """The last moves in tensors on the device, written over in turn."""

    def __init__(self, room: int, side: int) -> None:
        self.seen, self.then = (
            torch.zeros(room, 4, side, side, dtype=torch.uint8, device=DEVICE) for _ in range(2)
        )
        self.moves = torch.zeros(room, dtype=torch.long, device=DEVICE)
        self.gains, self.ends = (torch.zeros(room, device=DEVICE) for _ in range(2))
        self.room, self.count = room, 0

    def keep(self, move: tuple[np.ndarray, int, float, np.ndarray, bool]) -> None:
        """Keeps a move."""
        at = self.count % self.room
        self.seen[at].copy_(pinned(torch.from_numpy(move[0])), non_blocking=True)
        self.then[at].copy_(pinned(torch.from_numpy(move[3])), non_blocking=True)
        self.moves[at], self.gains[at], self.ends[at] = move[1], move[2], float(move[4])
        self.count += 1

    def sample(self, rows: int) -> list[Tensor]:
        """Some of the moves, field by field."""
        held = min(self.count, self.room)
        at = pinned(torch.tensor(random.choices(range(held), k=rows))).to(DEVICE, non_blocking=True)
        return [part[at] for part in (self.seen, self.moves, self.gains, self.then, self.ends)]


class CraneCritic(nn.Module):
    """What each move is worth, from the pictures."""

    def __init__(self, width: int, actions: int, side: int) -> None:
        super().__init__()
        parts: list[nn.Module] = []
        for turn, inside in enumerate((4, width, 2 * width)):
            outside = width * (1, 2, 2)[turn]
            parts += [nn.Conv2d(inside, outside, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        self.body = nn.Sequential(*parts, nn.Flatten())
        self.head = nn.Sequential(
            nn.Linear(2 * width * (side // 8) ** 2, 512), nn.ReLU(), nn.Linear(512, actions)
        )

    def forward(self, views: Tensor) -> Tensor:
        """Values of all moves."""
        views = views.float().div_(255.0).contiguous(memory_format=torch.channels_last)
        return self.head(self.body(views))


@pair(
    "replay-batches-stacked-on-the-host",
    "Q-learning from pictures keeps its moves in a deque and stacks numpy arrays for every batch.",
    "The moves lie in uint8 tensors on the GPU, and a batch is one index into each.",
)
def nineteenth_crane_pilot(faulty: bool) -> Step:
    """A crane learns to stack containers."""
    side, actions, rows, room = sized(84, 16), 9, sized(512, 4), sized(4096, 32)
    random.seed(13)
    yard = CraneYard(side, actions)
    memory: Any = ListMemory(room) if faulty else TensorMemory(room, side)
    critic, target = (CraneCritic(sized(48, 8), actions, side).to(DEVICE) for _ in range(2))
    target.load_state_dict(critic.state_dict())
    optimizer = adamw(critic)
    for _ in range(room):
        memory.keep(yard.act())
    worth = torch.zeros((), device=DEVICE)

    def step() -> Tensor:
        memory.keep(yard.act())
        seen, moves, gains, then, ends = memory.sample(rows)
        with torch.no_grad(), autocast():
            best = critic(then).argmax(1, keepdim=True)
            ahead = target(then).gather(1, best)[:, 0].float()
        with autocast():
            values = critic(seen).gather(1, moves[:, None])[:, 0].float()
        loss = functional.smooth_l1_loss(values, gains + 0.99 * (1.0 - ends) * ahead)
        loss.backward()
        nn.utils.clip_grad_norm_(critic.parameters(), 10.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            torch._foreach_lerp_(list(target.parameters()), list(critic.parameters()), 0.005)
        worth.lerp_(values.detach().mean(), 0.02)
        return loss.detach()

    return step


class GroceryLog(Dataset[dict[str, Tensor]]):
    """What customers were shown and whether they took it, in memory."""

    def __init__(self, count: int, fields: int, values: int) -> None:
        made = torch.Generator().manual_seed(23)
        self.kinds = torch.randint(0, values, (count, fields), generator=made)
        self.numbers = torch.rand(count, 13, generator=made)
        self.taken = (torch.rand(count, generator=made) < 0.2).float()

    def __len__(self) -> int:
        return len(self.taken)

    def __getitem__(self, at: Any) -> dict[str, Tensor]:
        return {"kinds": self.kinds[at], "numbers": self.numbers[at], "taken": self.taken[at]}


class GroceryNet(nn.Module):
    """Embeddings of the kinds and their products with one another, then a deep part."""

    def __init__(self, fields: int, values: int, width: int, hidden: int) -> None:
        super().__init__()
        self.table = nn.Embedding(fields * values, width)
        self.register_buffer("offsets", torch.arange(fields) * values)
        self.bottom = nn.Sequential(nn.Linear(13, hidden), nn.ReLU(), nn.Linear(hidden, width))
        crossed = (fields + 1) * fields // 2
        upper = torch.triu_indices(fields + 1, fields + 1, 1)
        self.register_buffer("upper", upper[0] * (fields + 1) + upper[1])
        self.top = nn.Sequential(
            nn.Linear(crossed + width, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, 1),
        )

    def forward(self, kinds: Tensor, numbers: Tensor) -> Tensor:
        """How likely each customer takes what is shown."""
        dense = self.bottom(numbers)
        parts = torch.cat([self.table(kinds + self.offsets), dense[:, None]], 1)
        products = torch.bmm(parts, parts.transpose(1, 2)).flatten(1).index_select(1, self.upper)
        return self.top(torch.cat([products, dense], 1))[:, 0]


def without_end(loader: DataLoader[dict[str, Tensor]]) -> Iterator[dict[str, Tensor]]:
    """Epoch after epoch."""
    while True:
        yield from loader


@pair(
    "in-memory-rows-fetched-one-by-one",
    "A click model reads a table that lies in memory through a DataLoader: row by row, then collated.",
    "A BatchSampler as sampler and batch_size=None: the dataset is indexed with the whole batch.",
)
def nineteenth_grocery_ranker(faulty: bool) -> Step:
    """What customers put into their baskets is predicted."""
    rows, fields, values = sized(2048, 8), 24, sized(20_000, 50)
    log = GroceryLog(sized(400_000, 64), fields, values)
    order = RandomSampler(log, generator=torch.Generator().manual_seed(29))
    memory = DEVICE == "cuda"
    if faulty:
        loader = DataLoader(log, batch_size=rows, sampler=order, drop_last=True, pin_memory=memory)
    else:
        chunks = BatchSampler(order, rows, drop_last=True)
        loader = DataLoader(log, batch_size=None, sampler=chunks, pin_memory=memory)
    model = GroceryNet(fields, values, sized(64, 8), sized(4096, 16)).to(DEVICE)
    optimizer = adamw(model)
    batches = without_end(loader)
    running = torch.zeros((), device=DEVICE)

    def step() -> Tensor:
        batch = {name: value.to(DEVICE, non_blocking=True) for name, value in next(batches).items()}
        with autocast():
            scores = model(batch["kinds"], batch["numbers"])
        loss = functional.binary_cross_entropy_with_logits(scores.float(), batch["taken"])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        running.lerp_(loss.detach(), 0.02)
        return loss.detach()

    return step
