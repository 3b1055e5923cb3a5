"""Programs with nothing worth mending: two that only look so, and one that is well tuned."""

from __future__ import annotations

import itertools
import math

import torch
from benchmarks.faults.library_models import halved
from benchmarks.faults.models import (
    DEVICE,
    HALF,
    Block,
    UNet,
    adamw,
    images,
    on_images,
    pinned,
    sized,
)
from benchmarks.faults.registry import Step, healthy, pair
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, RandomSampler

LOG_EVERY = 50


@pair(
    "loss-read-every-step",
    "The loss and the norm of the gradients are read with .item() in every step, but a step keeps the device"
    " busy for tens of milliseconds and the host is far ahead of it.",
    "Both are kept on the device and read every fiftieth step.",
    kind="fair",
)
def fifteenth_sound_diffuser(faulty: bool) -> Step:
    """A diffusion model learns to make spectrograms of sounds."""
    model = on_images(UNet(sized(128, 8))).train()
    clean = images(64, 128)
    optimizer, numbers = adamw(model), itertools.count()
    sums = torch.zeros(2, device=DEVICE)
    history: list[tuple[float, float]] = []
    speeds = torch.exp(-math.log(10_000) * torch.arange(32, device=DEVICE) / 32)

    def step() -> Tensor:
        time = torch.rand(clean.shape[0], device=DEVICE)
        angles = time[:, None] * 1000 * speeds
        known = torch.cat([angles.cos(), angles.sin()], -1).to(HALF)
        added = torch.randn_like(clean)
        share = torch.cos(time * math.pi / 2).to(HALF)[:, None, None, None]
        mixed = share * clean + (1 - share**2).sqrt() * added
        loss = functional.mse_loss(model(mixed, known).float(), added.float())
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if faulty:
            history.append((loss.item(), norm.item()))
            return loss.detach()
        sums.add_(torch.stack([loss.detach(), norm]))
        if next(numbers) % LOG_EVERY == LOG_EVERY - 1:
            history.append(tuple((sums / LOG_EVERY).tolist()))
            sums.zero_()
        return loss.detach()

    return step


class Windows(Dataset[tuple[Tensor, Tensor]]):
    """Pieces of a long recording of a pump, and what comes right after each."""

    def __init__(self, length: int, sensors: int) -> None:
        self.record = torch.randn(sized(100_000, 500), sensors)
        self.length = length

    def __len__(self) -> int:
        """How many pieces there are."""
        return len(self.record) - self.length - 1

    def __getitem__(self, place: int) -> tuple[Tensor, Tensor]:
        """The piece that begins here."""
        end = place + self.length
        return self.record[place:end], self.record[place + 1 : end + 1]


@pair(
    "no-loader-workers",
    "The DataLoader has no workers and cuts its windows in the main process, but that takes a millisecond"
    " or two while the device is busy for tens with the step before.",
    "num_workers=2 with persistent_workers=True.",
    kind="fair",
)
def fifteenth_pump_watcher(faulty: bool) -> Step:
    """A transformer learns what the sensors of a pump will say next, to notice when they do not."""
    width, sensors, length, rows = sized(1024, 64), sized(32, 4), sized(512, 16), sized(64, 2)
    with torch.device(DEVICE):
        layers = [Block(width, max(1, width // 64), 4 * width) for _ in range(sized(6, 1))]
        model = nn.Sequential(nn.Linear(sensors, width), *layers, nn.LayerNorm(width))
        model.append(nn.Linear(width, sensors))
    model = halved(model).train()
    windows = Windows(length, sensors)
    workers = {} if faulty else {"num_workers": 2, "persistent_workers": True}
    loader = DataLoader(
        windows,
        batch_size=rows,
        sampler=RandomSampler(windows, replacement=True, num_samples=10_000_000),
        pin_memory=DEVICE == "cuda",
        **workers,
    )
    batches, numbers, optimizer = iter(loader), itertools.count(), adamw(model)
    losses: list[float] = []

    def step() -> Tensor:
        seen, after = (part.to(DEVICE, non_blocking=True).to(HALF) for part in next(batches))
        loss = functional.mse_loss(model(seen), after)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if next(numbers) % LOG_EVERY == LOG_EVERY - 1:
            losses.append(loss.item())
        return loss.detach()

    return step


class Tower(nn.Module):
    """A transformer that makes one vector of a row of parts."""

    def __init__(self, first: nn.Module, length: int, width: int, layers: int, outside: int) -> None:
        super().__init__()
        self.first = first
        self.places = nn.Parameter(torch.randn(length, width) / 50)
        self.layers = nn.ModuleList(Block(width, max(1, width // 128), 4 * width) for _ in range(layers))
        self.last = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, outside, bias=False))

    def forward(self, parts: Tensor) -> Tensor:
        """A vector of length one for each row."""
        x = self.first(parts) + self.places
        for layer in self.layers:
            x = layer(x)
        return functional.normalize(self.last(x[:, -1]).float(), dim=-1)


@healthy("Bf16, flash attention, fused AdamW, pinned uint8 photos copied without waiting, a rare log.")
def fifteenth_photo_captions() -> Step:
    """Photos and their captions are brought together by two towers (CLIP)."""
    rows, side, patch, length = sized(256, 4), sized(128, 32), 16, sized(32, 8)
    width, layers, known = sized(2048, 64), sized(4, 1), sized(16_384, 128)
    with torch.device(DEVICE):
        eye = Tower(nn.Linear(3 * patch**2, width), (side // patch) ** 2, width, layers, sized(512, 16))
        ear = Tower(nn.Embedding(known, width), length, width, layers, sized(512, 16))
        warmth = nn.Parameter(torch.tensor(2.6))
    model = nn.ModuleList([eye, ear]).to(HALF)
    optimizer = torch.optim.AdamW([*model.parameters(), warmth], lr=1e-4, fused=True)
    photos = pinned(torch.randint(0, 256, (rows, 3, side, side), dtype=torch.uint8))
    captions = pinned(torch.randint(0, known, (rows, length)))
    truth, numbers = torch.arange(rows, device=DEVICE), itertools.count()
    losses: list[float] = []

    def step() -> Tensor:
        seen = photos.to(DEVICE, non_blocking=True).to(HALF).div_(127.5).sub_(1)
        seen = functional.pixel_unshuffle(seen, patch).flatten(2).transpose(1, 2)
        told = captions.to(DEVICE, non_blocking=True)
        scores = eye(seen) @ ear(told).T * warmth.exp()
        loss = functional.cross_entropy(scores, truth) + functional.cross_entropy(scores.T, truth)
        loss.backward()
        nn.utils.clip_grad_norm_([*model.parameters(), warmth], 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if next(numbers) % LOG_EVERY == LOG_EVERY - 1:
            losses.append(loss.item())
        return loss.detach()

    return step
