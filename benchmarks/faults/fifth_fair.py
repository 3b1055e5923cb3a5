"""Programs in which something looks wrong and costs next to nothing."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from benchmarks.faults.library_models import autocast, llama, tokens
from benchmarks.faults.models import DEVICE, adamw, gpt, next_word_loss, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset


@pair(
    "loss-read-every-step",
    "A large Llama is trained; the loss and the norm of the gradients are read with .item() every step.",
    "Both stay on the device.",
    kind="fair",
    light_steps=3,
)
def fifth_story_model(faulty: bool) -> Step:
    """The host waits for a device that has a hundred milliseconds of work a step."""
    model = llama(8, 2048)
    optimizer = adamw(model)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1_000_000)
    ids = tokens(128, sized(16, 2), sized(1536, 16))
    totals = {"loss": 0.0, "norm": 0.0}
    kept = torch.zeros(2, device=DEVICE)

    def train_step() -> None:
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        if faulty:
            totals["loss"] += loss.item()
            totals["norm"] += norm.item()
        else:
            kept.add_(torch.stack([loss.detach().float(), norm.float()]))

    return train_step


class TokenFile(Dataset[Tensor]):
    """Windows of a long file of tokens."""

    def __init__(self, path: Path, length: int) -> None:
        import numpy as np

        self.words = np.memmap(path, dtype=np.uint16, mode="r")
        self.length = length

    def __len__(self) -> int:
        return len(self.words) // self.length

    def __getitem__(self, index: int) -> Tensor:
        window = self.words[index * self.length : (index + 1) * self.length]
        return torch.from_numpy(window.astype("int64"))


def endless(loader: DataLoader[Any]) -> Iterator[Any]:
    """One epoch after the other."""
    while True:
        yield from loader


@pair(
    "loader-without-workers",
    "A language model reads tokenised text with a DataLoader that has no workers and no pinned memory.",
    "num_workers=2, pin_memory=True, non_blocking=True.",
    kind="fair",
    light_steps=3,
)
def fifth_code_model(faulty: bool) -> Step:
    """A batch is read in less than a millisecond while the device is busy with the one before."""
    length = sized(1024, 16)
    path = Path(tempfile.mkdtemp()) / "tokens.bin"
    torch.randint(0, 1024, (sized(4_000_000, 4096),)).short().numpy().tofile(path)
    options: dict[str, Any] = {}
    if not faulty:
        options = {"num_workers": 2, "pin_memory": DEVICE == "cuda", "persistent_workers": True}
    loader = DataLoader(TokenFile(path, length), sized(16, 2), shuffle=True, drop_last=True, **options)
    batches = endless(loader)
    model = gpt(12, 1536)
    optimizer = adamw(model)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=2000)
    average = torch.zeros((), device=DEVICE)

    def train_step() -> None:
        ids = next(batches).to(DEVICE, non_blocking=not faulty)
        optimizer.zero_grad()
        loss = next_word_loss(model, ids)
        loss.backward()
        optimizer.step()
        scheduler.step()
        average.lerp_(loss.detach().float(), 0.02)

    return train_step


def follow(kept: nn.Module, model: nn.Module, decay: float) -> None:
    """Moves the average of the weights towards the model, one by one."""
    for mean, now in zip(kept.parameters(), model.parameters(), strict=True):
        mean.data.mul_(decay).add_(now.data, alpha=1 - decay)


def follow_all(kept: nn.Module, model: nn.Module, decay: float) -> None:
    """Moves the average of the weights towards the model, all together."""
    means, now = [one.data for one in kept.parameters()], [one.data for one in model.parameters()]
    torch._foreach_mul_(means, decay)
    torch._foreach_add_(means, now, alpha=1 - decay)


@pair(
    "average-of-weights-one-by-one",
    "A latent diffusion model of diffusers keeps an average of its weights with a loop over parameters.",
    "torch._foreach_mul_ and torch._foreach_add_.",
    kind="fair",
    light_steps=3,
)
def fifth_latent_denoiser(faulty: bool) -> Step:
    """The device lies far behind the host, and the kernels read the same bytes either way."""
    from diffusers import DDPMScheduler, UNet2DModel

    width = sized(192, 32)
    model = UNet2DModel(
        sample_size=sized(64, 8),
        in_channels=4,
        out_channels=4,
        block_out_channels=(width, 2 * width, 3 * width),
        down_block_types=("DownBlock2D", "AttnDownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "AttnUpBlock2D", "UpBlock2D"),
        layers_per_block=sized(2, 1),
        attention_head_dim=sized(64, 8),
    ).to(DEVICE)
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = adamw(model)
    schedule = DDPMScheduler(1000)
    rows, side = sized(96, 2), sized(64, 8)
    latents = torch.randn(rows, 4, side, side, device=DEVICE)

    def train_step() -> None:
        noise = torch.randn_like(latents)
        times = torch.randint(0, 1000, (rows,), device=DEVICE)
        with autocast():
            guess = model(schedule.add_noise(latents, noise, times), times).sample
        loss = functional.mse_loss(guess.float(), noise)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        (follow if faulty else follow_all)(average, model, 0.9999)

    return train_step
