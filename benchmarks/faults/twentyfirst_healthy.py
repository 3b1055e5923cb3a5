"""Programs that need no mending: patterns that cost nothing where they stand, and two that are well made."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from benchmarks.faults.library_models import autocast, noise
from benchmarks.faults.models import DEVICE, HALF, ResNet, adamw, graphed, on_images, pinned, sized
from benchmarks.faults.registry import Step, healthy, pair
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

# ---------------------------------------------------------------- fair


class Layer(nn.Module):
    """A layer of an encoder."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(1, width // 64)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Mixes all positions."""
        parts = self.qkv(self.norms[0](x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(*parts.unbind(0))
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.feed(self.norms[1](x))


def compile_each(layers: nn.Sequential) -> None:
    """Compiles the layers one by one: all share the code of the first."""
    for layer in layers if DEVICE == "cuda" else ():
        layer.compile()


class SpeakerEncoder(nn.Module):
    """Frames of speech to one vector."""

    def __init__(self, mels: int, width: int, layers: int) -> None:
        super().__init__()
        self.inside = nn.Linear(mels, width)
        self.layers = nn.Sequential(*(Layer(width) for _ in range(layers)))
        self.outside = nn.Linear(width, 128)

    def forward(self, frames: Tensor) -> Tensor:
        """The mean over the time."""
        return self.outside(self.layers(self.inside(frames)).mean(1))


@pair(
    "pairwise-similarity-by-broadcasting",
    "The cosines of all pairs are taken by broadcasting, but of 128 voices only, beside a large encoder.",
    "The features are normalized once and multiplied with their transpose.",
    kind="fair",
)
def speaker_twins(faulty: bool) -> Step:
    """Two cuts of the same voice are drawn together."""
    width, rows, length = sized(1024, 64), sized(128, 4), sized(256, 8)
    with torch.device(DEVICE):
        model = SpeakerEncoder(80, width, sized(8, 1)).to(HALF)
    optimizer = adamw(model)
    frames = noise(rows, length, 80)
    partner = torch.arange(rows, device=DEVICE).roll(rows // 2)
    itself = torch.eye(rows, dtype=torch.bool, device=DEVICE)

    def step() -> None:
        voices = model(frames).float()
        if faulty:
            cosines = functional.cosine_similarity(voices[:, None, :], voices[None, :, :], dim=-1)
        else:
            unit = functional.normalize(voices, dim=-1)
            cosines = unit @ unit.T
        loss = functional.cross_entropy((cosines / 0.07).masked_fill(itself, -9e15), partner)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


class Reef(Dataset[tuple[Tensor, int]]):
    """Pictures of a reef out of one packed array."""

    def __init__(self, packed: np.ndarray, *, scaled: bool) -> None:
        self.packed = packed
        self.scaled = scaled

    def __len__(self) -> int:
        return len(self.packed)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        picture = torch.from_numpy(self.packed[index]).permute(2, 0, 1).contiguous()
        return (picture.float().div(127.5).sub(1) if self.scaled else picture), index % 128


def without_stop(loader: DataLoader[Any]) -> Iterator[Any]:
    """Batches, one epoch after another."""
    while True:
        yield from loader


@pair(
    "pictures-scaled-to-floats-by-the-loader",
    "The workers turn bytes into floats, but they are eight, the batch is small and the network large.",
    "The loader hands out bytes, and the device scales them.",
    kind="fair",
)
def reef_survey(faulty: bool) -> Step:
    """Corals are told apart on pictures of divers."""
    side, count, size = sized(224, 32), sized(1024, 16), sized(64, 4)
    shape = (count, side, side, 3)
    packed = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    loader: DataLoader[Any] = DataLoader(
        Reef(packed, scaled=faulty),
        size,
        shuffle=True,
        drop_last=True,
        num_workers=sized(8, 1),
        pin_memory=DEVICE == "cuda",
        persistent_workers=True,
    )
    batches = without_stop(loader)
    model = on_images(ResNet(sized(128, 8), sized(3, 1)), dtype=torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, fused=True)

    def step() -> None:
        pictures, kinds = (part.to(DEVICE, non_blocking=True) for part in next(batches))
        if not faulty:
            pictures = pictures.float().div_(127.5).sub_(1)
        with autocast():
            scores = model(pictures.contiguous(memory_format=torch.channels_last))
        functional.cross_entropy(scores.float(), kinds).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


# ---------------------------------------------------------------- healthy


class PatchForecaster(nn.Module):
    """Patches of a series through an encoder to the days ahead."""

    def __init__(self, patch: int, patches: int, width: int, layers: int) -> None:
        super().__init__()
        self.patch = patch
        self.inside = nn.Linear(patch, width)
        self.places = nn.Parameter(0.02 * torch.randn(patches, width))
        self.layers = nn.Sequential(*(Layer(width) for _ in range(layers)))
        self.outside = nn.Linear(width, patch)

    def forward(self, series: Tensor) -> Tensor:
        """The patch that follows, from the mean of all."""
        x = self.inside(series.unflatten(1, (-1, self.patch))) + self.places
        return self.outside(self.layers(x).mean(1))


@healthy(
    "A forecaster trains under autocast in one CUDA graph; batches come from pinned memory without waiting, "
    "and the loss is read every two hundred steps."
)
def heat_meter() -> Step:
    """The heat that houses will need is forecast from their meters."""
    patch, patches, rows = 16, sized(64, 4), sized(256, 4)
    model = PatchForecaster(patch, patches, sized(512, 64), sized(6, 1)).to(DEVICE)
    compile_each(model.layers)
    optimizer = adamw(model, capturable=DEVICE == "cuda")
    held = [pinned(torch.randn(rows, patch * (patches + 1))) for _ in range(16)]
    batch = torch.empty_like(held[0], device=DEVICE)
    smooth = torch.zeros((), device=DEVICE)
    batch.copy_(held[0])

    def update() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(DEVICE, torch.bfloat16, enabled=DEVICE == "cuda", cache_enabled=False):
            ahead = model(batch[:, :-patch])
        loss = functional.smooth_l1_loss(ahead.float(), batch[:, -patch:])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        smooth.lerp_(loss.detach(), 0.02)

    replay = graphed(update)
    history: list[float] = []
    done = 0

    def step() -> None:
        nonlocal done
        batch.copy_(held[done % len(held)], non_blocking=True)
        replay()
        done += 1
        if done % 200 == 0:
            history.append(smooth.item())

    return step


@healthy(
    "A tagger runs full batches of one length in bf16 under inference_mode, copies small results into pinned "
    "memory and reads those of the batch before while the device works on this one."
)
def receipt_reader() -> Step:
    """Words of receipts are marked as date, shop, sum or none of these."""
    words, width, rows, length, tags = sized(16_384, 64), sized(768, 64), sized(96, 2), sized(256, 8), 9
    with torch.device(DEVICE):
        embedding, places = nn.Embedding(words, width), nn.Embedding(length, width)
        layers = nn.Sequential(*(Layer(width) for _ in range(sized(12, 1))))
        model = nn.ModuleList([embedding, places, layers, nn.Linear(width, tags)])
    model.to(HALF).eval().requires_grad_(False)
    compile_each(layers)
    where = torch.arange(length, device=DEVICE)
    inbox = [pinned(torch.randint(0, words, (rows, length))) for _ in range(8)]
    slots = [pinned(torch.empty(rows, length, dtype=torch.uint8)) for _ in range(2)]
    ready = [torch.cuda.Event() for _ in range(2)] if DEVICE == "cuda" else []
    counts = np.zeros(tags, dtype=np.int64)
    done = 0

    @torch.inference_mode()
    def step() -> None:
        nonlocal done
        ids = inbox[done % len(inbox)].to(DEVICE, non_blocking=True)
        found = model[3](layers(embedding(ids) + places(where))).argmax(-1).to(torch.uint8)
        slot = done % 2
        slots[slot].copy_(found, non_blocking=True)
        if ready:
            ready[slot].record()
        if done:
            if ready:
                ready[1 - slot].synchronize()
            counts[:] += np.bincount(slots[1 - slot].numpy().ravel(), minlength=tags)
        done += 1

    step()
    return step
