"""Training scripts that read their batches through DataLoaders: speech, text, clicks and essays."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from typing import Any

import torch
from benchmarks.faults.library_models import WORDS, autocast, bert, tokenizer
from benchmarks.faults.models import DEVICE, adamw, gpt, next_word_loss, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, TensorDataset

RATE = 16_000
FEATURES = 80
ON_GPU = DEVICE == "cuda"


def endless(loader: DataLoader[Any]) -> Iterator[Any]:
    """Epoch after epoch."""
    while True:
        yield from loader


class SpokenWords(Dataset[tuple[Tensor, int]]):
    """Clips of a second, changed a little every time they are read."""

    def __init__(self, clips: int, classes: int) -> None:
        self.waves = torch.randint(-20_000, 20_000, (min(clips, 512), RATE), dtype=torch.int16)
        self.clips = clips
        self.classes = classes
        self.window = torch.hann_window(400)
        self.filters = torch.rand(FEATURES, 201).softmax(-1)

    def __len__(self) -> int:
        return self.clips

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        wave = self.waves[index % len(self.waves)].float() / 32_768
        speed = random.uniform(0.9, 1.1)
        wave = functional.interpolate(wave[None, None], scale_factor=speed, mode="linear")[0, 0]
        wave = functional.pad(wave, (0, max(0, RATE - len(wave))))[:RATE]
        wave = wave.roll(random.randrange(-1600, 1600)) + 0.005 * torch.randn(RATE)
        spectrum = torch.stft(wave, 400, 160, window=self.window, return_complex=True).abs().square()
        mel = (self.filters @ spectrum).clamp(min=1e-6).log10()
        mel = (mel - mel.mean()) / (mel.std() + 1e-5)
        low, start = random.randrange(FEATURES - 12), random.randrange(mel.shape[1] - 20)
        mel[low : low + 12] = 0.0
        mel[:, start : start + 20] = 0.0
        return mel[None], index % self.classes


class WordSpotter(nn.Module):
    """Convolutions over a spectrogram."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        parts: list[nn.Module] = []
        inside = 1
        for turn in range(4):
            outside = width << turn
            parts += [
                nn.Conv2d(inside, outside, 3, padding=1, bias=False),
                nn.BatchNorm2d(outside),
                nn.ReLU(),
                nn.Conv2d(outside, outside, 3, stride=2, padding=1, bias=False),
                nn.BatchNorm2d(outside),
                nn.ReLU(),
            ]
            inside = outside
        self.body = nn.Sequential(*parts)
        self.head = nn.Linear(inside, classes)

    def forward(self, mel: Tensor) -> Tensor:
        """Scores of the words."""
        return self.head(self.body(mel).mean((2, 3)))


@pair(
    "data-loaded-in-the-main-process",
    "Speech is augmented and turned into spectrograms by a DataLoader with its default num_workers=0.",
    "num_workers=8 with persistent workers.",
)
def keyword_listener(faulty: bool) -> Step:
    """A small network learns to spot words in clips of a second."""
    classes = 35
    data = SpokenWords(sized(80_000, 400), classes)
    workers: dict[str, Any] = {} if faulty else {"num_workers": sized(8, 2), "persistent_workers": True}
    loader = DataLoader(
        data, batch_size=sized(64, 4), shuffle=True, drop_last=True, pin_memory=ON_GPU, **workers
    )
    model = WordSpotter(sized(64, 4), classes).to(DEVICE, memory_format=torch.channels_last)
    optimizer = adamw(model)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100_000)
    batches = endless(loader)

    def step() -> None:
        mel, labels = next(batches)
        mel = mel.to(DEVICE, non_blocking=True, memory_format=torch.channels_last)
        labels = labels.to(DEVICE, non_blocking=True)
        with autocast():
            loss = functional.cross_entropy(model(mel), labels)
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()

    return step


class Tickets(Dataset[tuple[str, int]]):
    """Short texts that customers wrote, and the team that answered."""

    def __init__(self, count: int) -> None:
        chosen = random.Random(11)
        known = sized(WORDS, 200)
        self.texts = [
            " ".join(f"word{chosen.randrange(known)}" for _ in range(chosen.randrange(8, 64)))
            for _ in range(count)
        ]

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> tuple[str, int]:
        return self.texts[index], index % 10


