"""Training loops whose batches are read, cleaned, transformed or looked up while the model learns."""

from __future__ import annotations

import html
import random
import re
import unicodedata
from collections.abc import Iterator
from typing import Any

import torch
from benchmarks.faults.library_models import WORDS, autocast, bert, tokenizer, tokens
from benchmarks.faults.models import DEVICE, adamw, pinned, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, RandomSampler

ENDLESS = 1_000_000_000


# ---------------------------------------------------------------- photos of leaves


class LeafPhotos(Dataset[tuple[Tensor, int]]):
    """Photos that were decoded beforehand, each with the disease that it shows."""

    def __init__(self, count: int, side: int, transform: Any) -> None:
        self.photos = torch.randint(0, 256, (count, 3, side, side), dtype=torch.uint8)
        self.diseases = [number % 38 for number in range(count)]
        self.transform = transform

    def __len__(self) -> int:
        return len(self.diseases)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.transform(self.photos[index]), self.diseases[index]


def leaf_transform(side: int, *, crop_last: bool) -> Any:
    """What a photo goes through before the network sees it."""
    from torchvision.transforms import v2

    crop = [v2.RandomResizedCrop(side, scale=(0.5, 1.0), antialias=True), v2.RandomHorizontalFlip()]
    colours = [v2.ToDtype(torch.float32, scale=True), v2.ColorJitter(0.3, 0.3, 0.3, 0.02)]
    normal = v2.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225])
    return v2.Compose([*colours, *crop, normal] if crop_last else [*crop, *colours, normal])


@pair(
    "transforms-in-the-wrong-order",
    "A ConvNeXt of timm is fine-tuned on photos of leaves; six workers apply transforms of torchvision.",
    "RandomResizedCrop on the bytes of the photo comes first, the colours are changed on the small picture.",
)
def tenth_plant_leaves(faulty: bool) -> Step:
    """Leaves are sorted by the disease that they show."""
    import timm

    side, rows = sized(160, 32), sized(32, 2)
    photos = LeafPhotos(sized(256, 4), sized(512, 64), leaf_transform(side, crop_last=faulty))
    loader = DataLoader(
        photos,
        batch_size=rows,
        sampler=RandomSampler(photos, replacement=True, num_samples=ENDLESS),
        num_workers=sized(6, 1),
        pin_memory=DEVICE == "cuda",
        persistent_workers=True,
        prefetch_factor=4,
        drop_last=True,
    )
    batches = iter(loader)
    name = "convnext_tiny" if DEVICE == "cuda" else "convnext_atto"
    model = timm.create_model(name, num_classes=38, drop_path_rate=0.1)
    model = model.to(DEVICE, memory_format=torch.channels_last)
    optimizer = adamw(model)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)

    def step() -> None:
        pictures, diseases = next(batches)
        pictures = pictures.to(DEVICE, non_blocking=True, memory_format=torch.channels_last)
        diseases = diseases.to(DEVICE, non_blocking=True)
        with autocast():
            loss = criterion(model(pictures), diseases)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


# ---------------------------------------------------------------- tickets of a help desk

URL = re.compile(r"https?://\S+|www\.\S+")
MAIL = re.compile(r"\b[\w.+-]+@[\w-]+\.[\w.]+\b")
TAG = re.compile(r"<[^>]+>")
REPEATED = re.compile(r"([!?.,])\1+")
SPACE = re.compile(r"\s+")
FILLERS = {"word0", "word1", "word2", "word3", "word4"}


def normalized(text: str) -> str:
    """A ticket without markup, addresses and words that say nothing."""
    text = unicodedata.normalize("NFKC", html.unescape(text))
    text = TAG.sub(" ", text)
    text = URL.sub(" ", text)
    text = MAIL.sub(" ", text)
    text = REPEATED.sub(r"\1", text)
    text = "".join(letter for letter in text if unicodedata.category(letter)[0] != "C" or letter == "\n")
    kept = [word for word in SPACE.split(text.lower()) if word and word not in FILLERS]
    return " ".join(kept)


