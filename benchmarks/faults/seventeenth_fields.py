"""Programs of other fields: a walking robot, porous rock, bonds in crystals and the weather on a coast."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import numpy as np
import torch
from benchmarks.faults.library_models import autocast, noise
from benchmarks.faults.models import DEVICE, Block, adamw, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional

LOG_EVERY = 50


def critic(inside: int, width: int) -> nn.Sequential:
    """Tells what an action is worth."""
    return nn.Sequential(
        nn.Linear(inside, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)
    )


class Critics(nn.Module):
    """Several critics, each with its own opinion: a list of networks, or networks laid on one another."""

    def __init__(self, count: int, inside: int, width: int, *, listed: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        critics = [critic(inside, width) for _ in range(count)]
        self.listed = nn.ModuleList(critics if listed else [])
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for layer in () if listed else (0, 2, 4):
            parts: list[Any] = [one[layer] for one in critics]
            self.weights.append(torch.stack([part.weight.detach().T for part in parts]))
            self.biases.append(torch.stack([part.bias.detach()[None] for part in parts]))

    def forward(self, x: Tensor) -> Tensor:
        """The opinions of all critics, one row for each."""
        if self.listed:
            return torch.stack([one(x).squeeze(-1) for one in self.listed])
        x = x.expand(len(self.weights[0]), *x.shape)
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(bias, torch.relu(x) if layer else x, weight)
        return x.squeeze(-1)


@pair(
    "critics-called-one-after-the-other",
    "Ten small critics are kept in a ModuleList and called in turn: ten times the kernels forward and"
    " backward, each far too small for the device.",
    "Stack the weights of all critics and compute each layer of all of them by one batched product.",
)
def seventeenth_walking_dog(faulty: bool) -> Step:
    """A robot dog learns what its actions are worth by ten critics, with eight updates for each move."""
    count, width, seen, acts = 10, sized(256, 16), sized(48, 8), sized(12, 2)
    critics = Critics(count, seen + acts, width, listed=faulty).to(DEVICE)
    slow = Critics(count, seen + acts, width, listed=faulty).to(DEVICE).requires_grad_(False)
    actor = nn.Sequential(nn.Linear(seen, width), nn.ReLU(), nn.Linear(width, acts), nn.Tanh()).to(DEVICE)
    optimizer = adamw(critics)
    kept, rows = sized(100_000, 64), sized(256, 8)
    before, after = noise(kept, seen, dtype=torch.float32), noise(kept, seen, dtype=torch.float32)
    acted, reward = noise(kept, acts, dtype=torch.float32).tanh(), noise(kept, dtype=torch.float32)
    fast_weights, slow_weights = list(critics.parameters()), list(slow.parameters())

    def update() -> Tensor:
        drawn = torch.randint(0, kept, (rows,), device=DEVICE)
        with torch.no_grad():
            next_seen = after[drawn]
            hoped = slow(torch.cat([next_seen, actor(next_seen)], 1))[:2].amin(0)
            target = reward[drawn] + 0.99 * hoped
        guesses = critics(torch.cat([before[drawn], acted[drawn]], 1))
        loss = (guesses - target).square().mean(1).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            torch._foreach_lerp_(slow_weights, fast_weights, 0.005)
        return loss.detach()

    def step() -> Tensor:
        return torch.stack([update() for _ in range(sized(8, 2))]).mean()

    return step


class Spectral(nn.Module):
    """Mixes the long waves of a field, and its points one by one."""

    def __init__(self, width: int, waves: int) -> None:
        super().__init__()
        self.waves = waves
        self.mix = nn.Parameter(torch.randn(2, width, width, waves, waves, 2) / width)
        self.point = nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Keeps the size of the field."""
        high, wide = x.shape[-2:]
        heard = torch.fft.rfft2(x)
        mix = torch.view_as_complex(self.mix)
        low = torch.einsum("bixy,ioxy->boxy", heard[:, :, : self.waves, : self.waves], mix[0])
        top = torch.einsum("bixy,ioxy->boxy", heard[:, :, -self.waves :, : self.waves], mix[1])
        between = low.new_zeros(*low.shape[:2], high - 2 * self.waves, self.waves)
        waves = functional.pad(torch.cat([low, between, top], 2), (0, wide // 2 + 1 - self.waves))
        return functional.gelu(torch.fft.irfft2(waves, s=(high, wide)) + self.point(x))


@pair(
    "model-made-double-for-numpy-data",
    "The fields come out of numpy in float64, and the model was made double to fit them: twice the memory"
    " is moved in every kernel, and transforms, convolutions and the GELU are much slower in float64.",
    "Make the data float32 when it is read, and leave the model as it is built.",
)
def seventeenth_porous_rock(faulty: bool) -> Step:
    """A Fourier neural operator learns how water flows through porous rock."""
    rows, side, width = sized(16, 2), sized(128, 16), sized(64, 4)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, width, 1), *(Spectral(width, sized(16, 3)) for _ in range(4)), nn.Conv2d(width, 1, 1)
    ).to(DEVICE)
    random = np.random.default_rng(0)
    rock = torch.from_numpy(random.standard_normal((rows, 1, side, side))).to(DEVICE)
    flow = torch.from_numpy(random.standard_normal((rows, 1, side, side))).to(DEVICE)
    if faulty:
        model.double()
    else:
        rock, flow = rock.float(), flow.float()
    optimizer = adamw(model)
    numbers = itertools.count()
    losses: list[float] = []

    def step() -> Tensor:
        guess = model(rock)
        loss = ((guess - flow).flatten(1).norm(dim=1) / flow.flatten(1).norm(dim=1)).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if next(numbers) % LOG_EVERY == LOG_EVERY - 1:
            losses.append(loss.item())
        return loss.detach()

    return step


