"""A generator of voices that learns to match spectra at several resolutions."""

from __future__ import annotations

import numpy as np
import torch
from benchmarks.faults.library_models import autocast, noise
from benchmarks.faults.models import DEVICE, adamw, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional

RESOLUTIONS = (256, 512, 1024, 2048, 4096)


class Generator(nn.Module):
    """From mel bands to a wave, 256 samples for each of them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        parts: list[nn.Module] = [nn.Conv1d(80, width, 7, padding=3)]
        for scale in (8, 8, 4):
            parts += [nn.LeakyReLU(0.1), nn.ConvTranspose1d(width, width // 2, 2 * scale, scale, scale // 2)]
            width //= 2
            parts += [nn.LeakyReLU(0.1), nn.Conv1d(width, width, 7, padding=3)]
        self.body = nn.Sequential(*parts, nn.LeakyReLU(0.1), nn.Conv1d(width, 1, 7, padding=3), nn.Tanh())

    def forward(self, bands: Tensor) -> Tensor:
        """The wave."""
        return self.body(bands).squeeze(1)


class SpectralLoss(nn.Module):
    """How far two waves are apart in their spectra."""

    def __init__(self, resolutions: tuple[int, ...], dtype: torch.dtype | None) -> None:
        super().__init__()
        self.resolutions = resolutions
        self.windows = [torch.from_numpy(np.hanning(size)).to(DEVICE, dtype) for size in resolutions]

    def spectrum(self, wave: Tensor, size: int, window: Tensor) -> Tensor:
        """Magnitudes of the frequencies."""
        found = torch.stft(wave, size, size // 4, window=window, return_complex=True)
        return torch.sqrt(found.real.square() + found.imag.square() + 1e-7)

    def forward(self, made: Tensor, real: Tensor) -> Tensor:
        """Mean over the resolutions."""
        total = torch.zeros((), device=made.device)
        for size, window in zip(self.resolutions, self.windows, strict=True):
            mine, theirs = self.spectrum(made, size, window), self.spectrum(real, size, window)
            total = total + functional.l1_loss(mine.log(), theirs.log())
            total = total + torch.linalg.vector_norm(theirs - mine) / torch.linalg.vector_norm(theirs)
        return total / len(self.resolutions)


@pair(
    "loss-in-fp64",
    "The windows of the spectra come from numpy and are fp64: so are all spectra and their gradients.",
    "The windows are cast to fp32.",
)
def eleventh_voice_maker(faulty: bool) -> Step:
    """A vocoder is trained on its spectra."""
    rows, frames = sized(32, 2), sized(256, 16)
    model = Generator(sized(256, 16)).to(DEVICE)
    loss_of = SpectralLoss(RESOLUTIONS, None if faulty else torch.float32)
    optimizer = adamw(model)
    bands = noise(rows, 80, frames, dtype=torch.float32)
    voices = 0.1 * noise(rows, 256 * frames, dtype=torch.float32)

    def step() -> None:
        with autocast():
            made = model(bands)
        loss = loss_of(made.float(), voices)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step
