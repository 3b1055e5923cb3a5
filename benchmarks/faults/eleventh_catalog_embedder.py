"""Vectors of a catalogue's texts."""

from __future__ import annotations

import torch
from benchmarks.faults.models import DEVICE, HALF, Gpt, gpt, pinned, sized
from benchmarks.faults.registry import Step, healthy
from torch import Tensor
from torch.nn import functional


def vectors_of(model: Gpt, words: Tensor) -> Tensor:
    """One vector of length one for each text."""
    return functional.normalize(model.hidden(words).mean(1), dim=-1)


@healthy("A compiled model in bf16 turns large batches of equal length into vectors that stay on the device.")
def eleventh_catalog_embedder() -> Step:
    """Batches of texts are embedded, one after another."""
    count, rows, length = sized(32_768, 128), sized(256, 2), sized(256, 16)
    model = gpt(12, 1024, words=count).eval()
    embed = torch.compile(vectors_of)
    texts = [pinned(torch.randint(0, count, (rows, length))) for _ in range(4)]
    index = torch.zeros(len(texts) * rows, model.embedding.embedding_dim, device=DEVICE, dtype=HALF)
    turn = 0

    @torch.inference_mode()
    def step() -> None:
        nonlocal turn
        place = turn % len(texts)
        turn += 1
        index[place * rows : (place + 1) * rows] = embed(model, texts[place].to(DEVICE, non_blocking=True))

    return step
