"""Training loops that are fed from files, recordings, videos and molecules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from benchmarks.faults.library_models import autocast, tokens
from benchmarks.faults.models import DEVICE, adamw, pinned, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset


def endless(loader: Any) -> Iterator[Any]:
    """The batches of one epoch after the other."""
    while True:
        yield from loader


class FieldTiles(Dataset[tuple[Tensor, int]]):
    """Tiles of a satellite with four bands; each time another part of the tile is taken."""

    def __init__(self, count: int, side: int, crop: int) -> None:
        rng = np.random.default_rng(5)
        self.tiles = [rng.integers(0, 10_000, (4, side, side), dtype=np.uint16) for _ in range(16)]
        self.count, self.crop = count, crop
        self.middle = torch.tensor([0.30, 0.32, 0.29, 0.45])[:, None, None]
        self.spread = torch.tensor([0.11, 0.12, 0.14, 0.20])[:, None, None]

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        rng = np.random.default_rng()
        tile = self.tiles[index % len(self.tiles)]
        longest = tile.shape[-1]
        side = int(rng.integers(longest // 2, longest + 1))
        top, left = rng.integers(0, longest - side + 1, 2)
        part = tile[:, top : top + side, left : left + side].astype(np.float32) / 10_000
        part = np.rot90(part, int(rng.integers(0, 4)), axes=(1, 2))
        if rng.random() < 0.5:
            part = part[:, :, ::-1]
        part = np.power(part, rng.uniform(0.8, 1.2), dtype=np.float32)
        part = part + rng.normal(0, 0.01, part.shape).astype(np.float32)
        picture = torch.from_numpy(np.ascontiguousarray(part))[None]
        size = (self.crop, self.crop)
        picture = functional.interpolate(picture, size, mode="bicubic", antialias=True)[0]
        return (picture - self.middle) / self.spread, index % 12


@pair(
    "loader-without-workers",
    "A DataLoader with num_workers=0 augments tiles with numpy while the device waits.",
    "num_workers=12, pin_memory=True, persistent_workers=True.",
)
def ninth_field_mapper(faulty: bool) -> Step:
    """The crops of fields are told from satellite tiles."""
    from transformers import ConvNextConfig, ConvNextForImageClassification

    tiles = FieldTiles(sized(8192, 64), sized(320, 40), sized(224, 32))
    options: dict[str, Any] = {}
    if not faulty:
        options = {
            "num_workers": sized(12, 1),
            "pin_memory": DEVICE == "cuda",
            "persistent_workers": True,
            "prefetch_factor": 4,
        }
    batches = endless(DataLoader(tiles, batch_size=sized(32, 4), shuffle=True, drop_last=True, **options))
    config = ConvNextConfig(
        num_channels=4,
        depths=[3, 3, 9, 3] if DEVICE == "cuda" else [1, 1, 1, 1],
        hidden_sizes=[96, 192, 384, 768] if DEVICE == "cuda" else [8, 16, 32, 64],
        num_labels=12,
    )
    model = ConvNextForImageClassification(config).to(DEVICE, memory_format=torch.channels_last)
    optimizer = adamw(model, weight_decay=0.05)
    running = torch.zeros((), device=DEVICE)

    def step() -> None:
        pictures, labels = next(batches)
        pictures = pictures.to(DEVICE, non_blocking=True, memory_format=torch.channels_last)
        labels = labels.to(DEVICE, non_blocking=True)
        with autocast():
            loss = functional.cross_entropy(model(pixel_values=pictures).logits, labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        running.lerp_(loss.detach(), 0.02)

    return step


def whisper(longest: int) -> Any:
    """An encoder of speech of the size of whisper-tiny with twelve classes above it."""
    from transformers import WhisperConfig, WhisperForAudioClassification

    config = WhisperConfig(
        d_model=sized(384, 64),
        encoder_layers=sized(4, 1),
        encoder_attention_heads=sized(6, 2),
        encoder_ffn_dim=sized(1536, 128),
        decoder_layers=1,
        vocab_size=128,
        max_source_positions=50 * longest,
        num_labels=12,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    return WhisperForAudioClassification(config).to(DEVICE)


@pair(
    "spectrograms-on-the-cpu",
    "WhisperFeatureExtractor makes the spectrograms of each batch on the CPU, between the steps.",
    "The waves are copied to the device and the same spectrograms are made there.",
)
def ninth_call_sorter(faulty: bool) -> Step:
    """Recorded calls are sorted by what the caller wants."""
    from transformers import WhisperFeatureExtractor

    longest, rows = sized(30, 2), sized(32, 2)
    extractor = WhisperFeatureExtractor(feature_size=80, chunk_length=longest)
    rng = np.random.default_rng(7)
    calls = [
        rng.standard_normal(int(rng.integers(4_000 * longest, 16_000 * longest)), dtype=np.float32)
        for _ in range(2 * rows)
    ]
    kept = [pinned(torch.from_numpy(call)) for call in calls]
    labels = tokens(12, 2 * rows)
    model = whisper(longest)
    optimizer = adamw(model)
    window = torch.hann_window(extractor.n_fft, device=DEVICE)
    filters = torch.from_numpy(np.asarray(extractor.mel_filters)).to(DEVICE, torch.float32)

    def by_library(chosen: slice) -> Tensor:
        found: Tensor = extractor(calls[chosen], sampling_rate=16_000, return_tensors="pt").input_features
        return found.to(DEVICE)

    def by_hand(chosen: slice) -> Tensor:
        waves = torch.zeros(rows, extractor.n_samples, device=DEVICE)
        for row, wave in zip(waves, kept[chosen], strict=True):
            row[: len(wave)].copy_(wave, non_blocking=True)
        spectrum = torch.stft(
            waves, extractor.n_fft, extractor.hop_length, window=window, return_complex=True
        )
        loudness = (filters.T @ spectrum[..., :-1].abs().square()).clamp(min=1e-10).log10()
        return (torch.maximum(loudness, loudness.amax((1, 2), keepdim=True) - 8.0) + 4.0) / 4.0

    features_of = by_library if faulty else by_hand
    turn = 0

    def step() -> None:
        nonlocal turn
        turn = (turn + rows) % len(calls)
        chosen = slice(turn, turn + rows)
        features = features_of(chosen)
        with autocast():
            loss = model(input_features=features, labels=labels[chosen]).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


class FrameNet(nn.Module):
    """A network for pictures that looks at some frames of a clip and takes the mean."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        from transformers import ResNetConfig, ResNetModel

        widths = [64, 128, 256, 512] if DEVICE == "cuda" else [8, 8, 16, 16]
        depths = [2, 2, 2, 2] if DEVICE == "cuda" else [1, 1, 1, 1]
        config = ResNetConfig(
            embedding_size=widths[0], hidden_sizes=widths, depths=depths, layer_type="basic"
        )
        self.body = ResNetModel(config)
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, clips: Tensor) -> Tensor:
        """Scores of the actions."""
        frames = clips.flatten(0, 1).contiguous(memory_format=torch.channels_last)
        seen = self.body(pixel_values=frames).pooler_output.flatten(1)
        return self.head(seen.unflatten(0, clips.shape[:2]).mean(1))


