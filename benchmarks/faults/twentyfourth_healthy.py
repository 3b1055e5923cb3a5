"""A training script and a service as they should be."""

from __future__ import annotations

from typing import Any

import torch
from benchmarks.faults.library_models import bert, llama
from benchmarks.faults.models import DEVICE, HALF, adamw, pinned, sized
from benchmarks.faults.registry import Step, healthy
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


class Verses(Dataset[Tensor]):
    """Pieces of one long row of tokens."""

    def __init__(self, count: int, length: int, words: int) -> None:
        self.tokens = torch.randint(0, words, (count * length,))
        self.length = length

    def __len__(self) -> int:
        return len(self.tokens) // self.length

    def __getitem__(self, index: int) -> Tensor:
        return self.tokens[index * self.length : (index + 1) * self.length]


@healthy("A Llama in bf16 with a fused optimizer, pinned batches of workers and a loss read now and then.")
def verse_student() -> Step:
    """A language model learns poems."""
    model = llama(8, 1024)
    model.train()
    optimizer = adamw(model)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100_000)
    loader: DataLoader[Any] = DataLoader(
        Verses(sized(30_000, 200), sized(1024, 16), sized(8192, 128)),
        batch_size=sized(16, 2),
        shuffle=True,
        drop_last=True,
        num_workers=sized(4, 1),
        pin_memory=DEVICE == "cuda",
        persistent_workers=True,
    )
    batches = iter(loader)
    running = torch.zeros((), device=DEVICE)
    done = 0

    def step() -> None:
        nonlocal batches, done
        try:
            batch = next(batches)
        except StopIteration:
            batches = iter(loader)
            batch = next(batches)
        ids = batch.to(DEVICE, non_blocking=True)
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        running.lerp_(loss.detach(), 0.02)
        done += 1
        if done % 200 == 0:
            print(f"{done}: {running.item():.3f}")

    return step


@healthy("A cross-encoder in bf16 scores whole batches under inference_mode; only the best places come back.")
def answer_judge() -> Step:
    """Answers to a question are put in order."""
    model = bert(12, 768, attn_implementation="sdpa").to(HALF).eval()
    rows, length = sized(128, 4), sized(256, 16)
    ids = pinned(torch.randint(0, sized(30_000, 200), (rows, length)))

    @torch.inference_mode()
    def step() -> list[int]:
        scores = model(input_ids=ids.to(DEVICE, non_blocking=True)).logits[:, 0]
        return scores.topk(min(10, rows)).indices.tolist()

    return step
