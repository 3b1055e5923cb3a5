"""An agent that learns from its experience, models with losses of their own, and a search."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from benchmarks.faults.library_models import autocast, halved, noise, tokens
from benchmarks.faults.models import DEVICE, adamw, pinned, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional


class SumTree:
    """Priorities of moves, and the sums of all pairs below each node, so that a share can be looked up."""

    def __init__(self, priorities: np.ndarray) -> None:
        self.capacity = len(priorities)
        self.nodes = np.zeros(2 * self.capacity)
        self.nodes[self.capacity :] = priorities
        for node in range(self.capacity - 1, 0, -1):
            self.nodes[node] = self.nodes[2 * node] + self.nodes[2 * node + 1]

    def find(self, values: np.ndarray) -> np.ndarray:
        """The moves on which these shares of the sum fall, one after the other."""
        found = np.empty(len(values), np.int64)
        for number, share in enumerate(values):
            node, rest = 1, share
            while node < self.capacity:
                node *= 2
                if rest > self.nodes[node]:
                    rest -= self.nodes[node]
                    node += 1
            found[number] = node - self.capacity
        return found

    def update(self, moves: np.ndarray, priorities: np.ndarray) -> None:
        """Sets new priorities, one after the other."""
        for move, priority in zip(moves, priorities, strict=True):
            node = move + self.capacity
            change = priority - self.nodes[node]
            while node:
                self.nodes[node] += change
                node //= 2


class WideSumTree(SumTree):
    """The same, for all moves of a batch at once."""

    def find(self, values: np.ndarray) -> np.ndarray:
        """The moves on which these shares of the sum fall, a level of the tree at a time."""
        node, rest = np.ones(len(values), np.int64), values.copy()
        for _ in range(self.capacity.bit_length() - 1):
            node *= 2
            below = self.nodes[node]
            right = rest > below
            rest -= right * below
            node += right
        return node - self.capacity

    def update(self, moves: np.ndarray, priorities: np.ndarray) -> None:
        """Sets new priorities, then adds up a level of the tree at a time."""
        node = moves + self.capacity
        self.nodes[node] = priorities
        for _ in range(self.capacity.bit_length() - 1):
            node = np.unique(node // 2)
            self.nodes[node] = self.nodes[2 * node] + self.nodes[2 * node + 1]


def judge(seen: int, actions: int) -> nn.Module:
    """Linear layers that tell what each action is worth."""
    width = sized(512, 16)
    return nn.Sequential(
        nn.Linear(seen, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, actions)
    ).to(DEVICE)


@pair(
    "tree-walked-in-python",
    "Prioritized replay walks its tree of sums in Python, node by node, for each of 1024 moves, twice.",
    "The whole batch goes down the tree together, in numpy.",
)
def fourteenth_drone_agent(faulty: bool) -> Step:
    """An agent with discrete actions learns from the moves that surprised it most."""
    seen, actions, rows, capacity = sized(128, 8), sized(32, 4), sized(1024, 16), sized(131_072, 64)
    rng = np.random.default_rng(4)
    tree = (SumTree if faulty else WideSumTree)(rng.uniform(0.1, 1, capacity))
    before, after = (noise(capacity, seen, dtype=torch.float32) for _ in range(2))
    acted, reward = tokens(actions, capacity), noise(capacity, dtype=torch.float32)
    model, target = judge(seen, actions), judge(seen, actions)
    target.load_state_dict(model.state_dict())
    optimizer = adamw(model)
    share = np.arange(rows) / rows

    def step() -> np.ndarray:
        total = tree.nodes[1]
        moves = tree.find((share + rng.random(rows) / rows) * total)
        chance = tree.nodes[moves + capacity] / total
        weight = pinned(torch.from_numpy((capacity * chance) ** -0.4).float())
        picked = pinned(torch.from_numpy(moves)).to(DEVICE, non_blocking=True)
        weight = weight.to(DEVICE, non_blocking=True)
        with torch.no_grad():
            best = model(after[picked]).argmax(-1, keepdim=True)
            goal = reward[picked] + 0.99 * target(after[picked]).gather(1, best).squeeze(1)
        value = model(before[picked]).gather(1, acted[picked][:, None]).squeeze(1)
        error = value - goal
        loss = (weight * functional.smooth_l1_loss(value, goal, reduction="none")).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(target.parameters()), list(model.parameters()), 0.005)
        tree.update(moves, (error.detach().abs().cpu().numpy().astype(np.float64) + 1e-3) ** 0.6)
        return moves

    return step


class SignalEncoder(nn.Module):
    """Convolutions over the shaking of a machine, and its faults told from them."""

    def __init__(self, width: int, features: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(1, width, 63, stride=8, padding=31),
            nn.ReLU(inplace=True),
            nn.Conv1d(width, 2 * width, 3, stride=2, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv1d(2 * width, 4 * width, 3, stride=2, padding=1),
            nn.ReLU(inplace=True),
            nn.AdaptiveAvgPool1d(4),
            nn.Flatten(),
            nn.Linear(16 * width, features),
        )
        self.head = nn.Linear(features, 10)

    def forward(self, signals: Tensor) -> tuple[Tensor, Tensor]:
        """The features and the scores of the faults."""
        features = self.body(signals)
        return features, self.head(torch.relu(features))


def distances(features: Tensor, *, by_difference: bool) -> Tensor:
    """Squared distances of all pairs of rows."""
    if by_difference:
        count, width = features.shape
        left = features.unsqueeze(0).expand(count, count, width)
        right = features.unsqueeze(1).expand(count, count, width)
        return ((left - right) ** 2).sum(2)
    square = features.square().sum(1)
    return (square[:, None] + square[None] - 2 * features @ features.T).clamp(min=0)


def discrepancy(source: Tensor, target: Tensor, *, by_difference: bool) -> Tensor:
    """How far two sets of features lie apart, by Gaussian kernels of five widths."""
    count = len(source)
    squared = distances(torch.cat([source, target]), by_difference=by_difference)
    scale = squared.detach().sum() / (4 * count * count - 2 * count)
    alike = torch.stack([torch.exp(-squared / (scale * 2.0**power)) for power in range(-2, 3)]).sum(0)
    within = alike[:count, :count].mean() + alike[count:, count:].mean()
    return within - alike[:count, count:].mean() - alike[count:, :count].mean()


@pair(
    "differences-of-all-pairs-written-out",
    "The loss writes the differences of all pairs of 2048 rows of 256 features out, then squares and sums.",
    "Squared distances by one matrix product: |a|² + |b|² - 2ab.",
)
def fourteenth_site_transfer(faulty: bool) -> Step:
    """A model of faults in machines of one site is made to fit another, where nobody has labels."""
    rows, length, features = sized(1024, 4), sized(2048, 128), sized(256, 8)
    model = SignalEncoder(sized(64, 4), features).to(DEVICE)
    optimizer = adamw(model)
    known, unknown = (noise(rows, 1, length, dtype=torch.float32) for _ in range(2))
    labels = tokens(10, rows)
    running = torch.zeros((), device=DEVICE)

    def step() -> Tensor:
        with autocast():
            found, scores = model(torch.cat([known, unknown]))
        apart = discrepancy(*found.float().chunk(2), by_difference=faulty)
        loss = functional.cross_entropy(scores[:rows].float(), labels) + 0.5 * apart
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        running.lerp_(loss.detach(), 0.02)
        return loss.detach()

    return step


class Ranker(nn.Module):
    """Tells from what somebody bought before whether something else will be bought."""

    def __init__(self, items: int, width: int, *, sparse: bool) -> None:
        super().__init__()
        self.items = nn.Embedding(items, width, sparse=sparse)
        inner = 16 * width
        self.judge = nn.Sequential(
            nn.Linear(3 * width, inner), nn.ReLU(), nn.Linear(inner, inner), nn.ReLU(), nn.Linear(inner, 1)
        )

    def forward(self, bought: Tensor, offered: Tensor) -> Tensor:
        """A score for each row."""
        past, now = self.items(bought).mean(1), self.items(offered)
        with autocast():
            return self.judge(torch.cat([past, now, past * now], -1)).squeeze(-1)


@pair(
    "dense-gradient-of-a-large-table",
    "A table of 20 million items gets a dense gradient, and Adam goes over all of it for a batch that reads"
    " one row in a hundred.",
    "nn.Embedding(sparse=True) with SparseAdam for the table.",
)
def fourteenth_shop_ranker(faulty: bool) -> Step:
    """A shop's model of clicks is trained on what people bought before."""
    items, rows = sized(20_000_000, 200), sized(8192, 8)
    with torch.device(DEVICE):
        model = Ranker(items, sized(64, 8), sparse=not faulty)
    optimizers: list[Any] = []
    if faulty:
        optimizers.append(torch.optim.Adam(model.parameters(), lr=1e-3, fused=True))
    else:
        optimizers.append(torch.optim.SparseAdam(list(model.items.parameters()), lr=1e-3))
        optimizers.append(torch.optim.Adam(model.judge.parameters(), lr=1e-3, fused=True))
    bought, offered = tokens(items, rows, sized(20, 3)), tokens(items, rows)
    clicked = torch.rand(rows, device=DEVICE).round()
    running = torch.zeros((), device=DEVICE)

    def step() -> Tensor:
        scores = model(bought, offered).float()
        loss = functional.binary_cross_entropy_with_logits(scores, clicked)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        running.lerp_(loss.detach(), 0.02)
        return loss.detach()

    return step


