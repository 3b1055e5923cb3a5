"""Programs with a suspicious habit that costs next to nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from benchmarks.faults.library_models import autocast, llama, tokens
from benchmarks.faults.models import DEVICE, adamw, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset


@pair(
    "loss-read-every-step",
    "The loss and the norm of the gradient are read with .item() for the log in every step.",
    "They are kept on the device and read every hundred steps.",
    kind="fair",
)
def thirteenth_diary_model(faulty: bool) -> Step:
    """A Llama learns to write diaries; its kernels are long, and the next ones are launched soon."""
    rows, length = sized(16, 2), sized(1024, 16)
    model = llama(6, 1536, words=16_384)
    model.config.use_cache = False
    optimizer = adamw(model, weight_decay=0.1, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda turn: min(1.0, (turn + 1) / 1000))
    pages = tokens(sized(16_384, 128), rows, length)
    log: dict[str, float] = {}
    kept = torch.zeros(2, device=DEVICE)

    def step() -> Tensor:
        loss = model(input_ids=pages, labels=pages).loss
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if faulty:
            log.update(loss=loss.item(), norm=norm.item(), rate=schedule.get_last_lr()[0])
        else:
            kept.add_(torch.stack([loss.detach().float(), norm.float()]))
        return loss.detach()

    return step


class Meadows(Dataset[tuple[Tensor, Tensor]]):
    """Small pictures that lie in memory as bytes; a batch is looked up at once."""

    def __init__(self, count: int, side: int) -> None:
        self.pictures = torch.randint(0, 255, (count, 3, side, side), dtype=torch.uint8)
        self.labels = torch.randint(0, 50, (count,))

    def __len__(self) -> int:
        """All of them, many times over: an epoch is long."""
        return 100 * len(self.labels)

    def __getitems__(self, wanted: list[int]) -> tuple[Tensor, Tensor]:
        """The pictures of a batch and their classes."""
        numbers = torch.tensor(wanted) % len(self.labels)
        return self.pictures[numbers], self.labels[numbers]


def same(batch: Any) -> Any:
    """The batch as it is: it was put together when it was looked up."""
    return batch


def forever(loader: DataLoader[Any]) -> Iterator[Any]:
    """Batches of one epoch after another."""
    while True:
        yield from loader


@pair(
    "no-workers-in-the-loader",
    "A ViT learns from a DataLoader with num_workers=0, whose pictures lie in memory as bytes.",
    "num_workers=4 with persistent_workers=True.",
    kind="fair",
)
def thirteenth_meadow_sorter(faulty: bool) -> Step:
    """A vision transformer tells kinds of meadows; looking a batch up takes a fraction of its step."""
    import timm

    rows, side = sized(128, 2), sized(224, 32)
    data = Meadows(sized(1024, 16), side)
    workers: dict[str, Any] = {"num_workers": 0}
    if not faulty:
        workers = {"num_workers": sized(4, 1), "persistent_workers": True}
    loader = DataLoader(
        data, rows, shuffle=True, drop_last=True, collate_fn=same, pin_memory=DEVICE == "cuda", **workers
    )
    batches = forever(loader)
    model = timm.create_model("vit_base_patch16_224", img_size=side, num_classes=50, depth=sized(12, 1)).to(
        DEVICE
    )
    optimizer = adamw(model, weight_decay=0.05)
    mean = torch.tensor([0.485, 0.456, 0.406], device=DEVICE).view(1, 3, 1, 1)
    spread = torch.tensor([0.229, 0.224, 0.225], device=DEVICE).view(1, 3, 1, 1)

    def step() -> Tensor:
        pictures, labels = (part.to(DEVICE, non_blocking=True) for part in next(batches))
        with autocast():
            scores = model((pictures.float() / 255 - mean) / spread)
            loss = functional.cross_entropy(scores, labels, label_smoothing=0.1)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step
