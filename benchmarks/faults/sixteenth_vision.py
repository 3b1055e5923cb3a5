"""Models that see: one outlines streets, one sorts leaves and one sorts galaxies."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import torch
from benchmarks.faults.library_models import autocast
from benchmarks.faults.models import DEVICE, adamw, images, on_images, pinned, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional

LOG_EVERY = 50


def double(inside: int, outside: int, stride: int = 1) -> nn.Module:
    """Two convolutions with their norms."""
    return nn.Sequential(
        nn.Conv2d(inside, outside, 3, stride=stride, padding=1, bias=False),
        nn.BatchNorm2d(outside),
        nn.ReLU(inplace=True),
        nn.Conv2d(outside, outside, 3, padding=1, bias=False),
        nn.BatchNorm2d(outside),
        nn.ReLU(inplace=True),
    )


class Outliner(nn.Module):
    """A small network that tells the class of every point of a picture."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width // 2, 3, padding=1)
        self.fine = double(width // 2, width, 2)
        self.coarse = double(width, 4 * width, 2)
        self.widen = nn.ModuleList(
            [
                nn.ConvTranspose2d(4 * width, width, 2, stride=2),
                nn.ConvTranspose2d(width, width // 2, 2, stride=2),
            ]
        )
        self.last = nn.Conv2d(width // 2, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of all classes at every point."""
        x = torch.relu(self.first(x))
        fine = self.fine(x)
        back = fine + self.widen[0](self.coarse(fine))
        return self.last(x + self.widen[1](back))


def dice(scores: Tensor, labels: Tensor, *, written_out: bool) -> Tensor:
    """How little the guessed areas of the classes lie on the true ones."""
    shares = scores.float().softmax(1)
    if written_out:
        truth = functional.one_hot(labels, scores.shape[1]).permute(0, 3, 1, 2).float()
        shared, area = (shares * truth).sum((2, 3)), truth.sum((2, 3))
    else:
        flat = labels.flatten(1)
        empty = shares.new_zeros(scores.shape[:2])
        right = shares.gather(1, labels[:, None]).flatten(1)
        shared = empty.scatter_add(1, flat, right)
        area = empty.scatter_add(1, flat, torch.ones_like(right))
    return 1 - ((2 * shared + 1) / (shares.sum((2, 3)) + area + 1)).mean()


@pair(
    "one-hot-labels-for-the-dice-loss",
    "The labels of all points are written out as one_hot for the dice loss: 64 integers of eight bytes for"
    " each point, then turned around, made float and multiplied with the shares.",
    "Pick the shares of the true classes by gather and add them up by class with scatter_add.",
)
def sixteenth_street_outliner(faulty: bool) -> Step:
    """A network outlines what stands in a street, with cross entropy and the dice loss."""
    classes = sized(64, 8)
    model = on_images(Outliner(sized(64, 8), classes), dtype=torch.float32)
    optimizer = adamw(model)
    streets = images(8, 512, dtype=torch.float32)
    spots = torch.randint(0, classes, (len(streets), 1, 16, 16), device=DEVICE).float()
    labels = functional.interpolate(spots, size=streets.shape[2:]).squeeze(1).long()
    numbers = itertools.count()
    losses: list[float] = []

    def step() -> Tensor:
        with autocast():
            scores = model(streets)
            loss = functional.cross_entropy(scores, labels) + dice(scores, labels, written_out=faulty)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if next(numbers) % LOG_EVERY == LOG_EVERY - 1:
            losses.append(loss.item())
        return loss.detach()

    return step


@pair(
    "weight-penalty-in-the-loss",
    "The squares of all weights are added up tensor by tensor and put into the loss, with a backward pass"
    " through it all, for what the optimizer does as weight decay along the way.",
    "Leave the penalty out of the loss and give the optimizer weight_decay=1e-4, which is the same in SGD.",
)
def sixteenth_leaf_sorter(faulty: bool) -> Step:
    """A ResNet-50 of timm learns to tell trees by their leaves."""
    import timm

    decay, rows = 1e-4, sized(24, 2)
    kind = "resnet50" if DEVICE == "cuda" else "resnet18"
    model: Any = on_images(timm.create_model(kind, num_classes=100), dtype=torch.float32).train()
    optimizer = torch.optim.SGD(
        model.parameters(), lr=1e-3, momentum=0.9, weight_decay=0.0 if faulty else decay, fused=True
    )
    leaves = images(24, 192, dtype=torch.float32)
    labels = torch.randint(0, 100, (rows,), device=DEVICE)
    numbers = itertools.count()
    losses: list[float] = []

    def step() -> Tensor:
        with autocast():
            loss = mistakes = functional.cross_entropy(model(leaves), labels)
        if faulty:
            loss = mistakes + 0.5 * decay * sum(weight.pow(2).sum() for weight in model.parameters())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if next(numbers) % LOG_EVERY == LOG_EVERY - 1:
            losses.append(mistakes.item())
        return mistakes.detach()

    return step


@dataclass
class Settings:
    """How a model is trained."""

    device_type: str
    dtype: torch.dtype = torch.bfloat16
    lr: float = 3e-4


class Teacher:
    """Trains a model, in mixed precision."""

    def __init__(self, model: nn.Module, settings: Settings) -> None:
        self.model, self.settings = model, settings
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=settings.lr, fused=True)

    def teach(self, pictures: Tensor, labels: Tensor) -> Tensor:
        """One step of training."""
        with torch.autocast(self.settings.device_type, self.settings.dtype):
            loss = functional.cross_entropy(self.model(pictures), labels)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()


@pair(
    "autocast-for-another-device",
    'The settings still say device_type="cpu", so autocast changes nothing on the GPU and all products of'
    " the model run in float32.",
    "Autocast for the device of the model: torch.autocast(pictures.device.type, torch.bfloat16).",
)
def sixteenth_galaxy_sorter(faulty: bool) -> Step:
    """A vision transformer of timm sorts galaxies by their shape, in mixed precision."""
    import timm

    options: dict[str, Any] = {} if DEVICE == "cuda" else {"depth": 1, "embed_dim": 64, "num_heads": 1}
    model: Any = timm.create_model(
        "vit_small_patch16_224", num_classes=10, img_size=sized(224, 32), **options
    )
    teacher = Teacher(model.to(DEVICE).train(), Settings("cpu" if faulty else DEVICE))
    rows, side = sized(64, 2), sized(224, 32)
    batches = [
        (pinned(torch.rand(rows, 3, side, side)), pinned(torch.randint(0, 10, (rows,)))) for _ in range(4)
    ]
    ahead, numbers = itertools.cycle(batches), itertools.count()
    losses: list[float] = []

    def step() -> Tensor:
        pictures, labels = (part.to(DEVICE, non_blocking=True) for part in next(ahead))
        loss = teacher.teach(pictures, labels)
        if next(numbers) % LOG_EVERY == LOG_EVERY - 1:
            losses.append(loss.item())
        return loss

    return step
