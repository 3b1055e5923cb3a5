"""Molecules, films to watch, a maze and the weather: programs of four other fields."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from benchmarks.faults.library_models import autocast, noise, tokens, training
from benchmarks.faults.models import DEVICE, adamw, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional

REACH = 5.0
Edges = tuple[Tensor, Tensor]


def edges_between(position: Tensor, one: Tensor, other: Tensor) -> Edges:
    """The pairs of atoms as PyG wants them, and how far apart they are."""
    return torch.stack([one, other]), (position[one] - position[other]).norm(dim=-1)


def near_in_all(position: Tensor, molecule: Tensor) -> Edges:
    """Pairs of near atoms, found among all pairs of atoms of the batch."""
    apart = (position[:, None] - position[None]).norm(dim=-1)
    near = (apart < REACH) & (molecule[:, None] == molecule[None])
    near.fill_diagonal_(fill_value=False)
    one, other = near.nonzero(as_tuple=True)
    return edges_between(position, one, other)


def near_in_each(count: int, longest: int) -> Callable[[Tensor, Tensor], Edges]:
    """Finds pairs of near atoms in each molecule by itself, all molecules at once."""
    from torch_geometric.utils import to_dense_batch

    def find(position: Tensor, molecule: Tensor) -> Edges:
        dense, there = to_dense_batch(position, molecule, max_num_nodes=longest, batch_size=count)
        number = (there.flatten().cumsum(0) - 1).view_as(there)
        apart = (dense[:, :, None] - dense[:, None]).norm(dim=-1)
        near = (apart < REACH) & there[:, :, None] & there[:, None]
        near.diagonal(dim1=1, dim2=2).fill_(value=False)
        which, one, other = near.nonzero(as_tuple=True)
        return edges_between(position, number[which, one], number[which, other])

    return find


@pair(
    "distances-between-all-molecules",
    "Near atoms are looked for among all pairs of atoms of the batch, also of different molecules.",
    "Distances are computed within each molecule, on a padded batch.",
)
def twelfth_drug_screen(faulty: bool) -> Step:
    """A SchNet of PyG learns the energy of molecules."""
    from torch_geometric.nn.models import SchNet

    molecules, least, most = sized(512, 4), 24, 40
    sizes = torch.randint(least, most + 1, (molecules,))
    molecule = torch.repeat_interleave(torch.arange(molecules), sizes).to(DEVICE)
    atoms = int(sizes.sum())
    position = 8.0 * torch.rand(atoms, 3, device=DEVICE)
    element = tokens(10, atoms) + 1
    energy = noise(molecules, 1, dtype=torch.float32)
    find: Any = near_in_all if faulty else near_in_each(molecules, most)
    model = SchNet(hidden_channels=128, num_filters=128, cutoff=REACH, interaction_graph=find).to(DEVICE)
    return training(model, lambda: functional.l1_loss(model(element, position, molecule), energy))


class Tower(nn.Module):
    """Looks up what is known of a user or a film and turns it into a vector."""

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.known = nn.Embedding(count, width)
        self.layers = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))

    def forward(self, ids: Tensor) -> Tensor:
        """Vectors of length one."""
        return functional.normalize(self.layers(self.known(ids)), dim=-1)


@pair(
    "unseen-films-drawn-for-each-user",
    "multinomial() draws the negatives of each user without replacement from a row of all films: noise for"
    " every user and film, then topk.",
    "Negatives are drawn by searchsorted() in the cumulative popularity, with replacement.",
)
def twelfth_film_picker(faulty: bool) -> Step:
    """Two towers learn which films users like, with negatives drawn by popularity."""
    rows, films, users, drawn = sized(4096, 8), sized(60_000, 64), sized(100_000, 32), sized(64, 4)
    width = sized(256, 16)
    towers = nn.ModuleList([Tower(users, width), Tower(films, width)]).to(DEVICE)
    optimizer = adamw(towers)
    popular = (1.0 / torch.arange(1, films + 1, device=DEVICE)) ** 0.75
    popular /= popular.sum()
    up_to = popular.cumsum(0)
    who, liked = tokens(users, rows), tokens(films, rows)

    def negatives() -> Tensor:
        if faulty:
            return torch.multinomial(popular.expand(rows, films), drawn)
        points = torch.rand(rows, drawn, device=DEVICE)
        return torch.searchsorted(up_to, points).clamp_(max=films - 1)

    def step() -> Tensor:
        other = negatives()
        with autocast():
            user, film = towers[0](who), towers[1](torch.cat([liked[:, None], other], 1))
            scores = torch.einsum("rw,rfw->rf", user, film) / 0.07
            loss = functional.cross_entropy(scores, torch.zeros_like(who))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


class Part(nn.Module):
    """A convolution, half the size, and two small residual blocks."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.enter = nn.Conv2d(inside, outside, 3, padding=1)
        self.inner = nn.ModuleList(nn.Conv2d(outside, outside, 3, padding=1) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """Pictures of half the side."""
        x = functional.max_pool2d(self.enter(x), 3, stride=2, padding=1)
        for first, second in ((self.inner[0], self.inner[1]), (self.inner[2], self.inner[3])):
            x = x + second(torch.relu(first(torch.relu(x))))
        return x


class Eyes(nn.Module):
    """What an agent thinks each of its actions is worth."""

    def __init__(self, side: int, actions: int) -> None:
        super().__init__()
        self.parts = nn.Sequential(Part(4, 16), Part(16, 32), Part(32, 32))
        self.layer = nn.Linear(32 * (side // 8) ** 2, 256)
        self.worth = nn.Linear(256, 1)
        self.better = nn.Linear(256, actions)

    def forward(self, seen: Tensor) -> Tensor:
        """Values of the actions."""
        x = torch.relu(self.layer(torch.relu(self.parts(seen.float() / 255)).flatten(1)))
        better = self.better(x)
        return self.worth(x) + better - better.mean(1, keepdim=True)


TAU = 0.005


def follow_by_name(target: nn.Module, model: nn.Module) -> None:
    """The target follows the model, weight by weight through their state dicts."""
    kept, fresh = target.state_dict(), model.state_dict()
    for name in fresh:
        kept[name] = fresh[name] * TAU + kept[name] * (1 - TAU)
    target.load_state_dict(kept)


def follow_at_once(target: nn.Module, model: nn.Module) -> None:
    """The target follows the model, all weights in a few kernels."""
    with torch.no_grad():
        torch._foreach_lerp_(list(target.parameters()), list(model.parameters()), TAU)


@pair(
    "target-network-updated-weight-by-weight",
    "The target network follows through state dicts, four small kernels for each weight.",
    "torch._foreach_lerp_() over all weights.",
)
def twelfth_maze_agent(faulty: bool) -> Step:
    """An agent that sees four pictures learns the worth of its actions (double DQN)."""
    rows, side, actions, kept = sized(64, 4), sized(64, 16), 15, sized(20_000, 32)
    model, target = Eyes(side, actions).to(DEVICE), Eyes(side, actions).to(DEVICE)
    target.load_state_dict(model.state_dict())
    target.requires_grad_(requires_grad=False)
    optimizer = adamw(model)
    seen = torch.randint(0, 256, (kept, 4, side, side), dtype=torch.uint8, device=DEVICE)
    done, reward = tokens(actions, kept), noise(kept, dtype=torch.float32)
    follow = follow_by_name if faulty else follow_at_once

    def step() -> Tensor:
        which = torch.randint(0, kept - 1, (rows,), device=DEVICE)
        before, after = seen[which], seen[which + 1]
        with torch.no_grad():
            best = model(after).argmax(1, keepdim=True)
            goal = reward[which] + 0.99 * target(after).gather(1, best).squeeze(1)
        value = model(before).gather(1, done[which, None]).squeeze(1)
        loss = functional.smooth_l1_loss(value, goal)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        follow(target, model)
        return loss.detach()

    return step


class Forecaster(nn.Module):
    """Patches of the globe, mixed by a transformer of timm, and the change until the next moment."""

    def __init__(self, fields: int, width: int, layers: int, patch: int) -> None:
        super().__init__()
        from timm.models.vision_transformer import Block

        self.enter = nn.Conv2d(fields, width, patch, stride=patch)
        self.blocks = nn.Sequential(*(Block(width, max(1, width // 64)) for _ in range(layers)))
        self.leave = nn.Linear(width, fields * patch * patch)
        self.patch = patch

    def forward(self, state: Tensor) -> Tensor:
        """The fields some hours later."""
        x = self.enter(state)
        shape = x.shape[2:]
        x = self.leave(self.blocks(x.flatten(2).transpose(1, 2)))
        x = x.transpose(1, 2).unflatten(2, shape)
        return functional.pixel_shuffle(x, self.patch)


def of_the_globe(fields: int, lines: int, kind: type) -> list[Tensor]:
    """Means, spreads and weights of the fields and the circles of latitude, from numpy."""
    rng = np.random.default_rng(11)
    latitude = np.linspace(-89.5, 89.5, lines)
    by_latitude = np.cos(np.deg2rad(latitude))
    by_field = rng.uniform(0.1, 2.0, fields)
    parts = [
        rng.normal(size=(fields, 1, 1)),
        rng.uniform(0.5, 2.0, (fields, 1, 1)),
        by_field[:, None, None] * (by_latitude / by_latitude.mean())[:, None],
    ]
    return [torch.from_numpy(part.astype(kind)).to(DEVICE) for part in parts]


@pair(
    "double-precision-loss",
    "Means, spreads and weights come from numpy as float64: the targets and the loss over all fields are"
    " computed in fp64.",
    "They are made float32 before they meet the fields.",
)
def twelfth_storm_forecast(faulty: bool) -> Step:
    """A transformer learns the weather of the next hours."""
    rows, fields, patch = sized(12, 1), sized(64, 3), 8
    lines, columns = sized(360, 16), sized(720, 32)
    model = Forecaster(fields, sized(384, 64), sized(2, 1), patch).to(DEVICE)
    mean, spread, weight = of_the_globe(fields, lines, np.float64 if faulty else np.float32)
    now = noise(rows, fields, lines, columns, dtype=torch.float32)
    later = noise(rows, fields, lines, columns, dtype=torch.float32)

    def loss() -> Tensor:
        state = ((now - mean) / spread).float()
        goal = (later - mean) / spread
        with autocast():
            guess = model(state)
        return ((guess.float() - goal) ** 2 * weight).mean()

    return training(model, loss)
