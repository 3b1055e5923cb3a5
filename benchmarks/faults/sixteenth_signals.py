"""Models of what is measured over time: one renders voices, one foresees traffic and one tracks storms."""

from __future__ import annotations

import itertools
import logging
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import torch
from benchmarks.faults.library_models import autocast, noise
from benchmarks.faults.models import DEVICE, HALF, Block, adamw, on_images, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

LOG_EVERY = 50
LOG = logging.getLogger(__name__)
RATE = 24_000
IN_A_FILE = 128
FOLDERS: list[tempfile.TemporaryDirectory[str]] = []
"""Kept until the program ends, which deletes them."""


def mel_filters(size: int, bands: int) -> Tensor:
    """Triangles that gather the frequencies of a spectrum into bands as the ear does."""
    frequencies = np.linspace(0, RATE / 2, size // 2 + 1)
    mels = np.linspace(0, 2595 * np.log10(1 + RATE / 2 / 700), bands + 2)
    edges = 700 * (10 ** (mels / 2595) - 1)
    widths, ramps = np.diff(edges), np.subtract.outer(edges, frequencies)
    filters = np.zeros((bands, len(frequencies)))
    for band in range(bands):
        lower = -ramps[band] / widths[band]
        upper = ramps[band + 2] / widths[band + 1]
        filters[band] = np.maximum(0, np.minimum(lower, upper)) * 2 / (edges[band + 2] - edges[band])
    return torch.from_numpy(filters.astype(np.float32)).to(DEVICE)


@cache
def hann(size: int) -> Tensor:
    """A window that fades in and out."""
    return torch.hann_window(size, device=DEVICE)


def log_mel(sound: Tensor, size: int, bands: int, filters: Callable[[int, int], Tensor]) -> Tensor:
    """The loudness of a sound in every band over time."""
    spectrum = torch.stft(sound, size, size // 4, window=hann(size), return_complex=True).abs()
    return (filters(size, bands) @ spectrum).clamp(min=1e-5).log()


class Renderer(nn.Module):
    """Makes a sound of the bands of a voice: every stage has a finer time."""

    def __init__(self, bands: int, width: int) -> None:
        super().__init__()
        self.first = nn.Conv1d(bands, width, 7, padding=3)
        self.finer = nn.ModuleList(
            nn.ConvTranspose1d(width >> turn, width >> (turn + 1), 8, stride=4, padding=2)
            for turn in range(4)
        )
        self.mixers = nn.ModuleList(
            nn.Conv1d(width >> (turn + 1), width >> (turn + 1), 7, padding=3) for turn in range(4)
        )
        self.last = nn.Conv1d(width >> 4, 1, 7, padding=3)

    def forward(self, x: Tensor) -> Tensor:
        """256 moments of sound for each frame."""
        x = self.first(x)
        for finer, mixer in zip(self.finer, self.mixers, strict=True):
            x = finer(functional.leaky_relu(x, 0.1))
            x = x + mixer(functional.leaky_relu(x, 0.1))
        return torch.tanh(self.last(x)).squeeze(1)


@pair(
    "mel-filters-built-for-every-sound",
    "The filters of the mel spectrograms are constants, but NumPy builds them on the host, and they are"
    " copied to the device, for every sound, size and step.",
    "Build the filters once and keep them on the device (a buffer of the loss, or functools.cache).",
)
def sixteenth_voice_renderer(faulty: bool) -> Step:
    """A vocoder learns to render voices so that their mel spectrograms of four sizes are right."""
    bands, frames = 80, sized(64, 8)
    model = Renderer(bands, sized(512, 32)).to(DEVICE)
    optimizer = adamw(model)
    heard, voice = torch.randn(sized(32, 2), bands, frames, device=DEVICE), noise(sized(32, 2), 256 * frames)
    voice = voice.float().tanh()
    filters = mel_filters if faulty else cache(mel_filters)
    sizes = ((256, 40), (512, 80), (1024, 100), (2048, 128)) if DEVICE == "cuda" else ((256, 40), (512, 80))
    numbers = itertools.count()
    losses: list[float] = []

    def step() -> Tensor:
        with autocast():
            made = model(heard)
        loss = torch.zeros((), device=DEVICE)
        for size, count in sizes:
            want = log_mel(voice, size, count, filters)
            loss = loss + functional.l1_loss(log_mel(made.float(), size, count, filters), want)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if next(numbers) % LOG_EVERY == LOG_EVERY - 1:
            losses.append(loss.item())
        return loss.detach()

    return step


class Forecaster(nn.Module):
    """Foresees the speed on every road of a city from the speeds before."""

    def __init__(self, layers: int, width: int, roads: int, *, eager_text: bool) -> None:
        super().__init__()
        self.eager_text = eager_text
        self.enter = nn.Linear(roads, width)
        self.layers = nn.ModuleList(Block(width, max(1, width // 64), 4 * width) for _ in range(layers))
        self.leave = nn.Linear(width, roads)

    def forward(self, speeds: Tensor) -> Tensor:
        """The speeds of the next moment."""
        x = self.enter(speeds)
        for number, layer in enumerate(self.layers):
            x = layer(x)
            if self.eager_text:
                LOG.debug(f"layer {number} ends with {x[:, -1]}")  # noqa: G004
            else:
                LOG.debug("layer %d ends with %s", number, x[:, -1])
        return self.leave(x)


@pair(
    "debug-messages-made-of-tensors",
    "A debug message in every layer shows the last moment by an f-string, which is made, with copies from"
    " the device and waiting for it, although debug messages are off.",
    'Let logging make the text when it is wanted: LOG.debug("layer %d ends with %s", number, x[:, -1]).',
)
def sixteenth_road_forecaster(faulty: bool) -> Step:
    """A transformer foresees the traffic of a city."""
    roads = sized(512, 16)
    with torch.device(DEVICE):
        model = Forecaster(sized(6, 2), sized(1024, 64), roads, eager_text=faulty).to(HALF)
    optimizer = adamw(model)
    speeds = noise(sized(32, 2), sized(384, 12), roads)
    numbers = itertools.count()
    losses: list[float] = []

    def step() -> Tensor:
        loss = functional.mse_loss(model(speeds[:, :-1]), speeds[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if next(numbers) % LOG_EVERY == LOG_EVERY - 1:
            losses.append(loss.item())
        return loss.detach()

    return step


class Storms(Dataset[tuple[Tensor, Tensor]]):
    """Fields of the air in files of 128, each with the field of an hour later."""

    def __init__(self, folder: Path, files: int, side: int, *, mapped: bool) -> None:
        self.paths = [folder / f"{number}.npy" for number in range(files)]
        self.mapped = mapped
        rng = np.random.default_rng(16)
        for path in self.paths:
            np.save(path, rng.standard_normal((IN_A_FILE, 8, side, side), dtype=np.float32))

    def __len__(self) -> int:
        """Every field but the last of a file has a field of an hour later."""
        return (IN_A_FILE - 1) * len(self.paths)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """A field and the one after it."""
        file, place = divmod(index, IN_A_FILE - 1)
        fields = np.load(self.paths[file], mmap_mode="r" if self.mapped else None)
        now, later = np.array(fields[place]), np.array(fields[place + 1])
        return torch.from_numpy(now), torch.from_numpy(later)


def endlessly(loader: DataLoader[tuple[Tensor, Tensor]]) -> Iterator[list[Tensor]]:
    """Batches, epoch after epoch."""
    while True:
        yield from loader


@pair(
    "whole-file-read-for-every-sample",
    "Every sample reads the whole file of 128 fields to take two of them, so six workers cannot keep up with"
    " the device, which waits for batches.",
    'Map the file into memory and read what is needed: np.load(path, mmap_mode="r").',
)
def sixteenth_storm_tracker(faulty: bool) -> Step:
    """A network of convolutions learns how storms move on, from files of fields."""
    folder = tempfile.TemporaryDirectory(prefix="storms")
    FOLDERS.append(folder)
    width = sized(192, 8)
    storms = Storms(Path(folder.name), sized(8, 1), sized(64, 8), mapped=not faulty)
    loader = DataLoader(
        storms, batch_size=sized(48, 4), shuffle=True, num_workers=sized(6, 1), persistent_workers=True,
        pin_memory=DEVICE == "cuda", prefetch_factor=4, drop_last=True,
    )  # fmt: skip
    shapes = [(8, width), *[(width, width)] * 8]
    parts = [part for shape in shapes for part in (nn.Conv2d(*shape, 3, padding=1), nn.SiLU())]
    model = on_images(nn.Sequential(*parts, nn.Conv2d(width, 8, 3, padding=1)), dtype=torch.float32)
    optimizer = adamw(model)
    batches, numbers = endlessly(loader), itertools.count()
    losses: list[float] = []

    def step() -> Tensor:
        now, later = (part.to(DEVICE, non_blocking=True) for part in next(batches))
        with autocast():
            guess = now + model(now.to(memory_format=torch.channels_last))
        loss = functional.mse_loss(guess.float(), later)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if next(numbers) % LOG_EVERY == LOG_EVERY - 1:
            losses.append(loss.item())
        return loss.detach()

    return step
