"""Loops with a habit that costs nothing where they are."""

from __future__ import annotations

import numpy as np
import torch
from benchmarks.faults.library_models import llama, tokens
from benchmarks.faults.models import DEVICE, adamw, pinned, sized, wide_mlp
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional


@pair(
    "loss-read-every-step",
    "A Llama is trained and both loss and gradient norm are read by .item() after every step.",
    "They are summed on the device and read every hundred steps.",
    kind="fair",
)
def sixth_story_model(faulty: bool) -> Step:
    """A language model learns stories; the device is busy for much longer than the host."""
    model = llama(8, 2048).train()
    optimizer = adamw(model)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100_000)
    ids = tokens(128, sized(16, 2), sized(1024, 16))
    sums = torch.zeros(2, device=DEVICE)
    history: list[tuple[float, float]] = []
    done = 0

    def step() -> None:
        nonlocal done
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        done += 1
        if faulty:
            history.append((loss.item(), norm.item()))
            return
        sums.add_(torch.stack([loss.detach().float(), norm.float()]))
        if done % 100 == 0:
            mean_loss, mean_norm = (sums / 100).tolist()
            history.append((mean_loss, mean_norm))
            sums.zero_()

    return step


def hashed(clicks: list[list[int]], width: int, *, looped: bool) -> Tensor:
    """Counts of hashed items, one row for every user."""
    table = np.zeros((len(clicks), width), np.float32)
    if looped:
        for row, items in enumerate(clicks):
            for item in items:
                table[row, (item * 2_654_435_761) % width] += 1.0
    else:
        places = (np.array(clicks, dtype=np.int64) * 2_654_435_761) % width
        np.add.at(table, (np.arange(len(clicks))[:, None], places), 1.0)
    return pinned(torch.from_numpy(table))


@pair(
    "features-hashed-in-a-python-loop",
    "A ranker's next batch is hashed by two Python loops in the main process, while the device is busy.",
    "numpy's add.at, or a worker process.",
    kind="fair",
)
def sixth_click_ranker(faulty: bool) -> Step:
    """A wide ranker learns from clicks; the next batch is made once the kernels are queued."""
    rows, sparse, width, repeat = sized(1024, 8), sized(1024, 16), sized(4096, 64), sized(16, 1)
    rng = np.random.default_rng(2)
    clicks = rng.integers(0, 1_000_000, (rows, 12)).tolist()
    body = wide_mlp(4096, 16)
    half = next(body.parameters()).dtype
    model = nn.Sequential(nn.Linear(sparse, width), body, nn.Linear(width, 1)).to(DEVICE, half)
    optimizer = adamw(model)
    labels = torch.randint(0, 2, (rows * repeat,), device=DEVICE).float()
    batch = hashed(clicks, sparse, looped=faulty).to(DEVICE, non_blocking=True)
    running = 0.0

    def step() -> None:
        nonlocal batch, running
        scores = model(batch.to(half).repeat(repeat, 1)).squeeze(-1).float()
        loss = functional.binary_cross_entropy_with_logits(scores, labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        batch = hashed(clicks, sparse, looped=faulty).to(DEVICE, non_blocking=True)
        running = 0.98 * running + 0.02 * loss.item()

    return step
