"""Training on graphs, interactions, rollouts and sound."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import torch
from benchmarks.faults.library_models import autocast, noise, tokens
from benchmarks.faults.models import DEVICE, adamw, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional


def normalised(adjacency: Tensor) -> Tensor:
    """The adjacency with loops, divided by the roots of both degrees."""
    looped = adjacency + torch.eye(len(adjacency), device=adjacency.device)
    scale = looped.sum(1).rsqrt()
    return scale[:, None] * looped * scale[None, :]


class PathwayLayer(nn.Module):
    """A graph convolution."""

    def __init__(self, inside: int, outside: int, *, raw: bool) -> None:
        super().__init__()
        self.raw = raw
        self.linear = nn.Linear(inside, outside)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        """New features of all genes."""
        weights = normalised(adjacency) if self.raw else adjacency
        return weights @ self.linear(x)


class PathwayNet(nn.Module):
    """Three graph convolutions and a class for every gene."""

    def __init__(self, seen: int, width: int, classes: int, *, raw: bool) -> None:
        super().__init__()
        sizes = [seen, width, width, classes]
        self.layers = nn.ModuleList(
            PathwayLayer(inside, outside, raw=raw) for inside, outside in pairwise(sizes)
        )

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        """Scores of the classes of all genes."""
        for layer in self.layers[:-1]:
            x = torch.relu(layer(x, adjacency))
        return self.layers[-1](x, adjacency)


@pair(
    "adjacency-normalised-in-every-layer",
    "Each graph convolution normalises the same adjacency of 16,000 genes again, in every forward pass.",
    "The adjacency is normalised once before training.",
)
def pathway_graph(faulty: bool) -> Step:
    """Genes are sorted into pathways by how they are expressed together."""
    torch.set_float32_matmul_precision("high")
    genes, seen, width, classes = sized(16_000, 60), sized(256, 16), sized(128, 16), sized(48, 4)
    together = torch.rand(genes, genes, device=DEVICE)
    adjacency = ((together + together.T) > sized(17, 14) / 10).float()
    del together
    if not faulty:
        adjacency = normalised(adjacency)
    features, truth = noise(genes, seen, dtype=torch.float32), tokens(classes, genes)
    known = torch.rand(genes, device=DEVICE) < 0.6
    weight = known.float() / known.sum()
    model = PathwayNet(seen, width, classes, raw=faulty).to(DEVICE)
    optimizer = adamw(model, weight_decay=5e-4)

    def step() -> Tensor:
        scores = model(features, adjacency)
        loss = (functional.cross_entropy(scores, truth, reduction="none") * weight).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


class Tower(nn.Module):
    """A table of ids and the layers above it."""

    def __init__(self, count: int, width: int, *, sparse: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(count, width, sparse=sparse)
        self.layers = nn.Sequential(
            nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, 2 * width), nn.ReLU()
        )
        self.out = nn.Linear(2 * width, width)

    def forward(self, ids: Tensor) -> Tensor:
        """A direction for every id."""
        return functional.normalize(self.out(self.layers(self.table(ids))).float(), dim=-1)


@pair(
    "dense-gradients-of-large-tables",
    "Tables of ten million rows have dense gradients: all rows are updated for a batch of a few thousand.",
    "nn.Embedding(sparse=True): Adagrad touches the rows of the batch alone, with the same result.",
)
def podcast_towers(faulty: bool) -> Step:
    """Podcasts are recommended by two towers."""
    listeners, shows, width, rows = sized(8_000_000, 500), sized(2_000_000, 200), sized(64, 8), sized(4096, 8)
    with torch.device(DEVICE):
        left = Tower(listeners, width, sparse=not faulty)
        right = Tower(shows, width, sparse=not faulty)
    tables = torch.optim.Adagrad([left.table.weight, right.table.weight], lr=0.05)
    dense = [p for tower in (left, right) for name, p in tower.named_parameters() if "table" not in name]
    layers = torch.optim.AdamW(dense, lr=1e-3, fused=True)
    who, what = tokens(listeners, rows), tokens(shows, rows)
    places = torch.arange(rows, device=DEVICE)

    def step() -> Tensor:
        with autocast():
            scores = left(who) @ right(what).T / 0.07
        loss = functional.cross_entropy(scores.float(), places)
        loss.backward()
        tables.step()
        layers.step()
        tables.zero_grad()
        layers.zero_grad()
        return loss.detach()

    return step


class Pilot(nn.Module):
    """A policy with a mean and a spread for each rotor, and a value."""

    def __init__(self, seen: int, rotors: int, width: int) -> None:
        super().__init__()
        self.actor = self.layers(seen, width, rotors)
        self.critic = self.layers(seen, width, 1)
        self.spread = nn.Parameter(torch.zeros(rotors))

    @staticmethod
    def layers(inside: int, width: int, outside: int) -> nn.Module:
        """Two hidden layers."""
        return nn.Sequential(
            nn.Linear(inside, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, outside)
        )

    def chance(self, seen: Tensor, actions: Tensor) -> Tensor:
        """The logarithm of how likely the actions are, up to a constant."""
        away = (actions - self.actor(seen)) * torch.exp(-self.spread)
        return (-0.5 * away.square() - self.spread).sum(-1)


def advantages_of(rewards: Any, values: Any, alive: Any, last: Any) -> list[Any]:
    """Generalised advantages of a rollout, moment by moment."""
    found: list[Any] = []
    running, following = last * 0.0, last
    for moment in reversed(range(len(rewards))):
        surprise = rewards[moment] + 0.99 * following * alive[moment] - values[moment]
        running = surprise + 0.99 * 0.95 * alive[moment] * running
        found.append(running)
        following = values[moment]
    return found[::-1]


@pair(
    "advantages-looped-on-the-device",
    "PPO computes its advantages backwards over 256 moments with some ten tiny kernels for each.",
    "The rewards and values are brought to the CPU once and the same loop runs in numpy.",
)
def quadrotor_hover(faulty: bool) -> Step:
    """A quadrotor learns to hover, by PPO."""
    moments, flights, seen_size, rotors = sized(256, 8), sized(64, 4), 24, 4
    pilot = Pilot(seen_size, rotors, sized(256, 16)).to(DEVICE)
    optimizer = adamw(pilot, eps=1e-5)
    seen = noise(moments, flights, seen_size, dtype=torch.float32)
    actions = noise(moments, flights, rotors, dtype=torch.float32)
    rewards = noise(moments, flights, dtype=torch.float32)
    alive = (torch.rand(moments, flights, device=DEVICE) > 0.01).float()
    ahead = noise(flights, seen_size, dtype=torch.float32)
    parts = 4

    def targets() -> tuple[Tensor, Tensor, Tensor]:
        with torch.no_grad():
            values = pilot.critic(seen).squeeze(-1)
            last = pilot.critic(ahead).squeeze(-1)
            chances = pilot.chance(seen, actions)
            if faulty:
                gained = torch.stack(advantages_of(rewards, values, alive, last))
            else:
                moved = [part.cpu().numpy() for part in (rewards, values, alive, last)]
                gained = torch.from_numpy(np.stack(advantages_of(*moved))).to(DEVICE)
        return gained, gained + values, chances

    def step() -> None:
        gained, returns, chances = (part.flatten() for part in targets())
        inputs, chosen = seen.flatten(0, 1), actions.flatten(0, 1)
        for _ in range(4):
            for rows in torch.randperm(moments * flights, device=DEVICE).chunk(parts):
                ratio = torch.exp(pilot.chance(inputs[rows], chosen[rows]) - chances[rows])
                better = gained[rows]
                better = (better - better.mean()) / (better.std() + 1e-8)
                policy = -torch.minimum(better * ratio, better * ratio.clamp(0.8, 1.2)).mean()
                value = functional.mse_loss(pilot.critic(inputs[rows]).squeeze(-1), returns[rows])
                loss = policy + 0.5 * value - 0.01 * pilot.spread.sum()
                loss.backward()
                nn.utils.clip_grad_norm_(pilot.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad()

    return step


class SpectralLoss(nn.Module):
    """How far the spectra of two batches of sound lie apart, at several resolutions."""

    def __init__(self, sizes: list[int], *, as_given: bool) -> None:
        super().__init__()
        self.sizes = sizes
        for size in sizes:
            window = torch.from_numpy(np.hanning(size))
            self.register_buffer(f"window_{size}", window if as_given else window.float(), persistent=False)

    def spectrum(self, sound: Tensor, size: int) -> Tensor:
        """Logarithms of the magnitudes of all frames."""
        frames = sound.unfold(-1, size, size // 4) * self.get_buffer(f"window_{size}")
        return torch.log(torch.fft.rfft(frames).abs() + 1e-5)

    def forward(self, made: Tensor, wanted: Tensor) -> Tensor:
        """The mean over the resolutions."""
        apart = [functional.l1_loss(self.spectrum(made, n), self.spectrum(wanted, n)) for n in self.sizes]
        return torch.stack(apart).mean()


@pair(
    "float64-window-from-numpy",
    "The windows of a spectral loss come from numpy in float64, so frames, FFTs and their gradients are too.",
    "window.float().",
)
def whale_denoiser(faulty: bool) -> Step:
    """Songs of whales are freed from the noise of ships."""
    rows, length, width = sized(96, 2), sized(65_536, 2048), sized(64, 8)
    model = nn.Sequential(
        nn.Conv1d(1, width, 16, stride=8, padding=4),
        nn.GELU(),
        nn.Conv1d(width, 2 * width, 8, stride=4, padding=2),
        nn.GELU(),
        nn.Conv1d(2 * width, 2 * width, 3, padding=1),
        nn.GELU(),
        nn.ConvTranspose1d(2 * width, width, 8, stride=4, padding=2),
        nn.GELU(),
        nn.ConvTranspose1d(width, 1, 16, stride=8, padding=4),
    ).to(DEVICE)
    sizes = [512, 1024, 2048] if DEVICE == "cuda" else [64, 128, 256]
    criterion = SpectralLoss(sizes, as_given=faulty).to(DEVICE)
    optimizer = adamw(model)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99999)
    clean = noise(rows, length, dtype=torch.float32)
    noisy = clean + 0.3 * torch.randn_like(clean)

    def step() -> Tensor:
        with autocast():
            made = model(noisy[:, None])[:, 0]
        made = made.float()
        loss = functional.l1_loss(made, clean) + criterion(made, clean)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        return loss.detach()

    return step
