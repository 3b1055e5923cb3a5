"""Programs with nothing to mend."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from benchmarks.faults.library_models import autocast, tokens
from benchmarks.faults.models import DEVICE, adamw, on_images, sized
from benchmarks.faults.registry import Step, healthy
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset


@healthy("A BERT learns to find answers with the other answers of its batch as negatives, in bf16.")
def thirteenth_answer_finder() -> Step:
    """Questions and answers go through one encoder together; the loss is one matrix product."""
    from transformers import BertConfig, BertModel

    rows, length, width = sized(192, 2), sized(128, 8), sized(768, 32)
    config = BertConfig(
        vocab_size=sized(30_528, 128),
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=sized(12, 1),
        num_attention_heads=sized(12, 2),
        attn_implementation="sdpa",
    )
    model = BertModel(config, add_pooling_layer=False).to(DEVICE).train()
    optimizer = adamw(model, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda turn: min(1.0, (turn + 1) / 500))
    texts = tokens(sized(30_528, 128), 2 * rows, length)
    same = torch.arange(rows, device=DEVICE)
    right = torch.zeros((), device=DEVICE)

    def step() -> Tensor:
        with autocast():
            states = model(input_ids=texts).last_hidden_state
        codes = functional.normalize(states.mean(1).float(), dim=-1)
        scores = 20.0 * codes[:rows] @ codes[rows:].T
        loss = functional.cross_entropy(scores, same)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        right.add_((scores.detach().argmax(-1) == same).sum())
        return loss.detach()

    return step


class Tiles(Dataset[tuple[Tensor, int]]):
    """Tiles of stone, cut out of big pictures of a wall that lie in memory."""

    def __init__(self, side: int) -> None:
        self.side = side
        self.walls = torch.randint(0, 255, (8, 3, 4 * side, 4 * side), dtype=torch.uint8)

    def __len__(self) -> int:
        """As many as an epoch shows."""
        return 100_000

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """A tile and its class."""
        wall = self.walls[index % len(self.walls)]
        top, left = torch.randint(0, 3 * self.side, (2,)).tolist()
        return wall[:, top : top + self.side, left : left + self.side], index % 30


def forever(loader: DataLoader[Any]) -> Iterator[Any]:
    """Batches of one epoch after another."""
    while True:
        yield from loader


@healthy("A ResNet-101 learns from a loader with workers; bytes are copied and made floats on the device.")
def thirteenth_tile_grader() -> Step:
    """Pinned, asynchronous copies, channels last, bf16, mixed pictures, one optimizer kernel."""
    import timm

    rows, side = sized(96, 2), sized(224, 32)
    loader = DataLoader(
        Tiles(side),
        rows,
        shuffle=True,
        drop_last=True,
        num_workers=sized(4, 1),
        persistent_workers=True,
        prefetch_factor=4,
        pin_memory=DEVICE == "cuda",
    )
    batches = forever(loader)
    name = "resnet101" if DEVICE == "cuda" else "resnet18"
    model = on_images(timm.create_model(name, num_classes=30), dtype=torch.float32)
    optimizer = adamw(model, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20_000)
    running = torch.zeros((), device=DEVICE)

    def step() -> Tensor:
        pictures, labels = (part.to(DEVICE, non_blocking=True) for part in next(batches))
        floats = pictures.to(torch.float32, memory_format=torch.channels_last).sub_(127).div_(64)
        share = torch.rand((), device=DEVICE)
        mixed = torch.lerp(floats, floats.roll(1, 0), share)
        with autocast():
            scores = model(mixed)
            first = functional.cross_entropy(scores, labels)
            second = functional.cross_entropy(scores, labels.roll(1, 0))
        loss = torch.lerp(first, second, share)
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        running.lerp_(loss.detach(), 0.02)
        return loss.detach()

    return step
