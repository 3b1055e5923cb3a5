"""Programs that have nothing left to gain."""

from __future__ import annotations

from typing import Any

import torch
from benchmarks.faults.library_models import halved
from benchmarks.faults.models import DEVICE, HALF, adamw, gpt, next_word_loss, pinned, sized, words
from benchmarks.faults.registry import Step, healthy
from torch import Tensor


@healthy("A language model is trained in bf16, compiled with its loss, with a fused optimizer.")
def tenth_story_model() -> Step:
    """Stories of 1024 words."""
    known = sized(16_384, 64)
    model = gpt(4, 2048, words=known)
    stories = words(32, 1024, known)
    optimizer = adamw(model)

    @torch.compile
    def loss_of(batch: Tensor) -> Tensor:
        return next_word_loss(model, batch)

    def step() -> None:
        loss_of(stories).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


class Prefetched:
    """Photos on the device; the next batch is copied on a stream of its own while one is looked at."""

    def __init__(self, photos: Tensor) -> None:
        self.photos = photos
        self.places = [photos.to(DEVICE), photos.to(DEVICE)]
        self.copies: Any = torch.cuda.Stream() if DEVICE == "cuda" else None

    def next(self) -> Tensor:
        """The batch that was copied last; what is launched after this call may read it."""
        ready, free = self.places
        self.places = [free, ready]
        if self.copies is not None:
            work = torch.cuda.current_stream()
            work.wait_stream(self.copies)
            self.copies.wait_stream(work)  # the batch before the last has been read
            with torch.cuda.stream(self.copies):
                free.copy_(self.photos, non_blocking=True)
        return ready


@healthy("A ViT of timm tags photos in bf16, compiled; bytes come from pinned memory while it works.")
def tenth_photo_tagger() -> Step:
    """Batches of 512 photos, of which the next is begun before the tags of the last are read."""
    import timm

    rows, side = sized(512, 2), sized(224, 32)
    name = "vit_large_patch16_224" if DEVICE == "cuda" else "vit_tiny_patch16_224"
    model = halved(timm.create_model(name, img_size=side, depth=sized(8, 1), num_classes=1000)).eval()
    source = Prefetched(pinned(torch.randint(0, 256, (rows, 3, side, side), dtype=torch.uint8)))
    tags = pinned(torch.zeros(rows, 5, dtype=torch.int64))
    finished: Any = torch.cuda.Event() if DEVICE == "cuda" else None

    @torch.compile
    def tagged(pictures: Tensor) -> Tensor:
        return model(pictures.to(HALF) / 127.5 - 1).topk(5).indices

    @torch.inference_mode()
    def step() -> None:
        found = tagged(source.next())
        if finished is not None:
            finished.synchronize()
        tags.copy_(found, non_blocking=True)
        if finished is not None:
            finished.record()

    return step
