"""Models of other fields: a robot arm and the load of a power grid."""

from __future__ import annotations

import copy
import itertools
import random

import torch
from benchmarks.faults.library_models import halved, noise
from benchmarks.faults.models import DEVICE, HALF, adamw, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional

LOG_EVERY = 50


# ---------------------------------------------------------------- a robot arm


class Memory:
    """The last moments of all arms, one entry for each."""

    def __init__(self, moments: tuple[Tensor, ...]) -> None:
        self.entries = list(zip(*(part.unbind(0) for part in moments), strict=True))
        self.place = 0

    def add(self, moments: tuple[Tensor, ...]) -> None:
        """Puts new moments where the oldest are."""
        for moment in zip(*(part.unbind(0) for part in moments), strict=True):
            self.entries[self.place] = moment
            self.place = (self.place + 1) % len(self.entries)

    def draw(self, count: int) -> list[Tensor]:
        """Some moments at random."""
        chosen = random.sample(self.entries, count)
        return [torch.stack(part) for part in zip(*chosen, strict=True)]


class Ring:
    """The last moments of all arms, one tensor for each part of them."""

    def __init__(self, moments: tuple[Tensor, ...]) -> None:
        self.parts = [part.clone() for part in moments]
        self.size, self.place = len(moments[0]), 0

    def add(self, moments: tuple[Tensor, ...]) -> None:
        """Puts new moments where the oldest are."""
        count = len(moments[0])
        for part, new in zip(self.parts, moments, strict=True):
            part[self.place : self.place + count] = new
        self.place = (self.place + count) % self.size

    def draw(self, count: int) -> list[Tensor]:
        """Some moments at random."""
        chosen = torch.randint(0, self.size, (count,), device=DEVICE)
        return [part[chosen] for part in self.parts]


def layered(inside: int, width: int, outside: int) -> nn.Module:
    """Three linear layers, with the numbers in between kept in bounds."""
    return nn.Sequential(
        nn.Linear(inside, width),
        nn.LayerNorm(width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.LayerNorm(width),
        nn.ReLU(),
        nn.Linear(width, outside),
    )


@pair(
    "replay-of-single-tensors",
    "The replay memory is a Python list of transitions, each of five small tensors: a batch of 2048 is drawn"
    " with random.sample and put together with torch.stack.",
    "One preallocated tensor on the device for each part, indexed by random numbers drawn there.",
)
def fifteenth_arm_learner(faulty: bool) -> Step:
    """An arm learns to reach with two critics and an actor, from what 32 simulated arms live through."""
    seen, moves, width, arms = 48, 8, sized(1024, 64), sized(32, 2)
    actor = halved(layered(seen, width, moves))
    critics = nn.ModuleList(halved(layered(seen + moves, width, 1)) for _ in range(2))
    slow = copy.deepcopy(critics).requires_grad_(False)
    acting, judging = adamw(actor), adamw(critics)
    size = sized(32_768, 64)
    moments = (noise(size, seen), noise(size, moves), noise(size, 1), noise(size, seen))
    memory = (Memory if faulty else Ring)((*moments, torch.ones_like(moments[2])))
    world, state = noise(seen + moves, seen) / 8, noise(arms, seen)
    batch, numbers = sized(2048, 8), itertools.count()
    history: list[float] = []

    def live() -> None:
        with torch.no_grad():
            action = (actor(state).tanh() + 0.1 * torch.randn_like(state[:, :moves])).clamp(-1, 1)
            then = torch.tanh(torch.cat([state, action], -1) @ world)
            reward = -then[:, :3].norm(dim=-1, keepdim=True)
            memory.add((state.clone(), action, reward, then, torch.ones_like(reward)))
            state.copy_(then)

    def step() -> Tensor:
        live()
        before, action, reward, after, going = memory.draw(batch)
        with torch.no_grad():
            ahead = torch.cat([after, actor(after).tanh()], -1)
            goal = reward + 0.99 * going * torch.minimum(slow[0](ahead), slow[1](ahead))
        known = torch.cat([before, action], -1)
        loss = sum(functional.mse_loss(critic(known), goal) for critic in critics)
        loss.backward()
        judging.step()
        judging.zero_grad()
        worth = -critics[0](torch.cat([before, actor(before).tanh()], -1)).mean()
        worth.backward(inputs=list(actor.parameters()))
        acting.step()
        acting.zero_grad()
        with torch.no_grad():
            torch._foreach_lerp_(list(slow.parameters()), list(critics.parameters()), 0.005)
        if next(numbers) % LOG_EVERY == LOG_EVERY - 1:
            history.append(loss.item())
        return loss.detach()

    return step


# ---------------------------------------------------------------- a power grid


class Meters(nn.Module):
    """A linear layer of its own for every meter."""

    def __init__(self, meters: int, past: int, future: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(past, future) for _ in range(meters))

    def forward(self, x: Tensor) -> Tensor:
        """The future of each meter from its past."""
        return torch.stack([layer(x[:, number]) for number, layer in enumerate(self.layers)], 1)


class MetersTogether(nn.Module):
    """A linear layer of its own for every meter, the weights of all in one tensor."""

    def __init__(self, meters: int, past: int, future: int) -> None:
        super().__init__()
        self.weight = nn.Parameter((torch.rand(meters, past, future) * 2 - 1) / past**0.5)
        self.bias = nn.Parameter(torch.zeros(meters, 1, future))

    def forward(self, x: Tensor) -> Tensor:
        """The future of each meter from its past."""
        return torch.baddbmm(self.bias, x.transpose(0, 1), self.weight).transpose(0, 1)


@pair(
    "loop-over-channels",
    "A forecaster with weights for each of 256 meters calls 512 small linear layers one after the other.",
    "The weights of all meters in one tensor, and one batched product (torch.baddbmm or einsum).",
)
def fifteenth_load_forecaster(faulty: bool) -> Step:
    """The load of a power grid is told for a month ahead, from its trend and its daily swings (DLinear)."""
    meters, past, future, rows = sized(256, 4), sized(720, 48), sized(720, 24), sized(512, 4)
    kind = Meters if faulty else MetersTogether
    with torch.device(DEVICE):
        swings, trend = kind(meters, past, future), kind(meters, past, future)
    model = nn.ModuleList([swings, trend]).to(HALF)
    before, after = noise(rows, meters, past), noise(rows, meters, future)
    optimizer, numbers = adamw(model), itertools.count()
    losses: list[float] = []

    def step() -> Tensor:
        level = before.mean(-1, keepdim=True)
        flat = before - level
        slow = functional.avg_pool1d(functional.pad(flat, (12, 12), mode="replicate"), 25, stride=1)
        told = swings(flat - slow) + trend(slow) + level
        loss = functional.mse_loss(told, after)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if next(numbers) % LOG_EVERY == LOG_EVERY - 1:
            losses.append(loss.item())
        return loss.detach()

    return step