@pair(
    "everything-sorted-for-the-best-ten",
    "All of two million scores of each question are put in order with argsort() for the ten best.",
    "torch.topk().",
)
def fourteenth_quote_finder(faulty: bool) -> Step:
    """Questions are embedded and the nearest of two million quotations looked up."""
    from transformers import BertConfig, BertModel

    width, best = sized(384, 64), sized(10, 3)
    config = BertConfig(
        vocab_size=sized(30_522, 128),
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=sized(6, 1),
        num_attention_heads=max(1, width // 64),
        attn_implementation="sdpa",
    )
    model = halved(BertModel(config, add_pooling_layer=False)).eval()
    quotes = functional.normalize(noise(sized(2_000_000, 50), width), dim=-1)
    questions = pinned(torch.randint(0, sized(30_522, 128), (sized(64, 2), sized(32, 8))))

    @torch.inference_mode()
    def step() -> list[list[int]]:
        ids = questions.to(DEVICE, non_blocking=True)
        asked = model(input_ids=ids).last_hidden_state.mean(1)
        scores = (functional.normalize(asked, dim=-1) @ quotes.T).float()
        if faulty:
            found = scores.argsort(dim=-1, descending=True)[:, :best]
        else:
            found = scores.topk(best, dim=-1).indices
        return found.tolist()

    return step
