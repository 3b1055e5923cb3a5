"""Training scripts of other fields: tables, recommendations on a graph, games and recorded speech."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from benchmarks.faults.library_models import autocast, tokens
from benchmarks.faults.models import DEVICE, HALF, adamw, pinned, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset


class ChurnTable(Dataset[tuple[Tensor, Tensor, Tensor]]):
    """Customers as rows of numbers and of kinds, and whether they left."""

    def __init__(self, count: int, numbers: int, kinds: int) -> None:
        self.numbers = torch.randn(count, numbers)
        self.kinds = torch.randint(0, 32, (count, kinds))
        self.left = torch.randint(0, 2, (count,)).float()

    def __len__(self) -> int:
        """How many customers there are."""
        return len(self.left)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, Tensor]:
        """One customer."""
        return self.numbers[index], self.kinds[index], self.left[index]


def batches_by_row(table: ChurnTable, rows: int) -> Iterator[tuple[Tensor, ...]]:
    """Batches of one epoch after the other."""
    loader = DataLoader(table, batch_size=rows, shuffle=True, drop_last=True, pin_memory=DEVICE == "cuda")
    while True:
        for batch in loader:
            yield tuple(part.to(DEVICE, non_blocking=True) for part in batch)


def batches_by_index(table: ChurnTable, rows: int) -> Iterator[tuple[Tensor, ...]]:
    """Batches of one epoch after the other."""
    columns = [part.to(DEVICE) for part in (table.numbers, table.kinds, table.left)]
    while True:
        order = torch.randperm(len(table), device=DEVICE)
        for chosen in order[: len(table) // rows * rows].split(rows):
            yield tuple(column[chosen] for column in columns)


class ColumnTransformer(nn.Module):
    """A transformer whose positions are the columns of a table."""

    def __init__(self, numbers: int, kinds: int, width: int, layers: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(numbers, width) * 0.02)
        self.shift = nn.Parameter(torch.zeros(numbers, width))
        self.kinds = nn.Embedding(32 * kinds, width)
        self.register_buffer("offsets", torch.arange(kinds) * 32)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, max(1, width // 32), 2 * width, 0.0, "gelu", batch_first=True, norm_first=True
            )
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 1)

    def forward(self, numbers: Tensor, kinds: Tensor) -> Tensor:
        """The score of leaving."""
        x = torch.cat([numbers[:, :, None] * self.scale + self.shift, self.kinds(kinds + self.offsets)], 1)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x).mean(1))[:, 0]


@pair(
    "table-collated-row-by-row",
    "A DataLoader fetches the 4096 rows of a batch one by one from tensors in memory and stacks them "
    "(batches_by_row, ChurnTable.__getitem__).",
    "The table lies on the device, and a batch is one index into every column.",
)
def twentyseventh_churn_model(faulty: bool) -> Step:
    """It is told which customers of a telephone company will leave."""
    rows, numbers, kinds = sized(4096, 8), sized(24, 4), sized(8, 2)
    table = ChurnTable(sized(400_000, 64), numbers, kinds)
    model = ColumnTransformer(numbers, kinds, sized(192, 32), sized(3, 1)).to(DEVICE)
    optimizer = adamw(model, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=100_000)
    batches = (batches_by_row if faulty else batches_by_index)(table, rows)
    running = torch.zeros((), device=DEVICE)

    def step() -> None:
        values, groups, left = next(batches)
        with autocast():
            scores = model(values, groups)
        loss = functional.binary_cross_entropy_with_logits(scores.float(), left)
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        running.lerp_(loss.detach(), 0.02)

    return step


class LightGraph(nn.Module):
    """LightGCN: shoppers and goods lend each other their vectors."""

    def __init__(self, nodes: int, width: int, rounds: int) -> None:
        super().__init__()
        self.table = nn.Embedding(nodes, width)
        nn.init.normal_(self.table.weight, std=0.1)
        self.rounds = rounds

    def forward(self, source: Tensor, target: Tensor, weight: Tensor) -> Tensor:
        """The vectors of all nodes, a mean over the rounds."""
        x = self.table.weight
        total = x
        for _ in range(self.rounds):
            x = torch.zeros_like(x).index_add_(0, target, x.index_select(0, source) * weight)
            total = total + x
        return total / (self.rounds + 1)


def area_under_curve(scores: np.ndarray, bought: np.ndarray) -> float:
    """How often what was bought is ranked above what was not."""
    order = np.argsort(scores, kind="stable")
    ranks = np.empty(len(scores))
    ranks[order] = np.arange(1, len(scores) + 1)
    hits = int(bought.sum())
    return float((ranks[bought == 1].sum() - hits * (hits + 1) / 2) / (hits * (len(scores) - hits)))


@pair(
    "auc-on-the-host-every-step",
    "A LightGCN copies its scores to the host in every step and ranks them by numpy for the AUC of the "
    "progress bar (area_under_curve).",
    "The AUC is computed every 200 steps.",
)
def twentyseventh_basket_graph(faulty: bool) -> Step:
    """Goods are recommended from a graph of who bought what."""
    every = 1 if faulty else 200
    shoppers, goods, bought = sized(200_000, 40), sized(50_000, 20), sized(1_000_000, 200)
    rows, width = sized(65_536, 16), sized(64, 8)
    buyer = torch.randint(0, shoppers, (bought,), device=DEVICE)
    good = torch.randint(0, goods, (bought,), device=DEVICE) + shoppers
    source, target = torch.cat([buyer, good]), torch.cat([good, buyer])
    degree = torch.bincount(source, minlength=shoppers + goods).clamp(min=1).float()
    weight = (degree[source] * degree[target]).rsqrt()[:, None]
    model = LightGraph(shoppers + goods, width, 3).to(DEVICE)
    optimizer = adamw(model)
    labels = np.concatenate([np.ones(rows), np.zeros(rows)])
    shown: dict[str, float] = {}
    turn = 0

    def step() -> None:
        nonlocal turn
        vectors = model(source, target, weight)
        chosen = torch.randint(0, bought, (rows,), device=DEVICE)
        others = torch.randint(shoppers, shoppers + goods, (rows,), device=DEVICE)
        people = vectors.index_select(0, buyer[chosen])
        liked = (people * vectors.index_select(0, good[chosen])).sum(-1)
        unknown = (people * vectors.index_select(0, others)).sum(-1)
        loss = -functional.logsigmoid(liked - unknown).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        turn += 1
        if turn % every == 0:
            scores = torch.cat([liked, unknown]).detach().cpu().numpy()
            shown["auc"] = area_under_curve(scores, labels)

    return step


@dataclass
class PlayedMoment:
    """What an agent saw, did and got."""

    seen: np.ndarray
    action: int
    reward: float
    then: np.ndarray
    over: bool


def moments_of_play(count: int, side: int, actions: int) -> list[PlayedMoment]:
    """A memory full of play."""
    draw = np.random.default_rng(3)
    frames = draw.integers(0, 255, (count + 1, 4, side, side), dtype=np.uint8)
    return [
        PlayedMoment(
            frames[number],
            int(draw.integers(actions)),
            float(draw.random()),
            frames[number + 1],
            bool(draw.random() < 0.01),
        )
        for number in range(count)
    ]


Played = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def memory_of_moments(memory: list[PlayedMoment], rows: int) -> Callable[[], Played]:
    """Draws batches from a list of moments."""

    def draw() -> Played:
        batch = random.sample(memory, rows)
        seen = torch.tensor(np.array([moment.seen for moment in batch]), dtype=torch.float32)
        then = torch.tensor(np.array([moment.then for moment in batch]), dtype=torch.float32)
        actions = torch.tensor([moment.action for moment in batch])
        rewards = torch.tensor([moment.reward for moment in batch])
        over = torch.tensor([moment.over for moment in batch], dtype=torch.float32)
        return (
            seen.to(DEVICE) / 255.0,
            actions.to(DEVICE),
            rewards.to(DEVICE),
            then.to(DEVICE) / 255.0,
            over.to(DEVICE),
        )

    return draw


def memory_of_tensors(memory: list[PlayedMoment], rows: int) -> Callable[[], Played]:
    """Draws batches from tensors on the device."""
    seen = torch.from_numpy(np.stack([moment.seen for moment in memory])).to(DEVICE)
    then = torch.from_numpy(np.stack([moment.then for moment in memory])).to(DEVICE)
    actions = torch.tensor([moment.action for moment in memory], device=DEVICE)
    rewards = torch.tensor([moment.reward for moment in memory], device=DEVICE)
    over = torch.tensor([moment.over for moment in memory], dtype=torch.float32, device=DEVICE)

    def draw() -> Played:
        place = torch.randint(0, len(memory), (rows,), device=DEVICE)
        return (
            seen[place].float() / 255.0,
            actions[place],
            rewards[place],
            then[place].float() / 255.0,
            over[place],
        )

    return draw


class ArcadeResidual(nn.Module):
    """Two convolutions added to what came in."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        """Keeps the size of the frames."""
        y = torch.relu(self.convolutions[0](torch.relu(x)))
        return x + self.convolutions[1](y)


class ArcadeNet(nn.Module):
    """The residual network of IMPALA: a value for every action."""

    def __init__(self, width: int, side: int, actions: int) -> None:
        super().__init__()
        parts: list[nn.Module] = []
        inside = 4
        for outside in (width, 2 * width, 2 * width):
            parts += [
                nn.Conv2d(inside, outside, 3, padding=1),
                nn.MaxPool2d(3, 2, 1),
                ArcadeResidual(outside),
            ]
            inside, side = outside, (side + 1) // 2
        self.body = nn.Sequential(*parts)
        self.hidden = nn.Linear(inside * side * side, 256)
        self.values = nn.Linear(256, actions)

    def forward(self, seen: Tensor) -> Tensor:
        """The values of the actions."""
        return self.values(torch.relu(self.hidden(self.body(seen).flatten(1))))


@pair(
    "replay-memory-of-objects",
    "A DQN draws moments from a Python list, stacks their frames with numpy, turns them into fp32 on the "
    "host and copies them from pageable memory (memory_of_moments).",
    "The memory is a set of uint8 tensors on the device, indexed by a batch of places.",
)
def twentyseventh_arcade_agent(faulty: bool) -> Step:
    """An agent learns a game of the arcade from its memory."""
    torch.set_float32_matmul_precision("high")
    rows, side, actions = sized(256, 4), sized(84, 20), 18
    model, late = (ArcadeNet(sized(32, 8), side, actions).to(DEVICE) for _ in range(2))
    late.load_state_dict(model.state_dict())
    late.requires_grad_(False)
    optimizer = adamw(model)
    memory = moments_of_play(sized(4000, 32), side, actions)
    draw = (memory_of_moments if faulty else memory_of_tensors)(memory, rows)
    running = torch.zeros((), device=DEVICE)
    turn = 0

    def step() -> None:
        nonlocal turn
        seen, done, rewards, then, over = draw()
        with torch.no_grad():
            best = model(then).argmax(1, keepdim=True)
            wanted = rewards + 0.99 * (1 - over) * late(then).gather(1, best)[:, 0]
        told = model(seen).gather(1, done[:, None])[:, 0]
        loss = functional.smooth_l1_loss(told, wanted)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        optimizer.zero_grad()
        turn += 1
        if turn % 2000 == 0:
            late.load_state_dict(model.state_dict())
        running.lerp_(loss.detach(), 0.02)

    return step


class SermonLayer(nn.Module):
    """A layer of an encoder that sees the whole recording."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(1, width // 64)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Mixes every moment with all others that the mask lets through."""
        rows, length, width = x.shape
        parts = self.qkv(self.norms[0](x)).view(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, width))
        return x + self.feed(self.norms[1](x))


