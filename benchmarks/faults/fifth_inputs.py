"""Programs whose batches come from somewhere: photos, clips, clicks and text on their way to the device."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import torch
from benchmarks.faults.library_models import autocast, tokens
from benchmarks.faults.models import DEVICE, adamw, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

# ---------------------------------------------------------------- photos


def jpegs(count: int, width: int, height: int) -> list[bytes]:
    """Photos as they lie in a folder, compressed."""
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(1)
    files = []
    for _ in range(count):
        coarse = rng.integers(0, 255, (height // 8, width // 8, 3), dtype=np.uint8)
        kept = io.BytesIO()
        photo = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
        photo.save(kept, "JPEG", quality=90)
        files.append(kept.getvalue())
    return files


class Photos(Dataset[tuple[Tensor, int]]):
    """Photos with a class each, augmented as for ImageNet."""

    def __init__(self, files: list[bytes], side: int, classes: int) -> None:
        from torchvision import transforms

        self.files = files
        self.classes = classes
        self.transform = transforms.Compose(
            [
                transforms.RandomResizedCrop(side),
                transforms.RandomHorizontalFlip(),
                transforms.ColorJitter(0.2, 0.2),
                transforms.ToTensor(),
                transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
            ]
        )

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        from PIL import Image

        photo = Image.open(io.BytesIO(self.files[index % len(self.files)])).convert("RGB")
        return self.transform(photo), index % self.classes


def endless(loader: DataLoader[Any]) -> Iterator[Any]:
    """One epoch after the other."""
    while True:
        yield from loader


@pair(
    "photos-decoded-in-the-main-process",
    "A ResNet-50 of timm is trained on JPEG photos with a DataLoader that has no workers.",
    "num_workers=8, persistent_workers=True.",
    light_steps=3,
)
def fifth_image_folder(faulty: bool) -> Step:
    """Each photo is decoded, cut and normalised between two steps of training."""
    import timm

    classes = 100
    photos = Photos(jpegs(sized(192, 8), 500, 375), sized(224, 32), classes)
    options: dict[str, Any] = {"batch_size": sized(24, 2), "shuffle": True, "drop_last": True}
    if not faulty:
        options |= {"num_workers": sized(8, 1), "persistent_workers": True, "prefetch_factor": 4}
    batches = endless(DataLoader(photos, pin_memory=DEVICE == "cuda", **options))
    name = "resnet50" if DEVICE == "cuda" else "resnet18"
    model = timm.create_model(name, num_classes=classes).to(DEVICE, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-5)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100_000)
    correct = torch.zeros((), device=DEVICE)

    def train_step() -> None:
        images, labels = next(batches)
        images = images.to(DEVICE, non_blocking=True, memory_format=torch.channels_last)
        labels = labels.to(DEVICE, non_blocking=True)
        optimizer.zero_grad(set_to_none=True)
        with autocast():
            scores = model(images)
            loss = functional.cross_entropy(scores, labels, label_smoothing=0.1)
        loss.backward()
        optimizer.step()
        scheduler.step()
        correct.add_((scores.argmax(1) == labels).sum())

    return train_step


# ---------------------------------------------------------------- clips


class ClipNet(nn.Module):
    """Three-dimensional convolutions over short clips."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()

        def part(inside: int, outside: int, stride: int) -> list[nn.Module]:
            convolution = nn.Conv3d(inside, outside, 3, stride=stride, padding=1, bias=False)
            return [convolution, nn.BatchNorm3d(outside), nn.ReLU(inplace=True)]

        self.body = nn.Sequential(
            *part(3, width, 2),
            *part(width, 2 * width, 2),
            *part(2 * width, 4 * width, 2),
            *part(4 * width, 4 * width, 1),
            *part(4 * width, 8 * width, 2),
        )
        self.head = nn.Linear(8 * width, classes)

    def forward(self, clips: Tensor) -> Tensor:
        """Scores of the actions."""
        return self.head(self.body(clips).mean((2, 3, 4)))


