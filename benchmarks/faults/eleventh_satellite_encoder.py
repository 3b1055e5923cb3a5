"""A ResNet of torchvision on pictures from above, with an average of its weights."""

from __future__ import annotations

import copy

import torch
from benchmarks.faults.library_models import autocast, tokens
from benchmarks.faults.models import adamw, images, on_images, sized
from benchmarks.faults.registry import Step, pair
from torch import nn
from torch.nn import functional


@pair(
    "average-of-weights-in-a-loop",
    "The average of the weights is kept by a Python loop over 161 tensors, two small kernels each.",
    "torch._foreach_lerp_() over all of them.",
    kind="fair",
)
def eleventh_satellite_encoder(faulty: bool) -> Step:
    """A ResNet-50 learns to tell what the land is used for."""
    from torchvision.models import resnet50

    model = on_images(resnet50(weights=None, num_classes=64), dtype=torch.float32)
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = adamw(model)
    rows = sized(256, 2)
    pictures, uses = images(rows, 224, dtype=torch.float32), tokens(64, rows)
    pairs: tuple[list[nn.Parameter], list[nn.Parameter]] = (
        list(average.parameters()),
        list(model.parameters()),
    )

    def step() -> None:
        with autocast():
            loss = functional.cross_entropy(model(pictures), uses)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            if faulty:
                for kept, now in zip(*pairs, strict=True):
                    kept.mul_(0.999).add_(now, alpha=0.001)
            else:
                torch._foreach_lerp_(pairs[0], pairs[1], 0.001)

    return step
