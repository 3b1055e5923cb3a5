"""Programs that live on their data: windows of brain waves, wind turbines and photos of cattle."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import torch
from benchmarks.faults.library_models import autocast
from benchmarks.faults.models import DEVICE, ResNet, adamw, on_images, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

LOG_EVERY = 50
ON_GPU = DEVICE == "cuda"

Item = tuple[Tensor, Tensor]


def forever(loader: DataLoader[Item]) -> Iterator[list[Tensor]]:
    """Batches of one epoch after the other."""
    while True:
        yield from loader


class Windows(Dataset[Item]):
    """Pieces of one long recording, each with what the sleeper was doing."""

    def __init__(self, count: int, channels: int, length: int, device: str | None) -> None:
        random = np.random.default_rng(0)
        self.waves = random.standard_normal((channels, 16 * count + length), dtype=np.float32)
        self.stages = random.integers(0, 5, count)
        self.length, self.device = length, device

    def __len__(self) -> int:
        return len(self.stages)

    def __getitem__(self, index: int) -> Item:
        wave = torch.tensor(self.waves[:, 16 * index : 16 * index + self.length])
        stage = torch.tensor(self.stages[index])
        if self.device is not None:
            return wave.to(self.device), stage.to(self.device)
        return wave, stage


class Sleeper(nn.Module):
    """Convolutions over time and a recurrent layer."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(channels, width, 9, padding=4),
            nn.GELU(),
            nn.Conv1d(width, 2 * width, 9, stride=2, padding=4),
            nn.GELU(),
            nn.Conv1d(2 * width, 2 * width, 9, stride=2, padding=4),
            nn.GELU(),
        )
        self.memory = nn.GRU(2 * width, width, batch_first=True)
        self.head = nn.Linear(width, 5)

    def forward(self, waves: Tensor) -> Tensor:
        """Scores of the stages of sleep."""
        after, _ = self.memory(self.body(waves).transpose(1, 2))
        return self.head(after[:, -1])


@pair(
    "samples-moved-one-by-one",
    "__getitem__ puts each sample on the device itself, so that a batch takes hundreds of tiny copies, each"
    " waiting for the device, and is stacked there.",
    "Return tensors of the host, let the loader stack them in pinned memory, and move the whole batch.",
)
def seventeenth_sleep_lab(faulty: bool) -> Step:
    """A network learns the stages of sleep from windows of brain waves."""
    channels, length, rows = sized(8, 2), sized(256, 32), sized(256, 4)
    data = Windows(sized(64, 4) * rows, channels, length, DEVICE if faulty else None)
    loader = DataLoader(data, batch_size=rows, shuffle=True, drop_last=True, pin_memory=ON_GPU and not faulty)
    model = Sleeper(channels, sized(128, 8)).to(DEVICE)
    optimizer = adamw(model)
    batches, numbers = forever(loader), itertools.count()
    losses: list[float] = []

    def step() -> Tensor:
        waves, stages = (part.to(DEVICE, non_blocking=True) for part in next(batches))
        loss = functional.cross_entropy(model(waves), stages)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if next(numbers) % LOG_EVERY == LOG_EVERY - 1:
            losses.append(loss.item())
        return loss.detach()

    return step


class Turbines(Dataset[Item]):
    """A few hundred hours of turbines: each is smoothed and put on one scale when it is read."""

    def __init__(self, count: int, length: int) -> None:
        random = np.random.default_rng(0)
        self.hours = random.standard_normal((count, length)).astype(np.float32)
        self.power = random.random((count, 1), dtype=np.float32)

    def __len__(self) -> int:
        return len(self.hours)

    def __getitem__(self, index: int) -> Item:
        hour = np.convolve(self.hours[index], np.full(9, 1 / 9, np.float32), "same")
        hour = (hour - hour.mean()) / (hour.std() + 1e-6)
        return torch.from_numpy(hour), torch.from_numpy(self.power[index])


@pair(
    "workers-started-every-epoch",
    "The dataset is small and an epoch is short, but the loader ends its workers after each epoch and"
    " starts them anew for the next, with the device waiting for them.",
    "DataLoader(..., persistent_workers=True).",
)
def seventeenth_wind_farm(faulty: bool) -> Step:
    """One short epoch of learning what a turbine will give from an hour of its sensors."""
    length, rows, workers = sized(4096, 32), sized(64, 4), sized(4, 1)
    loader = DataLoader(
        Turbines(16 * rows if ON_GPU else 2 * rows, length),
        batch_size=rows,
        shuffle=True,
        num_workers=workers,
        pin_memory=ON_GPU,
        persistent_workers=not faulty,
    )
    width = sized(4096, 32)
    model = nn.Sequential(
        nn.Linear(length, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 1)
    ).to(DEVICE)
    optimizer = adamw(model)
    losses: list[float] = []

    def step() -> float:
        total = torch.zeros((), device=DEVICE)
        for batch in loader:
            hours, power = (part.to(DEVICE, non_blocking=True) for part in batch)
            with autocast():
                guess = model(hours)
            loss = functional.mse_loss(guess.float(), power)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            total += loss.detach()
        losses.append(total.item() / len(loader))
        return losses[-1]

    return step


MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def scaled(photos: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Bytes of photos as the network wants them: channels first, each with mean nought and scale one."""
    return (photos.permute(0, 3, 1, 2).float() / 255 - mean) / std


@pair(
    "photos-scaled-on-the-host",
    "The photos are made float and normalized by the processor, and only then copied: several passes over"
    " the whole batch in slow memory, and four bytes over the bus in place of one, from pageable memory.",
    "Copy the bytes from pinned memory and normalize them on the device.",
)
def seventeenth_cattle_watch(faulty: bool) -> Step:
    """A network learns to tell cattle apart by their photos."""
    rows, side = sized(256, 2), sized(192, 32)
    model = on_images(ResNet(sized(64, 8)), dtype=torch.float32)
    optimizer = adamw(model)
    home = "cpu" if faulty else DEVICE
    mean, std = (torch.tensor(value, device=home).view(3, 1, 1) for value in (MEAN, STD))
    herds = [torch.randint(0, 256, (rows, side, side, 3), dtype=torch.uint8) for _ in range(3)]
    names = [torch.randint(0, 128, (rows,)) for _ in range(3)]
    if not faulty and ON_GPU:
        herds = [herd.pin_memory() for herd in herds]
        names = [name.pin_memory() for name in names]
    ahead, numbers = itertools.cycle(zip(herds, names, strict=True)), itertools.count()
    losses: list[float] = []

    def step() -> Tensor:
        herd, name = next(ahead)
        if faulty:
            photos = scaled(herd, mean, std).to(DEVICE)
        else:
            photos = scaled(herd.to(DEVICE, non_blocking=True), mean, std)
        with autocast():
            scores = model(photos.contiguous(memory_format=torch.channels_last))
            loss = functional.cross_entropy(scores, name.to(DEVICE, non_blocking=True))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if next(numbers) % LOG_EVERY == LOG_EVERY - 1:
            losses.append(loss.item())
        return loss.detach()

    return step
