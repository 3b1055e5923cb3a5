"""Vision and fields: faults in cloth, X-ray pictures of teeth and a sheet of lava."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import torch
from benchmarks.faults.library_models import autocast
from benchmarks.faults.models import DEVICE, HALF, ResNet, adamw, on_images, pinned, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional


class ClothAugmenter:
    """Turns, flips and lights pictures of cloth at random."""

    def __init__(self, seed: int, degrees: float = 15.0, light: float = 0.2) -> None:
        self.chance = np.random.default_rng(seed)
        self.degrees = degrees
        self.light = light

    def drawn(self, rows: int) -> dict[str, np.ndarray]:
        """What shall be done to each picture."""
        return {
            "angle": np.radians(self.chance.uniform(-self.degrees, self.degrees, rows)),
            "flip": self.chance.choice([-1.0, 1.0], rows),
            "brightness": self.chance.uniform(1 - self.light, 1 + self.light, rows),
            "contrast": self.chance.uniform(1 - self.light, 1 + self.light, rows),
        }

    def one(self, picture: Tensor, angle: float, flip: float, brightness: float, contrast: float) -> Tensor:
        """A single picture, changed."""
        cos, sin = math.cos(angle), math.sin(angle)
        rows = [[flip * cos, -sin, 0.0], [flip * sin, cos, 0.0]]
        theta = torch.tensor(rows, dtype=torch.float32, device=picture.device)
        grid = functional.affine_grid(theta[None], [1, *picture.shape], align_corners=False)
        turned = functional.grid_sample(picture[None], grid, padding_mode="reflection", align_corners=False)[
            0
        ]
        bright = turned * brightness
        return ((bright - bright.mean()) * contrast + bright.mean()).clamp(0.0, 1.0)

    def by_picture(self, pictures: Tensor) -> Tensor:
        """Picture after picture."""
        chosen = self.drawn(len(pictures))
        rows = zip(*(chosen[name] for name in ("angle", "flip", "brightness", "contrast")), strict=True)
        return torch.stack([self.one(picture, *row) for picture, row in zip(pictures, rows, strict=True)])

    def whole_batch(self, pictures: Tensor) -> Tensor:
        """All pictures at once, each with its own numbers."""
        chosen = self.drawn(len(pictures))
        cos, sin, none = np.cos(chosen["angle"]), np.sin(chosen["angle"]), np.zeros(len(pictures))
        table = [chosen["flip"] * cos, -sin, none, chosen["flip"] * sin, cos, none]
        table += [chosen["brightness"], chosen["contrast"]]
        numbers = pinned(torch.from_numpy(np.stack(table, 1)).float()).to(pictures.device, non_blocking=True)
        grid = functional.affine_grid(
            numbers[:, :6].view(-1, 2, 3), list(pictures.shape), align_corners=False
        )
        turned = functional.grid_sample(pictures, grid, padding_mode="reflection", align_corners=False)
        bright = turned * numbers[:, 6].view(-1, 1, 1, 1)
        middle = bright.mean((1, 2, 3), keepdim=True)
        return ((bright - middle) * numbers[:, 7].view(-1, 1, 1, 1) + middle).clamp(0.0, 1.0)


@pair(
    "augmentation-picture-by-picture-on-the-gpu",
    "Pictures of cloth are turned, flipped and lit one at a time on the GPU, then stacked again.",
    "affine_grid and grid_sample of the whole batch, with a row of random numbers for each picture.",
)
def nineteenth_loom_checker(faulty: bool) -> Step:
    """Faults in woven cloth are told apart."""
    side, rows, kinds = sized(160, 32), sized(128, 2), 24
    model = on_images(ResNet(sized(64, 8), 1, kinds), dtype=torch.float32)
    optimizer = adamw(model, weight_decay=0.02)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.05)
    augmenter = ClothAugmenter(11)
    made = torch.Generator().manual_seed(2)
    rolls = [
        (
            pinned(torch.randint(0, 256, (rows, 3, side, side), generator=made).byte()),
            pinned(torch.randint(0, kinds, (rows,), generator=made)),
        )
        for _ in range(3)
    ]
    queue = itertools.cycle(rolls)
    running = torch.zeros((), device=DEVICE)

    def step() -> Tensor:
        pictures, labels = (part.to(DEVICE, non_blocking=True) for part in next(queue))
        pictures = pictures.float().div_(255.0)
        pictures = augmenter.by_picture(pictures) if faulty else augmenter.whole_batch(pictures)
        with autocast():
            loss = criterion(model(pictures.contiguous(memory_format=torch.channels_last)), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        running.lerp_(loss.detach(), 0.02)
        return loss.detach()

    return step


class TwoConvolutions(nn.Sequential):
    """The block of a U-Net."""

    def __init__(self, inside: int, outside: int) -> None:
        parts: list[nn.Module] = []
        for width in (inside, outside):
            parts += [
                nn.Conv2d(width, outside, 3, padding=1, bias=False),
                nn.BatchNorm2d(outside),
                nn.ReLU(True),
            ]
        super().__init__(*parts)


class ToothNet(nn.Module):
    """A U-Net of four widths."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        widths = [width, 2 * width, 4 * width, 8 * width]
        self.down = nn.ModuleList(
            TwoConvolutions(a, b) for a, b in zip([1, *widths[:-1]], widths, strict=True)
        )
        self.lift = nn.ModuleList(nn.ConvTranspose2d(2 * a, a, 2, 2) for a in reversed(widths[:-1]))
        self.up = nn.ModuleList(TwoConvolutions(2 * a, a) for a in reversed(widths[:-1]))
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the classes of every pixel."""
        kept: list[Tensor] = []
        for turn, block in enumerate(self.down):
            x = block(functional.max_pool2d(x, 2) if turn else x)
            kept.append(x)
        kept.pop()
        for lift, block in zip(self.lift, self.up, strict=True):
            x = block(torch.cat([lift(x), kept.pop()], 1))
        return self.head(x)


@pair(
    "metrics-updated-sample-by-sample",
    "Teeth are outlined for validation; torchmetrics is updated for one picture after another.",
    "One update with the whole batch: the states are sums, so the result is the same.",
)
def nineteenth_dental_tracer(faulty: bool) -> Step:
    """Teeth, fillings and caries are outlined on X-ray pictures."""
    from torchmetrics import MetricCollection
    from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score, MulticlassJaccardIndex

    side, rows, classes = sized(256, 32), sized(32, 2), 6
    model = on_images(ToothNet(sized(64, 8), classes)).eval()
    scores: Any = MetricCollection(
        {
            "overlap": MulticlassJaccardIndex(classes, validate_args=False),
            "dice": MulticlassF1Score(classes, average="macro", validate_args=False),
            "accuracy": MulticlassAccuracy(classes, average="micro", validate_args=False),
        }
    ).to(DEVICE)
    made = torch.Generator().manual_seed(8)
    films = [
        (
            pinned(torch.randn(rows, 1, side, side, generator=made).to(HALF)),
            pinned(torch.randint(0, classes, (rows, side, side), generator=made)),
        )
        for _ in range(2)
    ]
    queue = itertools.cycle(films)
    total = torch.zeros((), device=DEVICE)

    @torch.inference_mode()
    def step() -> Tensor:
        pictures, masks = (part.to(DEVICE, non_blocking=True) for part in next(queue))
        predicted = model(pictures.contiguous(memory_format=torch.channels_last))
        total.add_(functional.cross_entropy(predicted.float(), masks))
        outlines = predicted.argmax(1)
        if faulty:
            for outline, mask in zip(outlines, masks, strict=True):
                scores.update(outline[None], mask[None])
        else:
            scores.update(outlines, masks)
        return total.clone()

    return step


class LavaSheet(nn.Module):
    """Lava that spreads on a slope, cools and is fed from a vent whose flow comes in pulses."""

    def __init__(self, cells: int, *, ticks_on_device: bool) -> None:
        super().__init__()
        places = torch.linspace(-1.0, 1.0, cells)
        self.register_buffer("ground", 2.0 - places[:, None].abs() - 0.5 * places[None].square())
        self.register_buffer("vent", torch.exp(-80.0 * (places[:, None].square() + places[None].square())))
        if ticks_on_device:
            self.register_buffer("tick", torch.zeros(()))
        else:
            self.tick = 0

    def pulse(self) -> Any:
        """How much the vent gives now."""
        if isinstance(self.tick, Tensor):
            return 1.0 + 0.5 * torch.sin(self.tick * (2 * math.pi / 240))
        return 1.0 + 0.5 * math.sin(self.tick * (2 * math.pi / 240))

    def forward(self, depth: Tensor, heat: Tensor) -> tuple[Tensor, Tensor]:
        """Depth and heat a moment later."""
        self.tick += 1
        level = self.ground + depth
        fluid = torch.exp(-2.0 * torch.relu(1.2 - heat)) * depth.pow(3)
        flow = torch.zeros_like(depth)
        carried = torch.zeros_like(depth)
        for axis, way in itertools.product((0, 1), (-1, 1)):
            fall = torch.roll(level, way, axis) - level
            share = 0.02 * fall * 0.5 * (fluid + torch.roll(fluid, way, axis))
            flow = flow + share
            carried = carried + torch.where(share > 0, torch.roll(heat, way, axis), heat) * share
        fed = 0.001 * self.pulse() * self.vent
        deeper = (depth + flow + fed).clamp(0.0, 4.0)
        warmth = (depth * heat + carried + 1.5 * fed) / (deeper + 1e-4)
        cooled = warmth - 0.002 * warmth.clamp(min=0.0).pow(4) / (deeper + 0.1)
        return deeper, cooled.clamp(0.0, 2.0)


@pair(
    "compiled-module-counts-in-a-python-int",
    "A compiled solver counts its ticks in an int attribute: recompiled up to the limit, then eager.",
    "The counter is a buffer on the device, so one compiled graph serves every tick.",
)
def nineteenth_lava_simulator(faulty: bool) -> Step:
    """The spread of lava is computed, and a network tells which cells are in danger."""
    cells, ticks, width = sized(3072, 32), sized(8, 5), sized(128, 8)
    sheet = LavaSheet(cells, ticks_on_device=not faulty).to(DEVICE)
    solver: Any = torch.compile(sheet, backend="inductor" if DEVICE == "cuda" else "eager")
    parts: list[nn.Module] = [nn.Conv2d(2, width, 5, stride=4, padding=2), nn.ReLU(True)]
    for _ in range(8):
        parts += [nn.Conv2d(width, width, 3, padding=1), nn.ReLU(True)]
    judge = on_images(nn.Sequential(*parts, nn.Conv2d(width, 3, 1))).eval()
    depth = torch.rand(cells, cells, device=DEVICE) * 0.1
    heat = torch.ones(cells, cells, device=DEVICE)
    alarms = torch.zeros(3, device=DEVICE)

    @torch.no_grad()
    def step() -> Tensor:
        nonlocal depth, heat
        for _ in range(ticks):
            depth, heat = solver(depth, heat)
        fields = torch.stack([depth, heat])[None].to(HALF, memory_format=torch.channels_last)
        alarms.lerp_(judge(fields).float().softmax(1).mean((0, 2, 3)), 0.1)
        return depth.sum()

    for _ in range(2):  # until the solver is compiled
        step()
    return step
