"""Networks that look at pictures and volumes: sorting, outlining and learning from a teacher."""

from __future__ import annotations

import gc
import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from benchmarks.faults.library_models import autocast
from benchmarks.faults.models import DEVICE, adamw, images, on_images, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset


def photographs(count: int, width: int, height: int) -> list[bytes]:
    """Smooth random pictures, packed as a camera packs them."""
    from PIL import Image

    rng = np.random.default_rng(7)
    packed = []
    for _ in range(count):
        coarse = Image.fromarray(rng.integers(0, 255, (24, 32, 3), dtype=np.uint8))
        file = io.BytesIO()
        coarse.resize((width, height), Image.Resampling.BICUBIC).save(file, "JPEG", quality=92)
        packed.append(file.getvalue())
    return packed


class Leaves(Dataset[tuple[Tensor, int]]):
    """Photographs of leaves, read and cropped at random when they are asked for."""

    def __init__(self, count: int, side: int, classes: int) -> None:
        from torchvision import transforms

        self.files = photographs(count, sized(400, 48), sized(300, 36))
        self.classes = classes
        self.prepare = transforms.Compose(
            [
                transforms.RandomResizedCrop(side, scale=(0.35, 1.0)),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
            ]
        )

    def __len__(self) -> int:
        """As many as an epoch shows; each file appears many times."""
        return 100_000

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """A prepared picture and its class."""
        from PIL import Image

        picture = Image.open(io.BytesIO(self.files[index % len(self.files)])).convert("RGB")
        return self.prepare(picture), index % self.classes


def forever(loader: DataLoader[Any]) -> Iterator[Any]:
    """Batches of one epoch after another."""
    while True:
        yield from loader


@pair(
    "pictures-decoded-in-the-training-process",
    "A ResNet-50 learns from JPEG files through a DataLoader with its default num_workers=0.",
    "num_workers=8 with persistent_workers=True.",
)
def thirteenth_leaf_sorter(faulty: bool) -> Step:
    """A network tells the species of a plant by its leaf."""
    import timm

    rows, side = sized(32, 2), sized(224, 32)
    data = Leaves(sized(256, 4), side, 100)
    workers: dict[str, Any] = {"num_workers": 0}
    if not faulty:
        workers = {"num_workers": sized(8, 1), "persistent_workers": True}
    loader = DataLoader(data, rows, shuffle=True, drop_last=True, pin_memory=DEVICE == "cuda", **workers)
    name = "resnet50" if DEVICE == "cuda" else "resnet18"
    model = on_images(timm.create_model(name, num_classes=100), dtype=torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10_000)
    batches = forever(loader)
    running = torch.zeros((), device=DEVICE)

    def step() -> Tensor:
        pictures, labels = next(batches)
        pictures = pictures.to(DEVICE, non_blocking=True, memory_format=torch.channels_last)
        labels = labels.to(DEVICE, non_blocking=True)
        with autocast():
            loss = functional.cross_entropy(model(pictures), labels, label_smoothing=0.1)
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        running.lerp_(loss.detach(), 0.05)
        return loss.detach()

    return step


@pair(
    "teacher-not-cut-off-from-the-gradient",
    "A student learns from a frozen ConvNeXt; its scores are not detached, so backward goes through it, too.",
    "The teacher runs under torch.no_grad().",
)
def thirteenth_bird_student(faulty: bool) -> Step:
    """A small network learns to tell birds as a big one does."""
    import timm

    rows, side, heat = sized(96, 2), sized(224, 64), 4.0
    name = "convnext_small" if DEVICE == "cuda" else "convnext_atto"
    teacher = on_images(timm.create_model(name, num_classes=200), dtype=torch.float32).eval()
    student = on_images(timm.create_model("resnet18", num_classes=200), dtype=torch.float32)
    optimizer = adamw(student, weight_decay=0.05)
    pictures = images(rows, side, dtype=torch.float32)
    labels = torch.randint(0, 200, (rows,), device=DEVICE)
    right = torch.zeros((), device=DEVICE)

    def step() -> Tensor:
        with autocast():
            with torch.set_grad_enabled(faulty):
                told = teacher(pictures)
            scores = student(pictures)
        soft = functional.kl_div(
            functional.log_softmax(scores.float() / heat, -1),
            functional.softmax(told.float() / heat, -1),
            reduction="batchmean",
        )
        hard = functional.cross_entropy(scores.float(), labels)
        loss = 0.7 * heat**2 * soft + 0.3 * hard
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        right.add_((scores.detach().argmax(-1) == labels).sum())
        return loss.detach()

    return step


CLASSES = 19