@pair(
    "padding-to-the-maximum-length",
    'Tickets of 8 to 63 words are padded to 512 tokens by the tokenizer: padding="max_length".',
    "padding=True: to the longest text of the batch.",
)
def ticket_router(faulty: bool) -> Step:
    """BERT learns which team should answer a ticket."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    encode = tokenizer()
    padding: str | bool = "max_length" if faulty else True
    longest = sized(512, 96)

    def collate(rows: list[tuple[str, int]]) -> dict[str, Tensor]:
        texts, teams = zip(*rows, strict=True)
        batch = encode(list(texts), padding=padding, truncation=True, max_length=longest, return_tensors="pt")
        return {
            "input_ids": batch["input_ids"],
            "attention_mask": batch["attention_mask"],
            "labels": torch.tensor(teams),
        }

    loader = DataLoader(
        Tickets(sized(40_000, 200)),
        batch_size=sized(48, 4),
        shuffle=True,
        drop_last=True,
        collate_fn=collate,
        num_workers=sized(4, 1),
        pin_memory=ON_GPU,
        persistent_workers=True,
    )
    model = bert(12, 768)
    optimizer = adamw(model)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, 100_000)
    batches = endless(loader)

    def step() -> None:
        batch = {name: part.to(DEVICE, non_blocking=True) for name, part in next(batches).items()}
        with autocast():
            loss = model(**batch).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()

    return step


class ClickNet(nn.Module):
    """Embeddings of the fields and a few linear layers."""

    def __init__(self, fields: int, values: int, width: int, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(fields * values, width)
        self.register_buffer("offsets", torch.arange(fields) * values)
        self.layers = nn.Sequential(
            nn.Linear(fields * width + 13, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden // 2),
            nn.ReLU(),
            nn.Linear(hidden // 2, 1),
        )

    def forward(self, numbers: Tensor, ids: Tensor) -> Tensor:
        """A score for every row."""
        found = self.embedding(ids + self.offsets).flatten(1)
        return self.layers(torch.cat([numbers, found], 1))[:, 0]


@pair(
    "dataset-in-memory-read-row-by-row",
    "Rows of a TensorDataset are fetched one by one and stacked again, 8192 of them for every batch.",
    "A BatchSampler as the sampler and batch_size=None: the dataset is indexed with all rows of a batch.",
)
def click_ranker(faulty: bool) -> Step:
    """A recommender learns what is clicked on."""
    rows, fields, values, size = sized(2_000_000, 2000), 26, sized(20_000, 50), sized(8192, 64)
    data = TensorDataset(
        torch.randn(rows, 13),
        torch.randint(0, values, (rows, fields)),
        torch.randint(0, 2, (rows,)).float(),
    )
    options: dict[str, Any] = {"num_workers": sized(4, 1), "pin_memory": ON_GPU, "persistent_workers": True}
    if faulty:
        loader = DataLoader(data, batch_size=size, shuffle=True, drop_last=True, **options)
    else:
        sampler = BatchSampler(RandomSampler(data), size, drop_last=True)
        loader = DataLoader(data, sampler=sampler, batch_size=None, **options)
    model = ClickNet(fields, values, sized(32, 4), sized(1024, 32)).to(DEVICE)
    optimizer = adamw(model)
    batches = endless(loader)

    def step() -> None:
        numbers, ids, clicked = (part.to(DEVICE, non_blocking=True) for part in next(batches))
        with autocast():
            scores = model(numbers, ids)
        loss = functional.binary_cross_entropy_with_logits(scores.float(), clicked)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


class Essays(Dataset[Tensor]):
    """Pieces of one long row of tokens."""

    def __init__(self, count: int, length: int) -> None:
        self.tokens = torch.randint(0, 1024, (count * length,))
        self.length = length

    def __len__(self) -> int:
        return len(self.tokens) // self.length

    def __getitem__(self, index: int) -> Tensor:
        return self.tokens[index * self.length : (index + 1) * self.length]


@pair(
    "data-loaded-in-the-main-process",
    "A language model reads slices of a tensor through a DataLoader with num_workers=0.",
    "num_workers=4: the device is the bound, and a batch of slices costs next to nothing.",
    kind="fair",
)
def essay_writer(faulty: bool) -> Step:
    """A language model learns essays that are tokenized already."""
    workers: dict[str, Any] = {} if faulty else {"num_workers": sized(4, 1), "persistent_workers": True}
    loader = DataLoader(
        Essays(sized(20_000, 100), sized(1024, 16)),
        batch_size=sized(16, 2),
        shuffle=True,
        drop_last=True,
        pin_memory=ON_GPU,
        **workers,
    )
    model = gpt(8, 1024)
    optimizer = adamw(model)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100_000)
    batches = endless(loader)

    def step() -> None:
        tokens = next(batches).to(DEVICE, non_blocking=True)
        loss = next_word_loss(model, tokens)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()

    return step