def tickets(count: int, longest: int) -> list[str]:
    """Mails as customers write them."""
    rng = random.Random(7)
    return [
        "<p>Hello &amp; good day!!</p> see https://shop.example/order me@mail.example\n"
        + " ".join(f"word{rng.randrange(WORDS)}" for _ in range(rng.randint(longest // 2, longest)))
        for _ in range(count)
    ]


class TicketBatches:
    """Batches of tickets without end, in a new order every time round."""

    def __init__(self, mails: list[str], rows: int, longest: int) -> None:
        self.mails, self.rows, self.longest = mails, rows, longest
        self.tokenizer = tokenizer()
        self.encoded: list[Tensor] = []

    def encode(self, mails: list[str]) -> list[Tensor]:
        """Ids of the words of some tickets."""
        texts = [normalized(mail) for mail in mails]
        found = self.tokenizer(texts, truncation=True, max_length=self.longest)
        return [torch.tensor(ids) for ids in found["input_ids"]]

    def encode_once(self) -> None:
        """Keeps the ids of all tickets."""
        self.encoded = self.encode(self.mails)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        while True:
            order = torch.randperm(len(self.mails)).tolist()
            for start in range(0, len(order) - self.rows + 1, self.rows):
                chosen = order[start : start + self.rows]
                if self.encoded:
                    ids = [self.encoded[number] for number in chosen]
                else:
                    ids = self.encode([self.mails[number] for number in chosen])
                padded = nn.utils.rnn.pad_sequence(ids, batch_first=True)
                yield {"input_ids": padded, "attention_mask": (padded != 0).long()}


@pair(
    "text-cleaned-in-every-step",
    "A small BERT learns which team a ticket belongs to; batches are cut from a list of mails.",
    "Mails are cleaned and tokenized once, before training.",
)
def tenth_support_tickets(faulty: bool) -> Step:
    """Tickets are sorted by team."""
    rows, longest = sized(128, 4), sized(256, 16)
    source = TicketBatches(tickets(sized(2048, 16), longest), rows, longest)
    if not faulty:
        source.encode_once()
    batches = iter(source)
    model = bert(4, 384, attn_implementation="sdpa")
    if DEVICE == "cpu":
        model.resize_token_embeddings(WORDS + 2)
    optimizer = adamw(model)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda turn: min(1.0, (turn + 1) / 500))
    teams = tokens(10, rows)

    def step() -> None:
        batch = {name: pinned(value).to(DEVICE, non_blocking=True) for name, value in next(batches).items()}
        with autocast():
            loss = model(**batch, labels=teams).loss
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()

    return step


# ---------------------------------------------------------------- recordings of birds


@pair(
    "features-on-the-cpu",
    "A ResNet of timm learns the calls of birds from mel spectrograms made by torchaudio.",
    "The transforms are moved to the device and are given the waves there.",
)
def tenth_bird_calls(faulty: bool) -> Step:
    """Recordings of five seconds are sorted by species."""
    import timm
    from torchaudio import transforms

    rows, rate = sized(32, 2), sized(32_000, 4_000)
    recordings = torch.randn(4, rows, 5 * rate)
    shelf = [pinned(recording) for recording in recordings]
    species = tokens(264, rows)
    spectrogram = nn.Sequential(
        transforms.MelSpectrogram(rate, n_fft=1024, hop_length=320, n_mels=sized(128, 32), f_max=rate / 2),
        transforms.AmplitudeToDB(top_db=80),
        transforms.FrequencyMasking(12),
        transforms.TimeMasking(40),
    )
    spectrogram = spectrogram if faulty else spectrogram.to(DEVICE)
    model = timm.create_model("resnet18", in_chans=1, num_classes=264)
    model = model.to(DEVICE, memory_format=torch.channels_last)
    optimizer = adamw(model)
    turn = 0

    def features(waves: Tensor) -> Tensor:
        if not faulty:
            waves = waves.to(DEVICE, non_blocking=True)
        pictures = spectrogram(waves)
        pictures = (pictures - pictures.mean((1, 2), keepdim=True)) / 20
        return pictures.unsqueeze(1).to(DEVICE, non_blocking=True)

    def step() -> None:
        nonlocal turn
        turn += 1
        pictures = features(shelf[turn % len(shelf)])
        with autocast():
            loss = functional.cross_entropy(model(pictures), species)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


# ---------------------------------------------------------------- a ranker of clicks


class ClickRanker(nn.Module):
    """Tells from what somebody has looked at whether they will click on an item."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.attend = nn.Sequential(nn.Linear(4 * width, hidden), nn.GELU(), nn.Linear(hidden, 1))
        self.rank = nn.Sequential(
            nn.Linear(3 * width, 4 * hidden), nn.GELU(), nn.Linear(4 * hidden, hidden), nn.GELU()
        )
        self.click = nn.Linear(hidden, 1)

    def forward(self, history: Tensor, item: Tensor) -> Tensor:
        """The score of each item."""
        wanted = item[:, None].expand_as(history)
        seen = torch.cat([history, wanted, history - wanted, history * wanted], -1)
        share = torch.softmax(self.attend(seen), 1)
        taste = (share * history).sum(1)
        return self.click(self.rank(torch.cat([taste, item, taste * item], -1))).squeeze(-1)


@pair(
    "table-on-the-cpu",
    "A ranking model attends over the last fifty items of each user, given as frozen item vectors.",
    "The table of item vectors is moved to the device with the model.",
)
def tenth_click_ranker(faulty: bool) -> Step:
    """Clicks are told from the vectors of items that come from another model."""
    width, rows, length, items = sized(128, 8), sized(8192, 8), sized(50, 4), sized(1_000_000, 100)
    vectors = nn.Embedding.from_pretrained(torch.randn(items, width), freeze=True)
    if not faulty:
        vectors = vectors.to(DEVICE)
    model = ClickRanker(width, sized(64, 8)).to(DEVICE)
    optimizer = adamw(model)
    log = [
        (
            pinned(torch.randint(0, items, (rows, length))),
            pinned(torch.randint(0, items, (rows,))),
            torch.randint(0, 2, (rows,), device=DEVICE).float(),
        )
        for _ in range(8)
    ]
    turn = 0

    def looked_up(ids: Tensor) -> Tensor:
        place = vectors.weight.device
        return vectors(ids.to(place, non_blocking=True)).to(DEVICE, non_blocking=True)

    def step() -> None:
        nonlocal turn
        turn += 1
        history, item, clicked = log[turn % len(log)]
        with autocast():
            scores = model(looked_up(history), looked_up(item))
        loss = functional.binary_cross_entropy_with_logits(scores.float(), clicked)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
