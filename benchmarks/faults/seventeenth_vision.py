"""Models that see: one mends old photos, one counts mushrooms by kind and one finds organs in scans."""

from __future__ import annotations

import itertools

import torch
from benchmarks.faults.library_models import autocast
from benchmarks.faults.models import DEVICE, Residual, ResNet, adamw, images, on_images, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional

LOG_EVERY = 50


class Features(nn.Module):
    """The first ten convolutions of a VGG: what it sees after each of four stages."""

    def __init__(self, width: int) -> None:
        super().__init__()
        inside, self.stages = 3, nn.ModuleList()
        for turn, count in enumerate((2, 2, 3, 3)):
            parts: list[nn.Module] = [nn.MaxPool2d(2)] if turn else []
            outside = width << turn
            for _ in range(count):
                parts += [nn.Conv2d(inside, outside, 3, padding=1), nn.ReLU(inplace=True)]
                inside = outside
            self.stages.append(nn.Sequential(*parts))

    def forward(self, x: Tensor) -> list[Tensor]:
        """From the finest to the coarsest."""
        seen = []
        for stage in self.stages:
            x = stage(x)
            seen.append(x)
        return seen


class Restorer(nn.Module):
    """Takes scratches off a photo."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 5, stride=2, padding=2)
        self.body = nn.Sequential(*(Residual(width) for _ in range(4)))
        self.last = nn.Sequential(nn.Conv2d(width, 12, 3, padding=1), nn.PixelShuffle(2))

    def forward(self, photos: Tensor) -> Tensor:
        """The photos and what was missing in them."""
        return photos + self.last(self.body(self.first(photos)))


@pair(
    "perceptual-network-not-frozen",
    "The network of the perceptual loss is never trained, but its weights still ask for gradients. The"
    " backward pass therefore also goes through what it saw of the true photos, and computes gradients of"
    " all its weights, which nobody uses.",
    "features.requires_grad_(False) once, after it is built.",
)
def seventeenth_photo_restorer(faulty: bool) -> Step:
    """A network learns to restore photos; a VGG judges how like they are to the unspoilt ones."""
    model = on_images(Restorer(sized(64, 8)), dtype=torch.float32)
    features = on_images(Features(sized(64, 4)), dtype=torch.float32).eval()
    if not faulty:
        features.requires_grad_(False)
    optimizer = adamw(model)
    clean = images(16, 256, dtype=torch.float32)
    spoilt = clean + 0.1 * torch.randn_like(clean)
    numbers = itertools.count()
    losses: list[float] = []

    def step() -> Tensor:
        with autocast():
            mended = model(spoilt)
            loss = functional.l1_loss(mended, clean)
            for ours, theirs in zip(features(mended), features(clean), strict=True):
                loss = loss + 0.1 * functional.mse_loss(ours, theirs)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if next(numbers) % LOG_EVERY == LOG_EVERY - 1:
            losses.append(loss.item())
        return loss.detach()

    return step


@pair(
    "confusion-matrix-in-a-loop",
    "The confusion matrix is filled picture by picture, with labels and guesses that are still on the"
    " device: every picture costs several small kernels and several waits for their values.",
    "Count the whole batch at once: bincount of label * classes + guess.",
)
def seventeenth_mushroom_counter(faulty: bool) -> Step:
    """A network that knows mushrooms is evaluated batch by batch."""
    classes = sized(128, 8)
    model = on_images(ResNet(sized(64, 8), classes=classes)).eval()
    mushrooms = images(128, 224)
    labels = torch.randint(0, classes, (len(mushrooms),), device=DEVICE)
    confusion = torch.zeros(classes, classes, dtype=torch.long, device=DEVICE)

    @torch.inference_mode()
    def step() -> Tensor:
        guesses = model(mushrooms).argmax(1)
        if faulty:
            for label, guess in zip(labels, guesses, strict=True):
                confusion[label.long(), guess.long()] += 1
        else:
            met = torch.bincount(labels * classes + guesses, minlength=classes * classes)
            confusion.add_(met.view(classes, classes))
        return confusion.diagonal().sum() / confusion.sum()

    return step


class Finder(nn.Module):
    """A small network that tells for every point of a scan which organ is there."""

    def __init__(self, width: int, organs: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, stride=2, padding=1)
        self.fine = Residual(width)
        self.between = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.coarse = nn.Sequential(Residual(2 * width), Residual(2 * width))
        self.back = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.last = nn.ConvTranspose2d(width, organs, 2, stride=2)

    def forward(self, scans: Tensor) -> Tensor:
        """Scores of all organs at every point."""
        fine = self.fine(self.first(scans))
        return self.last(fine + self.back(self.coarse(self.between(fine))))


def overlap(shares: Tensor, truth: Tensor) -> Tensor:
    """How little one organ of one scan lies where it should."""
    shared = (shares * truth).sum()
    return 1 - (2 * shared + 1) / (shares.sum() + truth.sum() + 1)


@pair(
    "dice-loss-by-scan-and-organ",
    "The dice loss is computed for every scan and every organ in two Python loops: about a thousand small"
    " kernels forward and more backward, where each slice also gets a gradient of the size of the whole.",
    "Sum over the last two dimensions of the whole batch and take the mean of what is left.",
)
def seventeenth_organ_mapper(faulty: bool) -> Step:
    """A network learns to find organs in scans, with the dice loss."""
    organs = sized(8, 3)
    model = on_images(Finder(sized(64, 8), organs), dtype=torch.float32)
    optimizer = adamw(model)
    scans = images(12, 320, dtype=torch.float32)
    truth = torch.rand(len(scans), organs, *scans.shape[2:], device=DEVICE).gt(0.5).float()
    numbers = itertools.count()
    losses: list[float] = []

    def step() -> Tensor:
        with autocast():
            scores = model(scans)
        shares = scores.float().sigmoid()
        if faulty:
            loss = shares.new_zeros(())
            for scan in range(len(scans)):
                for organ in range(organs):
                    loss = loss + overlap(shares[scan, organ], truth[scan, organ])
            loss = loss / (len(scans) * organs)
        else:
            shared = (shares * truth).sum((2, 3))
            loss = (1 - (2 * shared + 1) / (shares.sum((2, 3)) + truth.sum((2, 3)) + 1)).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if next(numbers) % LOG_EVERY == LOG_EVERY - 1:
            losses.append(loss.item())
        return loss.detach()

    return step
