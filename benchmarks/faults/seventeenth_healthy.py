"""Programs with a pattern that costs nothing where it stands, and programs that are well as they are."""

from __future__ import annotations

import itertools

import torch
from benchmarks.faults.library_models import autocast
from benchmarks.faults.models import (
    DEVICE,
    HALF,
    ResNet,
    adamw,
    gpt,
    images,
    next_word_loss,
    on_images,
    pinned,
    sized,
    wide_mlp,
)
from benchmarks.faults.registry import Step, healthy, pair
from torch import Tensor, nn
from torch.nn import functional

LOG_EVERY = 50


@pair(
    "augmented-views-one-by-one",
    "Four views of each photo are judged in four calls. Each call alone fills the device, so that one call"
    " with all views takes as long.",
    "Join the views and call the model once.",
    kind="fair",
)
def seventeenth_moth_trap(faulty: bool) -> Step:
    """A network names moths by the mean of what it says of a photo and its mirror images."""
    model = on_images(ResNet(sized(64, 8), blocks=2)).eval()
    moths = images(96, 256)
    turns: list[tuple[int, ...]] = [(), (2,), (3,), (2, 3)]

    @torch.inference_mode()
    def step() -> Tensor:
        views = [moths.flip(turn) if turn else moths for turn in turns]
        if faulty:
            scores = torch.stack([model(view).float().softmax(-1) for view in views])
        else:
            scores = model(torch.cat(views)).float().softmax(-1).view(len(views), len(moths), -1)
        return scores.mean(0).argmax(-1).cpu()

    return step


@pair(
    "distances-by-broadcasting",
    "Distances to the prototypes are computed from all differences written out. With some hundreds of"
    " queries and twenty prototypes that is nothing beside the network that saw them.",
    "Compute the distances from products, or by torch.cdist.",
    kind="fair",
)
def seventeenth_rare_orchids(faulty: bool) -> Step:
    """A prototypical network learns to tell orchids of which it has seen five photos each."""
    ways, shots, asked = sized(20, 3), sized(5, 2), sized(10, 2)
    side, width = sized(160, 32), sized(64, 8)
    torch.manual_seed(0)
    model = on_images(ResNet(width, classes=sized(256, 16)), dtype=torch.float32)
    optimizer = adamw(model)
    orchids = torch.randn(ways * (shots + asked), 3, side, side, device=DEVICE)
    orchids = orchids.to(memory_format=torch.channels_last)
    labels = torch.arange(ways, device=DEVICE).repeat_interleave(asked)
    numbers = itertools.count()
    losses: list[float] = []

    def step() -> Tensor:
        with autocast():
            seen = model(orchids)
        known, queries = seen.float().split([ways * shots, ways * asked])
        prototypes = known.view(ways, shots, -1).mean(1)
        if faulty:
            distances = (queries[:, None] - prototypes[None]).square().sum(-1)
        else:
            squares = queries.square().sum(-1, keepdim=True) + prototypes.square().sum(-1)
            distances = squares - 2 * queries @ prototypes.T
        loss = functional.cross_entropy(-distances, labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if next(numbers) % LOG_EVERY == LOG_EVERY - 1:
            losses.append(loss.item())
        return loss.detach()

    return step


@healthy(
    "A compiled language model learns in bf16 with torch's own attention and a fused optimizer; batches come"
    " from pinned memory and the loss is read every fifty steps."
)
def seventeenth_poem_model() -> Step:
    """A language model learns from poems."""
    model = gpt(6, 2048)
    loss_of = torch.compile(next_word_loss, dynamic=False) if DEVICE == "cuda" else next_word_loss
    optimizer = adamw(model)
    batches = [pinned(torch.randint(0, 1024, (sized(16, 2), sized(1024, 16)))) for _ in range(4)]
    ahead, numbers = itertools.cycle(batches), itertools.count()
    losses: list[float] = []

    def step() -> Tensor:
        loss = loss_of(model, next(ahead).to(DEVICE, non_blocking=True))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if next(numbers) % LOG_EVERY == LOG_EVERY - 1:
            losses.append(loss.item())
        return loss.detach()

    return step


@healthy(
    "Wide linear layers in bf16 answer for large batches without gradients; the questions come from pinned"
    " memory, and the answers of all batches are fetched together at the end."
)
def seventeenth_wing_shapes() -> Step:
    """A surrogate model tells the lift of many shapes of a wing."""
    width, points = sized(8192, 64), sized(64, 8)
    first, last = (nn.Linear(*shape).to(DEVICE, HALF) for shape in ((points, width), (width, 8)))
    model = nn.Sequential(first, nn.ReLU(), wide_mlp(8192, 6), last).eval()
    shapes = [pinned(torch.randn(sized(8192, 4), points).to(HALF)) for _ in range(4)]

    @torch.inference_mode()
    def step() -> Tensor:
        lifts = [model(shape.to(DEVICE, non_blocking=True)) for shape in shapes]
        return torch.cat(lifts).cpu()

    return step
