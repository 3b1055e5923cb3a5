"""Training in several fields: codes of sounds, currents of the ocean, a racing drone and advertisements."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import numpy as np
import torch
from benchmarks.faults.library_models import autocast, noise, tokens
from benchmarks.faults.models import DEVICE, adamw, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional

# ---------------------------------------------------------------- codes of sounds


class Quantiser(nn.Module):
    """Chooses codes by chance, with a temperature that falls as training goes on."""

    seen: int | Tensor

    def __init__(self, width: int, groups: int, codes: int, *, plain: bool) -> None:
        super().__init__()
        self.groups = groups
        self.scores = nn.Linear(width, groups * codes)
        self.book = nn.Parameter(torch.randn(groups, codes, width // groups) * 0.02)
        if plain:
            self.seen = 0
        else:
            self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The vectors of the chosen codes, and how unevenly codes are used."""
        self.seen += 1
        heat = 0.5 + 1.5 * 0.9999**self.seen
        scores = self.scores(x).float().unflatten(-1, (self.groups, -1))
        spread = -torch.log(-torch.log(torch.rand_like(scores).clamp(1e-9, 1 - 1e-7)))
        soft = torch.softmax((scores + spread) / heat, -1)
        chances = torch.softmax(scores, -1)
        certain = (chances * torch.log(chances + 1e-9)).sum(-1).mean()
        used = chances.mean((0, 1))
        uneven = (used * torch.log(used + 1e-9)).sum(-1).mean()
        vectors = torch.einsum("btgc,gcd->btgd", soft.to(x.dtype), self.book.to(x.dtype))
        return vectors.flatten(-2), uneven - 0.1 * certain


class SongCoder(nn.Module):
    """Turns spectra into codes and back."""

    def __init__(self, bands: int, width: int, quantiser: Any) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(bands, width), nn.GELU(), nn.Linear(width, width))
        self.quantiser = quantiser
        self.decoder = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, bands))

    def forward(self, spectra: Tensor) -> Tensor:
        """The loss."""
        vectors, uneven = self.quantiser(self.encoder(spectra))
        return functional.l1_loss(self.decoder(vectors).float(), spectra) + 0.01 * uneven


@pair(
    "compiled-again-as-a-counter-grows",
    "A compiled quantiser keeps its temperature by an integer attribute, compiles anew until it gives up.",
    "The counter is a buffer: one graph for all of training.",
)
def twentysixth_songbird_codes(faulty: bool) -> Step:
    """Codes for the songs of birds are learnt."""
    bands, width = sized(80, 8), sized(512, 16)
    quantiser = Quantiser(width, sized(4, 2), sized(2048, 16), plain=faulty)
    compiled = torch.compile(quantiser, backend="inductor" if DEVICE == "cuda" else "eager")
    model = SongCoder(bands, width, compiled).to(DEVICE)
    optimizer = adamw(model)
    spectra = noise(sized(32, 2), sized(1500, 8), bands, dtype=torch.float32)

    def step() -> None:
        with autocast():
            loss = model(spectra)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


# ---------------------------------------------------------------- currents of the ocean


class Spectral(nn.Module):
    """Multiplies the lowest frequencies of a field by learnt weights."""

    def __init__(self, width: int, kept: int) -> None:
        super().__init__()
        self.kept = kept
        self.weight = nn.Parameter(torch.randn(2, kept, kept, width, 2) / width)

    def forward(self, x: Tensor) -> Tensor:
        """The same shape, in fp32."""
        _, high, wide, _ = x.shape
        spectrum = torch.fft.rfft2(x, dim=(1, 2), norm="ortho")
        weight = torch.view_as_complex(self.weight)
        mixed = torch.zeros_like(spectrum)
        mixed[:, : self.kept, : self.kept] = spectrum[:, : self.kept, : self.kept] * weight[0]
        mixed[:, -self.kept :, : self.kept] = spectrum[:, -self.kept :, : self.kept] * weight[1]
        return torch.fft.irfft2(mixed, s=(high, wide), dim=(1, 2), norm="ortho")


