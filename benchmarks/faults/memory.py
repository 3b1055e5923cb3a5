"""Programs that ask for memory too often, or save what they need not."""

from __future__ import annotations

import torch
from benchmarks.faults.models import (
    DEVICE,
    HALF,
    Policy,
    UNet,
    adamw,
    gpt,
    images,
    on_images,
    sized,
    train_words,
    words,
)
from benchmarks.faults.registry import Step, pair
from torch.nn import functional


@pair(
    "allocation-churn",
    "A reinforcement learner makes and clears its buffers anew at every moment.",
    "They are made once.",
)
def allocation_churn(faulty: bool) -> Step:
    """Short kernels that only fill memory."""
    agent = Policy().to(DEVICE, HALF)
    players, moments = sized(256, 4), sized(16, 2)
    world = torch.randn(64, 64, device=DEVICE, dtype=HALF) / 8
    names = ("seen", "scores", "values", "rewards", "ends", "masks", "returns", "gains")
    widths = (64, 16, 1, 1, 1, 1, 1, 1)

    def buffers() -> dict[str, torch.Tensor]:
        return {
            name: torch.zeros(players, width, device=DEVICE, dtype=HALF)
            for name, width in zip(names, widths, strict=True)
        }

    kept = [buffers() for _ in range(moments)]

    def step() -> None:
        seen = torch.ones(players, 64, device=DEVICE, dtype=HALF)
        memory = torch.zeros(players, 256, device=DEVICE, dtype=HALF)
        with torch.no_grad():
            for moment in range(moments):
                if faulty:
                    kept[moment] = buffers()
                scores, value, memory = agent(seen, memory)
                kept[moment]["seen"].copy_(seen)
                kept[moment]["scores"].copy_(scores)
                kept[moment]["values"].copy_(value)
                seen = torch.tanh(seen @ world)

    return step


@pair(
    "driver-allocations",
    "A U-Net is trained with PYTORCH_NO_CUDA_MEMORY_CACHING=1 in its environment, left from a debugger.",
    "The variable is not set.",
    environment={"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
)
def driver_allocations(faulty: bool) -> Step:
    """Every tensor is asked of the driver; the sides differ in the environment alone."""
    del faulty
    return diffusion(clears=False)


@pair(
    "cache-clearing",
    "A U-Net calls torch.cuda.empty_cache() after every step.",
    "The call is gone.",
)
def cache_clearing(faulty: bool) -> Step:
    """All memory is given back to the driver and asked for again."""
    return diffusion(clears=faulty)


def diffusion(*, clears: bool) -> Step:
    """Training of a small diffusion model."""
    model = on_images(UNet(32))
    optimizer = adamw(model)
    pictures = images(32, 64)
    time = torch.randn(len(pictures), 64, device=DEVICE, dtype=HALF)

    def step() -> None:
        noise = torch.randn_like(pictures)
        optimizer.zero_grad()
        functional.mse_loss(model(pictures * 0.8 + noise * 0.6, time), noise).backward()
        optimizer.step()
        if clears:
            torch.cuda.empty_cache()

    return step


@pair(
    "recomputation",
    "A GPT that would fit many times into memory computes its activations again in the backward pass.",
    "Activation checkpointing is off.",
)
def recomputation(faulty: bool) -> Step:
    """A third more work, for memory that is not short."""
    model = gpt(3, 1024)
    model.checkpointed = faulty
    optimizer = adamw(model)
    tokens = words(32, 512)
    return lambda: train_words(model, tokens, optimizer)
