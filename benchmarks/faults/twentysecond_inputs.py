"""Programs whose inputs come from sensors and microphones."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import torch
from benchmarks.faults.library_models import halved
from benchmarks.faults.models import DEVICE, HALF, pinned, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

# ---------------------------------------------------------------- sensors


class Windows(Dataset[Any]):
    """Windows of all sensors of a wind farm's gearboxes, a whole batch under each index."""

    def __init__(self, batches: int, rows: int, sensors: int, points: int, *, named: bool) -> None:
        self.rows = rows
        self.readings = torch.randn(batches * rows, sensors, points)
        self.worn = torch.randint(0, 4, (batches * rows,))
        self.names = [f"sensor_{number:03d}" for number in range(sensors)] if named else []

    def __len__(self) -> int:
        return len(self.worn) // self.rows

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        part = slice(index * self.rows, (index + 1) * self.rows)
        readings = self.readings[part]
        batch = {"worn": self.worn[part]}
        if not self.names:
            return batch | {"readings": readings}
        return batch | {name: readings[:, place].contiguous() for place, name in enumerate(self.names)}


class GearboxNet(nn.Module):
    """Mixes over time and over sensors in turn."""

    def __init__(self, sensors: int, points: int, width: int, layers: int) -> None:
        super().__init__()
        self.enter = nn.Linear(points, width)
        self.times = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
            )
            for _ in range(layers)
        )
        self.across = nn.ModuleList(nn.Linear(sensors, sensors) for _ in range(layers))
        self.head = nn.Linear(width, 4)

    def forward(self, readings: Tensor) -> Tensor:
        """Scores of the states of wear, from (rows, sensors, points)."""
        x = self.enter(readings)
        for times, across in zip(self.times, self.across, strict=True):
            x = x + times(x)
            x = x + across(x.transpose(1, 2)).transpose(1, 2)
        return self.head(x.mean(1))


def forever(loader: Any) -> Iterator[Any]:
    """Batches without an end."""
    while True:
        yield from loader


@pair(
    "batch-of-many-small-tensors",
    "A dataset hands out a dictionary of 240 columns, each of which Fabric's loader pins and copies by itself"
    " before the model stacks them.",
    "The readings of all sensors are one tensor from the dataset on.",
)
def turbine_monitor(faulty: bool) -> Step:
    """Worn gearboxes are found by their sensors."""
    from lightning.fabric import Fabric

    sensors, points, rows = sized(240, 6), sized(32, 8), sized(384, 4)
    fabric = Fabric(accelerator=DEVICE, devices=1, precision="bf16-mixed" if DEVICE == "cuda" else "32-true")
    plain = GearboxNet(sensors, points, sized(256, 16), sized(3, 1))
    model, optimizer = fabric.setup(plain, torch.optim.AdamW(plain.parameters(), lr=1e-4, fused=True))
    windows = Windows(sized(16, 3), rows, sensors, points, named=faulty)
    loader = DataLoader(windows, batch_size=None, shuffle=True, pin_memory=DEVICE == "cuda")
    batches = forever(fabric.setup_dataloaders(loader, use_distributed_sampler=False))
    running = torch.zeros((), device=DEVICE)

    def step() -> None:
        batch = next(batches)
        if windows.names:
            readings = torch.stack([batch[name] for name in windows.names], 1)
        else:
            readings = batch["readings"]
        loss = functional.cross_entropy(model(readings).float(), batch["worn"])
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        running.lerp_(loss.detach(), 0.05)

    return step


# ---------------------------------------------------------------- microphones

RATE = 16_000


def sinc_filters(old: int, new: int, zeros: int = 16, rolloff: float = 0.95) -> tuple[Tensor, int]:
    """The filters that turn one rate of sampling into another, windowed by a cosine."""
    base = min(old, new) * rolloff
    reach = math.ceil(zeros * old / base)
    moments = torch.arange(-reach, reach + old, dtype=torch.float64)[None] / old
    shifts = torch.arange(0, -new, -1, dtype=torch.float64)[:, None] / new
    t = ((moments + shifts) * base).clamp(-zeros, zeros)
    window = torch.cos(t * math.pi / zeros / 2).square()
    t = t * math.pi
    filters = torch.where(t == 0, torch.ones_like(t), t.sin() / t) * window * base / old
    return filters.float()[:, None], reach


def resampled(wave: Tensor, rate: int, filters_of: Any) -> Tensor:
    """The sound at the rate of the model."""
    common = math.gcd(rate, RATE)
    old, new = rate // common, RATE // common
    filters, reach = filters_of(old, new)
    length = math.ceil(new * wave.shape[0] / old)
    padded = functional.pad(wave, (reach, reach + old))
    return functional.conv1d(padded[None, None], filters, stride=old)[0].T.reshape(-1)[:length]


class Spectra(nn.Module):
    """Logarithms of spectra."""

    def __init__(self, bands: int) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(512))
        self.register_buffer("bands", torch.rand(bands, 257) / 257)

    def forward(self, waves: Tensor) -> Tensor:
        """Pictures of one channel."""
        spectrum = torch.stft(waves, 512, 160, window=self.window, return_complex=True)
        return torch.log1p(self.bands @ spectrum.abs().square())[:, None]


@pair(
    "filters-reckoned-for-every-clip",
    "Clips of several rates are brought to 16 kHz on the host, and the filters of sines are reckoned anew for"
    " each clip, in float64.",
    "lru_cache on the function that reckons them: there are four rates.",
)
def frog_census(faulty: bool) -> Step:
    """A service counts the species of frogs in short recordings."""
    from transformers import ConvNextConfig, ConvNextForImageClassification

    rows, seconds = sized(24, 3), sized(2, 1)
    config = ConvNextConfig(
        num_channels=1,
        hidden_sizes=[sized(width, 16) for width in (96, 192, 384, 768)],
        depths=[3, 3, 9, 3] if DEVICE == "cuda" else [1, 1, 1, 1],
        num_labels=sized(120, 10),
    )
    model = halved(ConvNextForImageClassification(config)).eval()
    spectra = Spectra(sized(128, 64)).to(DEVICE)
    rates = (44_100, 22_050, 48_000, 32_000)
    clips = [(torch.randn(rates[turn % 4] * seconds), rates[turn % 4]) for turn in range(rows)]
    filters_of = sinc_filters if faulty else lru_cache(maxsize=16)(sinc_filters)
    shape = (rows, RATE * seconds)
    staged = pinned(torch.empty(shape))

    @torch.inference_mode()
    def step() -> list[int]:
        for place, (wave, rate) in enumerate(clips):
            staged[place] = resampled(wave, rate, filters_of)
        pictures = spectra(staged.to(DEVICE, non_blocking=True))
        scores = model(pixel_values=pictures.to(HALF)).logits
        return scores.argmax(-1).tolist()

    return step