@pair(
    "clips-made-float-on-the-host",
    "Clips of bytes are turned into normalised fp32 on the CPU and then copied to the device.",
    "The bytes are copied, and normalised on the device.",
)
def fifth_video_clips(faulty: bool) -> Step:
    """Four times the bytes travel, from pageable memory, after several passes on the CPU."""
    frames, side = sized(16, 4), sized(112, 32)
    store = torch.randint(0, 256, (sized(96, 4), 3, frames, side, side), dtype=torch.uint8)
    actions = torch.randint(0, 50, (len(store),))
    mean = torch.tensor([0.432, 0.395, 0.376]).view(3, 1, 1, 1)
    std = torch.tensor([0.228, 0.221, 0.217]).view(3, 1, 1, 1)
    on_device = mean.to(DEVICE), std.to(DEVICE)
    model = ClipNet(sized(32, 4), 50).to(DEVICE)
    optimizer = adamw(model)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=1000)
    seen: list[Tensor] = []

    def load_clips() -> tuple[Tensor, Tensor]:
        chosen = torch.randint(0, len(store), (sized(48, 2),))
        if faulty:
            clips = (store[chosen].float() / 255.0 - mean) / std
            return clips.to(DEVICE), actions[chosen].to(DEVICE)
        clips = store[chosen].to(DEVICE)
        return (clips.float() / 255.0 - on_device[0]) / on_device[1], actions[chosen].to(DEVICE)

    def train_step() -> None:
        clips, labels = load_clips()
        with autocast():
            loss = functional.cross_entropy(model(clips), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        seen.append(loss.detach())
        if len(seen) == 100:
            print(f"loss {torch.stack(seen).mean().item():.3f}")
            seen.clear()

    return train_step


# ---------------------------------------------------------------- clicks


class ClickModel(nn.Module):
    """A recommender: one table of embeddings for all hashed features, and a small network on top."""

    def __init__(self, rows: int, width: int, fields: int, dense: int, *, sparse: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(rows, width, sparse=sparse)
        self.bottom = nn.Sequential(nn.Linear(dense, 256), nn.ReLU(), nn.Linear(256, width), nn.ReLU())
        self.top = nn.Sequential(
            nn.Linear((fields + 1) * width, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 1)
        )

    def forward(self, ids: Tensor, counts: Tensor) -> Tensor:
        """How likely a click is, as a logit."""
        parts = torch.cat([self.table(ids).flatten(1), self.bottom(counts)], 1)
        return self.top(parts).squeeze(1)


@pair(
    "dense-gradient-of-a-large-table",
    "A recommender's table of twenty million rows has a dense gradient, and Adam goes over all of it.",
    "nn.Embedding(sparse=True) with SparseAdam for the table.",
)
def fifth_click_model(faulty: bool) -> Step:
    """Few rows are looked up, but all of them are zeroed, read and written."""
    rows, fields, dense, batch = sized(20_000_000, 1000), sized(26, 4), 13, sized(8192, 8)
    with torch.device(DEVICE):
        model = ClickModel(rows, sized(64, 8), fields, dense, sparse=not faulty)
    if faulty:
        optimizers: list[torch.optim.Optimizer] = [torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)]
    else:
        others = [*model.bottom.parameters(), *model.top.parameters()]
        optimizers = [
            torch.optim.SparseAdam(list(model.table.parameters()), lr=1e-3),
            torch.optim.Adam(others, lr=1e-3, fused=True),
        ]
    ids = [tokens(rows, batch, fields) for _ in range(4)]
    counts = torch.rand(batch, dense, device=DEVICE).log1p()
    clicked = (torch.rand(batch, device=DEVICE) < 0.2).float()
    hits = torch.zeros((), device=DEVICE)
    turn = iter(range(1_000_000_000))

    def train_step() -> None:
        with autocast():
            logits = model(ids[next(turn) % len(ids)], counts)
        loss = functional.binary_cross_entropy_with_logits(logits.float(), clicked)
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        hits.add_(((logits > 0).float() == clicked).float().mean())

    return train_step
