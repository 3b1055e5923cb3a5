"""Programs in which there is little to gain."""

from __future__ import annotations

import torch
from benchmarks.faults.library_models import noise
from benchmarks.faults.models import DEVICE, HALF, Block, adamw, gpt, next_word_loss, sized, words
from benchmarks.faults.registry import Step, healthy, pair
from torch import Tensor, nn


class SeriesModel(nn.Module):
    """A decoder over patches of a time series that tells quantiles of the next patch."""

    def __init__(self, layers: int, width: int, patch: int, quantiles: int) -> None:
        super().__init__()
        self.patch = patch
        self.inside = nn.Linear(patch, width)
        self.layers = nn.ModuleList(Block(width, max(1, width // 128), 4 * width) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.outside = nn.Linear(width, patch * quantiles)

    def forward(self, patches: Tensor) -> Tensor:
        """Quantiles of every value of the patch after each."""
        x = self.inside(patches)
        for layer in self.layers:
            x = layer(x)
        return self.outside(self.norm(x)).unflatten(-1, (self.patch, -1))


@healthy("A model of time series: bf16, torch's attention, fused AdamW, 16 thousand patches of width 2048.")
def eighth_series_model() -> Step:
    """Products of large matrices nearly all of the time."""
    patch, levels = 32, torch.linspace(0.1, 0.9, 9, device=DEVICE)
    with torch.device(DEVICE):
        model = SeriesModel(sized(6, 1), sized(2048, 128), patch, 9).to(HALF)
    optimizer = adamw(model)
    series = noise(sized(32, 2), sized(513, 9), patch)

    def step() -> None:
        told = model(series[:, :-1]).float()
        missed = series[:, 1:, :, None].float() - told
        loss = torch.maximum(levels * missed, (levels - 1) * missed).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


@pair(
    "device-asked-whether-the-loss-is-finite",
    "Every step asks whether the loss is finite before it goes backward, and so waits for the device; but the"
    " device is busy all the time, and gets its next work at once.",
    "Without the question.",
    kind="fair",
)
def eighth_careful_training(faulty: bool) -> Step:
    """A language model whose kernels are long learns with a check."""
    model = gpt(5, 1536, words=8192)
    optimizer = adamw(model)
    batch = words(16, 1024, sized(8192, 128))

    def step() -> None:
        loss = next_word_loss(model, batch)
        if faulty and not torch.isfinite(loss):
            raise FloatingPointError("the loss is not finite")
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
