"""A small network that labels every pixel of a street, with metrics of torchmetrics."""

from __future__ import annotations

from typing import Any

import torch
from benchmarks.faults.library_models import autocast, tokens
from benchmarks.faults.models import DEVICE, adamw, images, on_images, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional

CLASSES = 19


def convolution(inside: int, outside: int, stride: int = 1) -> nn.Module:
    """A convolution with its norm."""
    return nn.Sequential(
        nn.Conv2d(inside, outside, 3, stride=stride, padding=1, bias=False),
        nn.BatchNorm2d(outside),
        nn.ReLU(inplace=True),
    )


class Labeller(nn.Module):
    """Works at an eighth of the size and enlarges the scores at the end."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            convolution(3, width, 2),
            convolution(width, 2 * width, 2),
            convolution(2 * width, 4 * width, 2),
            *[convolution(4 * width, 4 * width) for _ in range(4)],
        )
        self.head = nn.Conv2d(4 * width, CLASSES, 1)

    def forward(self, pictures: Tensor) -> Tensor:
        """Scores of the classes at every pixel."""
        scores = self.head(self.body(pictures))
        return functional.interpolate(scores, scale_factor=8.0, mode="bilinear", align_corners=False)


@pair(
    "metric-arguments-validated-in-every-step",
    "torchmetrics checks its arguments (the default): each metric sorts all labels and all guesses with"
    " torch.unique() and waits for the count.",
    "validate_args=False.",
)
def eleventh_street_scene(faulty: bool) -> Step:
    """A labeller of streets is trained, and its scores are followed."""
    from torchmetrics import MetricCollection
    from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score, MulticlassJaccardIndex

    rows, side = sized(24, 2), sized(512, 32)
    model = on_images(Labeller(sized(48, 8)), dtype=torch.float32)
    optimizer = adamw(model)
    options: dict[str, Any] = {} if faulty else {"validate_args": False}
    metrics = MetricCollection(
        {
            "accuracy": MulticlassAccuracy(CLASSES, **options),
            "f1": MulticlassF1Score(CLASSES, **options),
            "iou": MulticlassJaccardIndex(CLASSES, **options),
        }
    ).to(DEVICE)
    pictures = images(rows, side, dtype=torch.float32)
    labels = tokens(CLASSES, *pictures.shape[:1], *pictures.shape[2:])

    def step() -> None:
        with autocast():
            scores = model(pictures)
            loss = functional.cross_entropy(scores, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        metrics.update(scores.detach().argmax(1), labels)

    return step
