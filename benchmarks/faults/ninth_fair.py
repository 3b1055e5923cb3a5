"""Programs that look as if they were slow for a reason they are not."""

from __future__ import annotations

from collections import deque
from typing import Any

import torch
from benchmarks.faults.library_models import autocast, bert, tokens
from benchmarks.faults.models import DEVICE, adamw, sized
from benchmarks.faults.ninth_inputs import endless
from benchmarks.faults.registry import Step, pair
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset


@pair(
    "loss-read-every-step",
    "The loss and the accuracy are read with .item() at the end of a long step that the device is busy with.",
    "They stay on the device and are read every fifty steps: the wait is as long as the work.",
    kind="fair",
)
def ninth_document_tagger(faulty: bool) -> Step:
    """Long documents are sorted by an encoder."""
    rows, length = sized(64, 2), sized(512, 16)
    model = bert(8, 1024, attn_implementation="sdpa").train()
    optimizer = adamw(model, weight_decay=0.01)
    documents = tokens(200, 8, rows, length)
    labels = tokens(10, 8, rows)
    history: deque[Any] = deque(maxlen=200)
    turn = 0

    def step() -> None:
        nonlocal turn
        turn += 1
        ids, known = documents[turn % 8], labels[turn % 8]
        with autocast():
            scores = model(input_ids=ids).logits
        loss = functional.cross_entropy(scores.float(), known)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        right = (scores.detach().argmax(-1) == known).float().mean()
        if faulty or turn % 50 == 0:
            history.append({"loss": loss.item(), "accuracy": right.item()})
        else:
            history.append((loss.detach(), right))

    return step


@pair(
    "loader-without-workers",
    "A DataLoader with num_workers=0 and without pinned memory, but its batches are small and soon ready.",
    "num_workers=4, pin_memory=True and non_blocking copies, for nothing.",
    kind="fair",
)
def ninth_galaxy_shapes(faulty: bool) -> Step:
    """Galaxies are sorted by their shapes."""
    from transformers import ViTConfig, ViTForImageClassification

    rows, side = sized(64, 2), sized(128, 16)
    pictures = torch.randint(0, 256, (16 * rows, 3, side, side), dtype=torch.uint8)
    known = TensorDataset(pictures, torch.randint(0, 10, (16 * rows,)))
    options: dict[str, Any] = {}
    if not faulty:
        options = {
            "num_workers": sized(4, 1),
            "pin_memory": DEVICE == "cuda",
            "persistent_workers": True,
        }
    batches = endless(DataLoader(known, batch_size=rows, shuffle=True, drop_last=True, **options))
    config = ViTConfig(
        hidden_size=sized(1024, 64),
        intermediate_size=sized(4096, 128),
        num_hidden_layers=sized(24, 1),
        num_attention_heads=sized(16, 2),
        image_size=side,
        patch_size=8,
        num_labels=10,
    )
    with torch.device(DEVICE):
        model = ViTForImageClassification(config)
    optimizer = adamw(model, weight_decay=0.05)
    running = torch.zeros((), device=DEVICE)

    def step() -> None:
        batch, labels = next(batches)
        batch = batch.to(DEVICE, non_blocking=not faulty).float() / 127.5 - 1
        labels = labels.to(DEVICE, non_blocking=not faulty)
        with autocast():
            loss = functional.cross_entropy(model(pixel_values=batch).logits, labels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        running.lerp_(loss.detach(), 0.02)

    return step