@pair(
    "frames-normalised-on-the-cpu",
    "Frames become floats and are normalised on the CPU; the four times larger batch is copied unpinned.",
    "The bytes are pinned and copied; the device makes floats of them and normalises.",
)
def ninth_action_clips(faulty: bool) -> Step:
    """Actions are told from eight frames of a clip."""
    rows, frames, side = sized(32, 2), sized(8, 2), sized(160, 32)
    clips = torch.randint(0, 256, (4 * rows, frames, 3, side, side), dtype=torch.uint8)
    labels = torch.randint(0, 100, (4 * rows,))
    model = FrameNet(100).to(DEVICE, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9, weight_decay=1e-4, nesterov=True)
    middle = torch.tensor([0.485, 0.456, 0.406])[:, None, None]
    spread = torch.tensor([0.229, 0.224, 0.225])[:, None, None]
    middle_there, spread_there = middle.to(DEVICE), spread.to(DEVICE)

    def loaded(chosen: Tensor) -> tuple[Tensor, Tensor]:
        if faulty:
            batch = (clips[chosen].float() / 255.0 - middle) / spread
            return batch.to(DEVICE), labels[chosen].to(DEVICE)
        taken, known = clips[chosen], labels[chosen]
        sent, known = (pinned(part).to(DEVICE, non_blocking=True) for part in (taken, known))
        return (sent.float() / 255.0 - middle_there) / spread_there, known

    def step() -> None:
        batch, known = loaded(torch.randperm(len(clips))[:rows])
        with autocast():
            loss = functional.cross_entropy(model(batch), known, label_smoothing=0.1)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