class SermonNet(nn.Module):
    """Says for every moment of a recording which sound it is."""

    def __init__(self, width: int, layers: int, sounds: int) -> None:
        super().__init__()
        self.front = nn.Conv1d(80, width, 4, stride=4)
        self.layers = nn.ModuleList(SermonLayer(width) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, sounds)

    def forward(self, bands: Tensor, mask: Tensor | None = None) -> Tensor:
        """Scores of the sounds: recordings, moments, sounds."""
        x = self.front(bands).transpose(1, 2)
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(self.norm(x))


def summed_sound_loss(scores: Tensor, sounds: Tensor) -> Tensor:
    """Cross entropy, summed over the moments that have a label."""
    return functional.cross_entropy(
        scores.flatten(0, 1).float(), sounds.flatten(), ignore_index=-1, reduction="sum"
    )


@pair(
    "micro-batches-of-one-recording",
    "Four recordings of four minutes go through forward and backward one by one and their gradients add up. "
    "Each fills the device by itself, and none is padded.",
    "The four are padded to the longest and run as one masked batch, which gains nothing.",
    kind="fair",
)
def twentyseventh_sermon_transcriber(faulty: bool) -> Step:
    """Long recordings of speech are labelled moment by moment."""
    unit, sounds = sized(512, 8), 64
    lengths = [unit * factor for factor in (48, 44, 40, 36)]
    with torch.device(DEVICE):
        model: Any = SermonNet(sized(1024, 64), sized(8, 1), sounds).to(HALF)
    optimizer = adamw(model)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100_000)
    recordings = [pinned(torch.randn(1, 80, length, dtype=HALF)) for length in lengths]
    spoken = [tokens(sounds, 1, length // 4) for length in lengths]
    moments = sum(lengths) // 4
    longest = max(lengths)
    padded_labels = torch.cat(
        [functional.pad(one, (0, longest // 4 - one.shape[1]), value=-1) for one in spoken]
    )
    heard = (padded_labels >= 0)[:, None, None, :]
    running = torch.zeros((), device=DEVICE)

    def one_by_one() -> None:
        for bands, labels in zip(recordings, spoken, strict=True):
            loss = summed_sound_loss(model(bands.to(DEVICE, non_blocking=True)), labels) / moments
            loss.backward()
            running.add_(loss.detach())

    def together() -> None:
        bands = torch.cat(
            [
                functional.pad(one.to(DEVICE, non_blocking=True), (0, longest - one.shape[2]))
                for one in recordings
            ]
        )
        loss = summed_sound_loss(model(bands, heard), padded_labels) / moments
        loss.backward()
        running.add_(loss.detach())

    def step() -> None:
        (one_by_one if faulty else together)()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()

    return step
