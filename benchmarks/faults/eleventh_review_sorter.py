"""An encoder of transformers that is tuned to sort reviews, its lower layers more slowly."""

from __future__ import annotations

from typing import Any

import torch
from benchmarks.faults.library_models import autocast, bert, tokens
from benchmarks.faults.models import sized
from benchmarks.faults.registry import Step, pair
from torch import nn

RATE, DECAY = 5e-5, 0.9


def depth_of(name: str, layers: int) -> int:
    """How far a weight is from the input."""
    if ".layer." in name:
        return 1 + int(name.split(".layer.")[1].split(".", maxsplit=1)[0])
    return 0 if "embeddings" in name else layers + 1


def settings(name: str, layers: int) -> tuple[float, float]:
    """Learning rate and weight decay of a weight."""
    rate = RATE * DECAY ** (layers + 1 - depth_of(name, layers))
    return rate, 0.0 if name.endswith("bias") or "LayerNorm" in name else 0.01


def group_for_each(model: nn.Module, layers: int) -> list[dict[str, Any]]:
    """What the optimizer is told of every weight."""
    groups = []
    for name, weight in model.named_parameters():
        rate, decay = settings(name, layers)
        groups.append({"params": [weight], "lr": rate, "weight_decay": decay})
    return groups


def groups_by_settings(model: nn.Module, layers: int) -> list[dict[str, Any]]:
    """What the optimizer is told of the weights of each layer."""
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, weight in model.named_parameters():
        groups.setdefault(settings(name, layers), []).append(weight)
    return [
        {"params": weights, "lr": rate, "weight_decay": decay} for (rate, decay), weights in groups.items()
    ]


@pair(
    "optimizer-group-for-every-parameter",
    "Layer-wise learning rates are given as one parameter group for each of 200 weights: AdamW runs once"
    " for each of them.",
    "Weights with the same settings share a group.",
)
def eleventh_review_sorter(faulty: bool) -> Step:
    """Twelve layers learn to sort reviews."""
    layers = sized(12, 1)
    model = bert(12, 512, attn_implementation="sdpa")
    grouped = group_for_each if faulty else groups_by_settings
    optimizer = torch.optim.AdamW(grouped(model, layers), lr=RATE)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda turn: min(1.0, (turn + 1) / 100))
    reviews, stars = tokens(sized(30_000, 200), sized(32, 2), sized(128, 16)), tokens(10, sized(32, 2))

    def step() -> None:
        with autocast():
            loss = model(input_ids=reviews, labels=stars).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()

    return step