class CurrentLayer(nn.Module):
    """A mixing of frequencies and two linear layers."""

    def __init__(self, width: int, kept: int, *, guarded: bool) -> None:
        super().__init__()
        self.guarded = guarded
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.spectral = Spectral(width, kept)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def mixed(self, x: Tensor) -> Tensor:
        """What the frequencies add; torch.fft knows no bf16."""
        with torch.autocast(DEVICE, enabled=False):
            return x + self.spectral(self.norms[0](x.float()))

    def forward(self, x: Tensor) -> Tensor:
        """The same shape."""
        if not self.guarded:
            x = self.mixed(x)
            return x + self.feed(self.norms[1](x))
        with torch.autocast(DEVICE, enabled=False):
            x = self.mixed(x.float())
            return x + self.feed(self.norms[1](x))


class Ocean(nn.Module):
    """A step of six hours of the currents."""

    def __init__(self, fields: int, width: int, layers: int, kept: int, *, guarded: bool) -> None:
        super().__init__()
        self.lift = nn.Linear(fields, width)
        self.layers = nn.Sequential(*(CurrentLayer(width, kept, guarded=guarded) for _ in range(layers)))
        self.lower = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, fields))

    def forward(self, x: Tensor) -> Tensor:
        """The fields six hours later."""
        return x + self.lower(self.layers(self.lift(x)))


@pair(
    "autocast-switched-off-too-widely",
    "The guard against bf16 in the Fourier transform covers the linear layers of every block too: fp32.",
    "Only the transform runs in fp32.",
)
def twentysixth_ocean_currents(faulty: bool) -> Step:
    """Currents of the ocean are forecast."""
    rows, high, wide, fields = sized(4, 1), sized(128, 16), sized(256, 16), 9
    model = Ocean(fields, sized(256, 16), sized(6, 1), sized(32, 4), guarded=faulty).to(DEVICE)
    optimizer = adamw(model, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 80_000)
    now, later = (noise(rows, high, wide, fields, dtype=torch.float32) for _ in range(2))
    latitude = torch.linspace(-1.5, 1.5, high, device=DEVICE).cos()[:, None, None]

    def step() -> None:
        with autocast():
            forecast = model(now)
        loss = (latitude * (forecast.float() - later).square()).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()

    return step


# ---------------------------------------------------------------- a racing drone

Moments = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


class Memory:
    """What the drone has lived through, as a queue."""

    def __init__(self, room: int) -> None:
        self.moments: deque[tuple[Any, ...]] = deque(maxlen=room)

    def add(self, seen: Any, done: Any, gained: Any, after: Any, over: Any) -> None:
        """Keeps moments of several drones."""
        self.moments.extend(zip(seen, done, gained, after, over, strict=True))

    def sample(self, count: int) -> Moments:
        """Moments drawn by chance, on the device."""
        drawn = random.sample(self.moments, count)
        seen, done, gained, after, over = (
            torch.as_tensor(np.stack(part), dtype=torch.float32).to(DEVICE)
            for part in zip(*drawn, strict=True)
        )
        return seen, done, gained, after, over


class Ring:
    """What the drone has lived through, as tensors that are filled in turn."""

    def __init__(self, room: int, seen: int, actions: int) -> None:
        sizes = (seen, actions, 0, seen, 0)
        self.parts = [torch.zeros((room, size) if size else (room,), device=DEVICE) for size in sizes]
        self.room = room
        self.next = 0
        self.filled = 0

    def add(self, *parts: Any) -> None:
        """Keeps moments of several drones."""
        count = len(parts[0])
        places = torch.arange(self.next, self.next + count, device=DEVICE) % self.room
        for kept, part in zip(self.parts, parts, strict=True):
            kept[places] = torch.as_tensor(part, dtype=torch.float32).to(DEVICE)
        self.next = (self.next + count) % self.room
        self.filled = min(self.room, self.filled + count)

    def sample(self, count: int) -> Moments:
        """Moments drawn by chance, on the device."""
        places = torch.randint(self.filled, (count,), device=DEVICE)
        seen, done, gained, after, over = (part[places] for part in self.parts)
        return seen, done, gained, after, over


def flown(generator: np.random.Generator, count: int, seen: int, actions: int) -> tuple[Any, ...]:
    """Moments as the simulator hands them out."""
    return (
        generator.standard_normal((count, seen), dtype=np.float32),
        generator.uniform(-1, 1, (count, actions)).astype(np.float32),
        generator.standard_normal(count, dtype=np.float32),
        generator.standard_normal((count, seen), dtype=np.float32),
        (generator.random(count) < 0.01).astype(np.float32),
    )


def perceptron(inside: int, width: int, outside: int) -> nn.Module:
    """Three linear layers."""
    return nn.Sequential(
        nn.Linear(inside, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, outside)
    )