def counted_by_numpy(table: np.ndarray, scores: Tensor, labels: Tensor) -> None:
    """Adds a batch to the table of what was taken for what."""
    guesses = scores.argmax(1).cpu().numpy()
    truth = labels.cpu().numpy()
    known = truth != 255
    pairs = CLASSES * truth[known].astype(np.int64) + guesses[known]
    table += np.bincount(pairs, minlength=CLASSES**2).reshape(CLASSES, CLASSES)


def counted_on_device(table: Tensor, scores: Tensor, labels: Tensor) -> None:
    """The same without leaving the device."""
    known = labels != 255
    pairs = CLASSES * labels.where(known, 0) + scores.argmax(1)
    table.view(-1).index_add_(0, pairs.flatten(), known.flatten().to(table.dtype))


@pair(
    "training-metric-counted-by-numpy",
    "DeepLab's guesses of every batch are copied to the CPU, where numpy counts them for the mean IoU.",
    "The table is kept and added to on the device, and read when it is logged.",
)
def thirteenth_road_outliner(faulty: bool) -> Step:
    """A network outlines roads, cars and people in pictures of streets."""
    from torchvision.models.segmentation import deeplabv3_resnet50

    rows, side = sized(8, 2), sized(512, 64)
    model = on_images(
        deeplabv3_resnet50(weights=None, weights_backbone=None, num_classes=CLASSES), dtype=torch.float32
    )
    optimizer = adamw(model, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.PolynomialLR(optimizer, 40_000, power=0.9)
    pictures = images(rows, side, dtype=torch.float32)
    labels = torch.randint(0, CLASSES, (rows, pictures.shape[2], pictures.shape[3]), device=DEVICE)
    labels[:, :4] = 255  # the rim of the picture belongs to no class
    on_host = np.zeros((CLASSES, CLASSES), dtype=np.int64)
    on_device = torch.zeros(CLASSES, CLASSES, device=DEVICE)

    def step() -> Tensor:
        with autocast():
            scores = model(pictures)["out"]
            loss = functional.cross_entropy(scores, labels, ignore_index=255)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if faulty:
            counted_by_numpy(on_host, scores.detach(), labels)
        else:
            counted_on_device(on_device, scores.detach(), labels)
        return loss.detach()

    return step


class Level(nn.Module):
    """Two convolutions of a volume."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv3d(inside, outside, 3, padding=1, bias=False),
            nn.BatchNorm3d(outside),
            nn.ReLU(inplace=True),
            nn.Conv3d(outside, outside, 3, padding=1, bias=False),
            nn.BatchNorm3d(outside),
            nn.ReLU(inplace=True),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Keeps the size of the volume."""
        return self.body(x)


class VolumeNet(nn.Module):
    """A U-shaped network for volumes."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.down = nn.ModuleList([Level(1, width), Level(width, 2 * width), Level(2 * width, 4 * width)])
        self.grow = nn.ModuleList(
            [nn.ConvTranspose3d(4 * width, 2 * width, 2, 2), nn.ConvTranspose3d(2 * width, width, 2, 2)]
        )
        self.up = nn.ModuleList([Level(4 * width, 2 * width), Level(2 * width, width)])
        self.head = nn.Conv3d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the classes at every point."""
        kept = []
        for number, level in enumerate(self.down):
            x = level(x if number == 0 else functional.max_pool3d(x, 2))
            kept.append(x)
        kept.pop()
        for grow, level in zip(self.grow, self.up, strict=True):
            x = level(torch.cat([grow(x), kept.pop()], 1))
        return self.head(x)


@pair(
    "memory-given-back-every-step",
    "A 3D U-Net's loop ends every step with gc.collect() and torch.cuda.empty_cache().",
    "Without them: the allocator uses the memory again.",
)
def thirteenth_organ_finder(faulty: bool) -> Step:
    """A network outlines organs in patches of scans."""
    rows, side, classes = sized(2, 1), sized(128, 16), 6
    model = VolumeNet(sized(32, 4), classes).to(DEVICE, memory_format=torch.channels_last_3d)
    optimizer = adamw(model)
    scan = torch.randn(rows, 1, side, side, side, device=DEVICE)
    scan = scan.to(memory_format=torch.channels_last_3d)
    labels = torch.randint(0, classes, (rows, side, side, side), device=DEVICE)
    weights = torch.tensor([0.2, *[1.0] * (classes - 1)], device=DEVICE)

    def step() -> Tensor:
        turned = scan.flip(-1) + 0.05 * torch.randn_like(scan)
        with autocast():
            scores = model(turned)
            loss = functional.cross_entropy(scores, labels, weight=weights)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        found = loss.detach()
        if faulty:
            del scores, loss, turned
            gc.collect()
            torch.cuda.empty_cache()
        return found

    return step
