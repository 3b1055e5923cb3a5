"""Programs whose batches are made ready on the host: pictures without labels, and recordings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from benchmarks.faults.library_models import autocast, halved
from benchmarks.faults.models import DEVICE, HALF, ResNet, on_images, pinned, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset


class Pictures(Dataset[tuple[Tensor, Tensor]]):
    """Small pictures that are kept in memory and fetched a batch at a time."""

    def __init__(self, count: int, kept: int, side: int) -> None:
        self.count = count
        self.pictures = torch.randint(0, 256, (kept, 3, side, side), dtype=torch.uint8)
        self.kinds = torch.randint(0, 10, (kept,))

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.pictures[index % len(self.kinds)], self.kinds[index % len(self.kinds)]

    def __getitems__(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        """A whole batch."""
        where = torch.tensor(indices) % len(self.kinds)
        return self.pictures[where], self.kinds[where]


def as_fetched(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """The batch is joined already."""
    return pinned(batch[0]), pinned(batch[1])


def forever(loader: DataLoader[Any]) -> Iterator[Any]:
    """The batches of one epoch after the other."""
    while True:
        yield from loader


@pair(
    "loader-started-in-every-step",
    "Semi-supervised training takes its second batch by next(iter(unlabelled)): 530,000 numbers are"
    " shuffled and made a list in every step for one batch.",
    "One iterator is kept, and renewed when it ends.",
)
def seventh_few_labels(faulty: bool) -> Step:
    """A network learns from few labels and many pictures without (FixMatch)."""
    side, rows = 32, sized(64, 4)
    few = Pictures(sized(4000, 16), sized(4000, 16), side)
    many = Pictures(sized(531_131, 64), sized(20_000, 16), side)
    labelled = forever(DataLoader(few, batch_size=rows, shuffle=True, drop_last=True, collate_fn=as_fetched))
    unlabelled = DataLoader(many, batch_size=7 * rows, shuffle=True, drop_last=True, collate_fn=as_fetched)
    kept = forever(unlabelled)
    model = on_images(ResNet(sized(64, 8), blocks=2, classes=10), dtype=torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9, nesterov=True, fused=True)

    def ready(batch: Tensor) -> Tensor:
        moved = batch.to(DEVICE, non_blocking=True)
        return moved.to(memory_format=torch.channels_last).float().div_(127.5).sub_(1.0)

    def step() -> None:
        pictures, kinds = next(labelled)
        others, _ = next(iter(unlabelled)) if faulty else next(kept)
        x, u = ready(pictures), ready(others)
        strong = torch.flip(u, [3]) + 0.2 * torch.randn_like(u)
        with autocast():
            scores = model(torch.cat([x, u, strong]))
        known, weak, hard = scores.float().split([rows, 7 * rows, 7 * rows])
        chance, guess = weak.detach().softmax(-1).max(-1)
        loss = functional.cross_entropy(known, kinds.to(DEVICE, non_blocking=True))
        sure = (chance > 0.95).float()
        loss = loss + (functional.cross_entropy(hard, guess, reduction="none") * sure).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


@pair(
    "features-computed-on-the-cpu",
    "WhisperFeatureExtractor computes the spectrograms of every batch on the CPU, its default.",
    'feature_extractor(..., device="cuda").',
)
def seventh_spoken_languages(faulty: bool) -> Step:
    """A speech encoder tells the language of recordings of half a minute."""
    from transformers import WhisperConfig, WhisperFeatureExtractor, WhisperForAudioClassification

    width = sized(768, 64)
    config = WhisperConfig(
        d_model=width,
        encoder_layers=sized(8, 1),
        encoder_attention_heads=max(1, width // 64),
        encoder_ffn_dim=4 * width,
        decoder_layers=1,
        decoder_attention_heads=max(1, width // 64),
        decoder_ffn_dim=4 * width,
        num_labels=40,
        classifier_proj_size=sized(256, 16),
        attn_implementation="sdpa",
    )
    with torch.device(DEVICE):
        model = halved(WhisperForAudioClassification(config)).eval()
    extractor = WhisperFeatureExtractor(feature_size=80)
    rng = np.random.default_rng(5)
    recordings = [rng.standard_normal(16_000 * 30, dtype=np.float32) * 0.1 for _ in range(sized(8, 2))]
    where = "cpu" if faulty else DEVICE

    @torch.inference_mode()
    def step() -> list[int]:
        features = extractor(recordings, sampling_rate=16_000, return_tensors="pt", device=where)
        scores = model(features.input_features.to(DEVICE, HALF)).logits
        found: list[int] = scores.argmax(-1).tolist()
        return found

    return step