@pair(
    "replay-memory-of-python-objects",
    "Moments are kept in a deque of tuples, drawn one by one from its middle and stacked on the host.",
    "A ring of tensors on the device, drawn from by an index.",
)
def twentysixth_drone_racer(faulty: bool) -> Step:
    """A drone learns to race through gates."""
    seen, actions, width, room = 48, 4, sized(512, 16), sized(300_000, 500)
    generator = np.random.default_rng(5)
    memory: Memory | Ring = Memory(room) if faulty else Ring(room, seen, actions)
    memory.add(*flown(generator, room, seen, actions))
    actor = perceptron(seen, width, actions).to(DEVICE)
    critic = perceptron(seen + actions, width, 1).to(DEVICE)
    target = perceptron(seen + actions, width, 1).to(DEVICE).requires_grad_(requires_grad=False)
    target.load_state_dict(critic.state_dict())
    improve_actor, improve_critic = adamw(actor), adamw(critic)

    def update() -> None:
        now, done, gained, after, over = memory.sample(sized(1024, 8))
        with torch.no_grad():
            moved = (actor(after).tanh() + 0.1 * torch.randn_like(done)).clamp(-1, 1)
            aim = gained + 0.99 * (1 - over) * target(torch.cat([after, moved], 1))[:, 0]
        loss = functional.mse_loss(critic(torch.cat([now, done], 1))[:, 0], aim)
        improve_critic.zero_grad()
        loss.backward()
        improve_critic.step()
        worth = critic(torch.cat([now, actor(now).tanh()], 1)).mean()
        improve_actor.zero_grad()
        (-worth).backward()
        improve_actor.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(target.parameters()), list(critic.parameters()), 0.005)

    def step() -> None:
        memory.add(*flown(generator, sized(32, 4), seen, actions))
        for _ in range(4):
            update()

    return step


# ---------------------------------------------------------------- advertisements


class AdRanker(nn.Module):
    """Large tables of what is known by name, and a network of what they say."""

    def __init__(self, tables: int, names: int, width: int, numbers: int, *, sparse: bool) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(names, width, sparse=sparse) for _ in range(tables))
        self.numbers = nn.Sequential(nn.Linear(numbers, 256), nn.ReLU(), nn.Linear(256, width))
        self.top = nn.Sequential(
            nn.Linear((tables + 1) * width + (tables + 1) * tables // 2, 1024),
            nn.ReLU(),
            nn.Linear(1024, 512),
            nn.ReLU(),
            nn.Linear(512, 1),
        )
        rows, columns = torch.tril_indices(tables + 1, tables + 1, -1)
        self.register_buffer("pairs", rows * (tables + 1) + columns)

    def forward(self, names: Tensor, numbers: Tensor) -> Tensor:
        """The logit of a click."""
        parts = [table(names[:, place]) for place, table in enumerate(self.tables)]
        known = torch.stack([*parts, self.numbers(numbers)], 1)
        crossed = (known @ known.transpose(1, 2)).flatten(1).index_select(1, self.pairs)
        return self.top(torch.cat([known.flatten(1), crossed], 1))[:, 0]


@pair(
    "dense-gradients-of-large-tables",
    "Every step writes gradients of all rows of eight large tables, and Adam goes over all of them.",
    "Sparse gradients and SparseAdam: only the rows of the batch are touched.",
)
def twentysixth_ad_auction(faulty: bool) -> Step:
    """Clicks on advertisements are foretold."""
    tables, names, rows, numbers = 8, sized(4_000_000, 200), sized(16_384, 4), 13
    with torch.device(DEVICE):
        model = AdRanker(tables, names, sized(64, 8), numbers, sparse=not faulty)
    large = list(model.tables.parameters())
    small = [*model.numbers.parameters(), *model.top.parameters()]
    if faulty:
        optimizers: list[torch.optim.Optimizer] = [torch.optim.Adam([*large, *small], lr=1e-3, fused=True)]
    else:
        optimizers = [torch.optim.SparseAdam(large, lr=1e-3), torch.optim.Adam(small, lr=1e-3, fused=True)]
    shown = (torch.rand(rows, tables, device=DEVICE).pow(3) * names).long()
    measured = noise(rows, numbers, dtype=torch.float32)
    clicked = tokens(2, rows).float()

    def step() -> None:
        with autocast():
            scores = model(shown, measured)
        loss = functional.binary_cross_entropy_with_logits(scores.float(), clicked)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()

    return step