class Neighbours(nn.Module):
    """Attention between the atoms of a crystal that is scored from both atoms of a pair."""

    def __init__(self, width: int, *, paired: bool) -> None:
        super().__init__()
        self.paired = paired
        self.change = nn.Linear(width, width)
        self.score = nn.Linear(2 * width, 1, bias=False)
        self.norm = nn.LayerNorm(width)

    def forward(self, atoms: Tensor, bonds: Tensor) -> Tensor:
        """What each atom hears from those that it is bound to."""
        changed = self.change(self.norm(atoms))
        count, width = changed.shape[1:]
        if self.paired:
            ours = changed[:, :, None].repeat(1, 1, count, 1)
            theirs = changed[:, None].repeat(1, count, 1, 1)
            scores = self.score(torch.cat([ours, theirs], -1)).squeeze(-1)
        else:
            ours, theirs = (changed @ self.score.weight.view(2, width).T).unbind(-1)
            scores = ours[:, :, None] + theirs[:, None]
        scores = functional.leaky_relu(scores, 0.2).masked_fill(~bonds, -1e4)
        return atoms + functional.elu(scores.softmax(-1) @ changed)


@pair(
    "all-pairs-written-out-for-a-linear-layer",
    "The features of both atoms are repeated and joined for all pairs of atoms, only to be put through a"
    " linear layer: gigabytes are written and read for what is a sum of two small products.",
    "Split the layer in two halves, apply each to the atoms, and add the results by broadcasting.",
)
def seventeenth_crystal_hardness(faulty: bool) -> Step:
    """Graph attention over the atoms of crystals learns how hard they are."""
    width, rows, atoms = sized(128, 8), sized(32, 2), sized(160, 6)
    torch.manual_seed(0)
    layers = nn.ModuleList(Neighbours(width, paired=faulty) for _ in range(3)).to(DEVICE)
    kinds, head = nn.Embedding(100, width).to(DEVICE), nn.Linear(width, 1).to(DEVICE)
    optimizer = adamw(nn.ModuleList([kinds, layers, head]))
    crystal = torch.randint(0, 100, (rows, atoms), device=DEVICE)
    bonds = torch.rand(rows, atoms, atoms, device=DEVICE).lt(0.1) | torch.eye(atoms, device=DEVICE).bool()
    hardness = noise(rows, dtype=torch.float32)

    def step() -> Tensor:
        x = kinds(crystal)
        for layer in layers:
            x = layer(x, bonds)
        loss = functional.mse_loss(head(x.mean(1)).squeeze(-1), hardness)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def check(name: str, x: Tensor) -> None:
    """Stops the run where a number is not finite."""
    if not torch.isfinite(x).all():
        raise FloatingPointError(f"{name} is not finite")


def watch(model: nn.Module) -> None:
    """Checks what each layer of the model gives."""

    def hook(name: str, _layer: nn.Module, _given: Any, out: Tensor) -> None:
        check(name, out)

    for name, layer in model.named_modules():
        layer.register_forward_hook(partial(hook, name))


@pair(
    "finite-checks-in-forward-hooks",
    "Forward hooks that look for NaN and infinity were left on every layer after debugging. Each reads the"
    " whole output and waits for the answer of the device, so that Python never gets ahead of it.",
    "Register the hooks only to debug; otherwise look at the loss every fifty steps.",
)
def seventeenth_coast_weather(faulty: bool) -> Step:
    """A transformer over the stations of a coast learns tomorrow's weather."""
    width, layers = sized(512, 64), sized(16, 2)
    torch.manual_seed(0)
    first, last = nn.Linear(24, width), nn.Linear(width, 24)
    blocks = nn.ModuleList(Block(width, max(1, width // 64), 4 * width) for _ in range(layers))
    model = nn.ModuleList([first, blocks, last]).to(DEVICE)
    if faulty:
        watch(model)
    optimizer = adamw(model)
    today = noise(sized(16, 2), sized(256, 8), 24, dtype=torch.float32)
    tomorrow = torch.randn_like(today)
    numbers = itertools.count()

    def step() -> Tensor:
        with autocast():
            x = first(today)
            for block in blocks:
                x = block(x)
            loss = functional.mse_loss(last(x).float(), tomorrow)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if next(numbers) % LOG_EVERY == LOG_EVERY - 1:
            check("the loss", loss.detach())
        return loss.detach()

    return step
