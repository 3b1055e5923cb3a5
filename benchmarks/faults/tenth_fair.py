"""Programs with the pattern of a mistake that costs them next to nothing."""

from __future__ import annotations

import torch
from benchmarks.faults.library_models import autocast, llama, tokens
from benchmarks.faults.models import DEVICE, adamw, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, RandomSampler


@pair(
    "micro-batches-that-fill-the-gpu",
    "A Llama learns code through accelerate; gradients of three batches of 12 x 1024 words are added up.",
    "One batch of 36 x 1024 words.",
    kind="fair",
    light_steps=2,
)
def tenth_code_helper(faulty: bool) -> Step:
    """A language model is trained on files of code."""
    from accelerate import Accelerator

    parts = 3 if faulty else 1
    accelerator = Accelerator(gradient_accumulation_steps=parts, cpu=DEVICE == "cpu")
    plain = llama(6, 2048)
    model, optimizer = accelerator.prepare(plain, adamw(plain))
    files = tokens(128, sized(36, 6), sized(1024, 16))

    def step() -> None:
        for batch in files.chunk(parts):
            with accelerator.accumulate(model):
                loss = model(input_ids=batch, labels=batch, use_cache=False).loss
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()

    return step


class WeatherGrids(Dataset[tuple[Tensor, Tensor]]):
    """The weather of a region at one hour and six hours later."""

    def __init__(self, hours: int, side: int) -> None:
        self.fields = torch.randn(hours, 3, side, side)

    def __len__(self) -> int:
        return len(self.fields) - 6

    def __getitem__(self, hour: int) -> tuple[Tensor, Tensor]:
        return self.fields[hour], self.fields[hour + 6].mean((1, 2))


@pair(
    "loader-without-workers",
    "A ViT of timm forecasts the weather; grids are in memory and a DataLoader cuts batches of them.",
    "num_workers=4.",
    kind="fair",
)
def tenth_weather_grid(faulty: bool) -> Step:
    """The means of three fields are told six hours ahead."""
    import timm

    rows, side = sized(64, 2), sized(64, 16)
    grids = WeatherGrids(sized(4096, 64), side)
    loader = DataLoader(
        grids,
        batch_size=rows,
        sampler=RandomSampler(grids, replacement=True, num_samples=1_000_000_000),
        num_workers=0 if faulty else sized(4, 1),
        pin_memory=DEVICE == "cuda",
        persistent_workers=not faulty,
        drop_last=True,
    )
    batches = iter(loader)
    model = timm.create_model(
        "vit_base_patch16_224",
        img_size=side,
        patch_size=4,
        embed_dim=sized(1536, 96),
        num_heads=sized(24, 2),
        depth=sized(10, 1),
        num_classes=3,
    ).to(DEVICE)
    optimizer = adamw(model)

    def step() -> None:
        now, later = (part.to(DEVICE, non_blocking=True) for part in next(batches))
        with autocast():
            loss = functional.smooth_l1_loss(model(now).float(), later)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step
