"""Models of tables: an agent that lands a craft by what it remembers, and a filter of fraud."""

from __future__ import annotations

import copy
import itertools

import numpy as np
import torch
from benchmarks.faults.library_models import autocast
from benchmarks.faults.models import DEVICE, adamw, pinned, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional

LOG_EVERY = 50
ALPHA, BETA, DISCOUNT = 0.6, 0.4, 0.99


class OnHost:
    """How much is to be learnt from every moment remembered, in a NumPy array."""

    def __init__(self, count: int) -> None:
        self.worth = np.random.default_rng(16).random(count, dtype=np.float32) + 0.1
        self.rng = np.random.default_rng(17)

    def draw(self, rows: int) -> tuple[Tensor, Tensor]:
        """Some moments, by their worth, and the weights that make up for that."""
        chances = self.worth.astype(np.float64) ** ALPHA
        chances /= chances.sum()
        picked = self.rng.choice(len(chances), rows, p=chances)
        weights = (len(chances) * chances[picked]) ** -BETA
        weights = torch.from_numpy((weights / weights.max()).astype(np.float32))
        return torch.from_numpy(picked).to(DEVICE), weights.to(DEVICE)

    def update(self, picked: Tensor, worth: Tensor) -> None:
        """Tells how much was learnt."""
        self.worth[picked.cpu().numpy()] = worth.cpu().numpy()


class OnDevice:
    """How much is to be learnt from every moment remembered, on the device."""

    def __init__(self, count: int) -> None:
        first = np.random.default_rng(16).random(count, dtype=np.float32) + 0.1
        self.worth = torch.from_numpy(first).to(DEVICE)

    def draw(self, rows: int) -> tuple[Tensor, Tensor]:
        """Some moments, by their worth, and the weights that make up for that."""
        chances = self.worth**ALPHA
        sums = chances.double().cumsum(0)
        spots = torch.rand(rows, device=DEVICE, dtype=torch.float64) * sums[-1]
        picked = torch.searchsorted(sums, spots).clamp_(max=len(chances) - 1)
        weights = (len(chances) * chances[picked] / sums[-1].float()) ** -BETA
        return picked, weights / weights.max()

    def update(self, picked: Tensor, worth: Tensor) -> None:
        """Tells how much was learnt."""
        self.worth[picked] = worth


def values(seen: int, width: int, actions: int) -> nn.Module:
    """A network that tells the value of every action."""
    parts = [nn.Linear(seen, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, actions)]
    return nn.Sequential(*parts).to(DEVICE)


@pair(
    "whole-memory-weighed-for-every-draw",
    "For every batch NumPy raises the worth of all moments remembered to a power, divides it by its sum and"
    " draws by np.random.choice, which adds it all up again, on the host.",
    "Keep the worth on the device and draw there by cumsum and searchsorted (or use a sum tree).",
)
def sixteenth_lander(faulty: bool) -> Step:
    """An agent learns to land, by double Q-learning from moments drawn by their worth."""
    count, seen, actions, rows = sized(1 << 18, 256), 32, 8, sized(4096, 16)
    model = values(seen, sized(2048, 32), actions)
    target = copy.deepcopy(model).requires_grad_(False)
    optimizer = adamw(model)
    moments = [torch.randn(count, seen, device=DEVICE) for _ in range(2)]
    acted, gained = torch.randint(0, actions, (count,), device=DEVICE), torch.rand(count, device=DEVICE)
    memory = OnHost(count) if faulty else OnDevice(count)
    numbers = itertools.count()
    losses: list[float] = []

    def step() -> Tensor:
        picked, weights = memory.draw(rows)
        now, later = (part[picked] for part in moments)
        with autocast():
            value = model(now).gather(1, acted[picked, None]).squeeze(1).float()
            with torch.no_grad():
                best = model(later).argmax(1, keepdim=True)
                wanted = gained[picked] + DISCOUNT * target(later).gather(1, best).squeeze(1).float()
        loss = (weights * functional.smooth_l1_loss(value, wanted, reduction="none")).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        memory.update(picked, (value - wanted).detach().abs() + 1e-3)
        number = next(numbers)
        if number % LOG_EVERY == LOG_EVERY - 1:
            losses.append(loss.item())
            target.load_state_dict(model.state_dict())
        return loss.detach()

    return step


def fraud_batch(rows: int, columns: int) -> tuple[dict[str, Tensor], Tensor]:
    """Payments as columns, as they come from a columnar store, and which of them were fraud."""
    table = {f"column{number}": 5 * torch.randn(rows) + number for number in range(columns)}
    return table, (torch.rand(rows) < 0.1).float()


@pair(
    "columns-uploaded-one-by-one",
    "A batch is a dictionary of 240 columns, and each is copied to the device and normalised by itself: many"
    " hundred tiny copies and kernels before the model begins.",
    "Stack the columns on the host, copy them once, and normalise the matrix with the vectors of all means"
    " and deviations.",
)
def sixteenth_fraud_filter(faulty: bool) -> Step:
    """A network tells payments that are fraud by what is known of them."""
    rows, columns, width = sized(8192, 16), sized(240, 12), sized(2048, 32)
    batches = [fraud_batch(rows, columns) for _ in range(4)]
    names = list(batches[0][0])
    means = {name: float(number) for number, name in enumerate(names)}
    deviations = dict.fromkeys(names, 5.0)
    all_means = torch.tensor([means[name] for name in names], device=DEVICE)
    all_deviations = torch.tensor([deviations[name] for name in names], device=DEVICE)
    parts = [nn.Linear(columns, width), nn.BatchNorm1d(width), nn.ReLU()]
    parts += [nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 1)]
    model = nn.Sequential(*parts).to(DEVICE)
    optimizer = adamw(model)
    ahead, numbers = itertools.cycle(batches), itertools.count()
    losses: list[float] = []

    def features(table: dict[str, Tensor]) -> Tensor:
        if faulty:
            each = [(table[name].to(DEVICE) - means[name]) / deviations[name] for name in names]
            return torch.stack(each, 1)
        matrix = pinned(torch.stack([table[name] for name in names]))
        return (matrix.to(DEVICE, non_blocking=True).T - all_means) / all_deviations

    def step() -> Tensor:
        table, fraud = next(ahead)
        with autocast():
            scores = model(features(table)).squeeze(1)
        truth = pinned(fraud).to(DEVICE, non_blocking=True)
        loss = functional.binary_cross_entropy_with_logits(scores.float(), truth)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if next(numbers) % LOG_EVERY == LOG_EVERY - 1:
            losses.append(loss.item())
        return loss.detach()

    return step
