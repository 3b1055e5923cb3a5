"""Programs that wait for their batches: loaders and copies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from benchmarks.faults.models import (
    DEVICE,
    HALF,
    ResNet,
    adamw,
    gpt,
    on_images,
    pinned,
    sized,
    wide_mlp,
    words,
)
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset


class Photos(Dataset[Any]):
    """Pictures that are cropped, turned, scaled and coloured when they are asked for."""

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        generator = torch.Generator().manual_seed(index)
        photo = torch.randint(0, 256, (3, 224, 224), generator=generator, dtype=torch.uint8).float()
        left, top = (int(place) for place in torch.randint(0, 64, (2,), generator=generator))
        cropped = photo[None, :, top : top + 160, left : left + 160].flip(-1)
        scaled = functional.interpolate(cropped, size=(96, 96), mode="bicubic", align_corners=False)[0]
        return (scaled - scaled.mean((1, 2), keepdim=True)) / scaled.std(), index % 128


class Rows(Dataset[Any]):
    """Rows that only have to be looked up."""

    def __init__(self, width: int) -> None:
        self.rows = torch.randn(1024, width)

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> Tensor:
        return self.rows[index % 1024]


def endless(loader: DataLoader[Any]) -> Iterator[Any]:
    """The batches of the loader, over and over."""
    while True:
        for batch in loader:  # noqa: UP028 - the loop is what people write
            yield batch


@pair(
    "dataloader-waits",
    "A residual network waits for pictures that the training process itself prepares.",
    "Worker processes prepare them ahead, in pinned memory.",
)
def dataloader_waits(faulty: bool) -> Step:
    """num_workers=0 with costly items."""
    rows = sized(16, 4)
    if faulty:
        loader = DataLoader(Photos(), batch_size=rows)
    else:
        workers = sized(6, 1)
        loader = DataLoader(
            Photos(), rows, num_workers=workers, pin_memory=DEVICE == "cuda",
            prefetch_factor=4, persistent_workers=True,
        )  # fmt: skip
    model = on_images(ResNet(64))
    optimizer = adamw(model)
    batches = endless(loader)

    def step() -> None:
        pictures, labels = next(batches)
        pictures = pictures.to(DEVICE, HALF, non_blocking=not faulty, memory_format=torch.channels_last)
        labels = labels.to(DEVICE, non_blocking=not faulty)
        optimizer.zero_grad()
        functional.cross_entropy(model(pictures), labels).backward()
        optimizer.step()

    return step


@pair(
    "dataloader-waits",
    "Linear layers of 8192 are fed by the training process itself, with rows that only have to be looked up.",
    "Worker processes look them up.",
    kind="fair",
)
def fair_loader(faulty: bool) -> Step:
    """num_workers=0 with cheap items: the device is busy meanwhile."""
    width, rows = sized(8192, 64), sized(128, 4)
    if faulty:
        loader = DataLoader(Rows(width), batch_size=rows, pin_memory=DEVICE == "cuda")
    else:
        loader = DataLoader(
            Rows(width), batch_size=rows, num_workers=sized(4, 1), pin_memory=DEVICE == "cuda",
            prefetch_factor=4, persistent_workers=True,
        )  # fmt: skip
    model = wide_mlp(8192, 4)
    batches = endless(loader)

    def step() -> None:
        batch = next(batches).to(DEVICE, HALF, non_blocking=True)
        with torch.no_grad():
            model(batch.repeat(64, 1))

    return step


@pair(
    "pageable-copies",
    "A residual network gets its pictures from pageable memory.",
    "They lie in pinned memory, and the copy does not block.",
)
def pageable_copies(faulty: bool) -> Step:
    """The driver copies twice, and the host waits for it."""
    model = on_images(ResNet(32))
    optimizer = adamw(model)
    rows, side = sized(128, 2), sized(128, 32)
    stored = torch.randn(rows, 3, side, side).to(memory_format=torch.channels_last)
    labels = torch.randint(0, 128, (rows,), device=DEVICE)
    if not faulty:
        stored = pinned(stored)

    def step() -> None:
        pictures = stored.to(DEVICE, non_blocking=not faulty).to(HALF)
        optimizer.zero_grad()
        functional.cross_entropy(model(pictures), labels).backward()
        optimizer.step()

    return step


@pair(
    "pageable-copies",
    "Linear layers of 8192 get a few labels from pageable memory.",
    "The labels lie in pinned memory.",
    kind="fair",
)
def fair_pageable_copy(faulty: bool) -> Step:
    """Some kilobytes, while the device is busy with long products."""
    model = wide_mlp(8192, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, fused=True)
    batch = torch.randn(sized(8192, 16), sized(8192, 64), device=DEVICE, dtype=HALF)
    stored = torch.randint(0, 64, (len(batch),))
    if not faulty:
        stored = pinned(stored)

    def step() -> None:
        labels = stored.to(DEVICE, non_blocking=not faulty)
        optimizer.zero_grad()
        functional.cross_entropy(model(batch), labels).backward()
        optimizer.step()

    return step


class Ahead:
    """Copies the next batch on a stream of its own while this one is used."""

    def __init__(self, stored: Tensor) -> None:
        self.stored = stored
        self.stream = torch.cuda.Stream()
        self.coming = self.ask()

    def ask(self) -> Tensor:
        """Starts the next copy."""
        with torch.cuda.stream(self.stream):
            return self.stored.to(DEVICE, non_blocking=True)

    def take(self) -> Tensor:
        """The batch that was asked for; the next one is asked for."""
        now = torch.cuda.current_stream()
        now.wait_stream(self.stream)
        batch = self.coming
        batch.record_stream(now)
        self.coming = self.ask()
        return batch


@pair(
    "exposed-copies",
    "A network for long signals copies its batch from pinned memory right before it is used.",
    "The next batch is copied on a stream of its own, beside the compute.",
)
def exposed_copies(faulty: bool) -> Step:
    """Nothing else runs on the device while the batch arrives."""
    width, rows, length = sized(256, 8), sized(64, 2), sized(2048, 64)
    model = nn.Sequential(
        nn.Conv1d(width, width, 9, padding=4), nn.ReLU(), nn.Conv1d(width, width, 9, padding=4), nn.ReLU(),
        nn.Conv1d(width, 16, 1),
    ).to(DEVICE, HALF)  # fmt: skip
    optimizer = adamw(model)
    stored = pinned(torch.randn(rows, width, length).to(HALF))
    ahead = None if faulty or DEVICE == "cpu" else Ahead(stored)

    def step() -> None:
        batch = ahead.take() if ahead else stored.to(DEVICE, non_blocking=True)
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()

    return step


@pair(
    "needless-transfers",
    "A GPT takes its hidden states to the CPU to normalise and clip them, and back.",
    "They stay on the device.",
)
def needless_transfers(faulty: bool) -> Step:
    """Activations over the bus, twice a layer."""
    model = gpt(3, 512).eval()
    tokens = words(8, 256)

    def centred(x: Tensor) -> Tensor:
        return (x - x.mean(-1, keepdim=True)).clamp(-3, 3)

    def step() -> None:
        with torch.no_grad():
            x = model.embedding(tokens)
            for layer in model.layers:
                x = layer(x)
                x = centred(x.cpu()).to(DEVICE) if faulty else centred(x)
            model.head(x)

    return step
