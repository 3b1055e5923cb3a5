"""Models that learn to see: one finds goods on shelves, one reads slides of tissue."""

from __future__ import annotations

import itertools

import torch
from benchmarks.faults.models import DEVICE, HALF, Residual, adamw, images, on_images, pinned, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional

LOG_EVERY = 50


class FocalLoss(nn.Module):
    """The loss of detectors with many anchors, most of which see nothing."""

    def __init__(self, classes: int, alpha: float = 0.25, gamma: float = 2.0) -> None:
        super().__init__()
        self.alpha, self.gamma = alpha, gamma
        self.register_buffer("classes", torch.arange(classes))

    def forward(self, scores: Tensor, labels: Tensor) -> Tensor:
        """One number for all anchors and classes; a label of -1 is background."""
        scores = scores.float()
        wanted = (labels.unsqueeze(-1) == self.classes).float()
        chance = scores.sigmoid()
        plain = functional.binary_cross_entropy_with_logits(scores, wanted, reduction="none")
        right = chance * wanted + (1 - chance) * (1 - wanted)
        weight = self.alpha * wanted + (1 - self.alpha) * (1 - wanted)
        return (weight * plain * (1 - right) ** self.gamma).sum() / wanted.sum().clamp(min=1)


class Detector(nn.Module):
    """A few convolutions, and scores of the classes for nine anchors at every place."""

    def __init__(self, width: int, classes: int, anchors: int = 9) -> None:
        super().__init__()
        self.classes = classes
        parts: list[nn.Module] = [nn.Conv2d(3, width, 7, stride=4, padding=3)]
        parts += [Residual(width), nn.Conv2d(width, 4 * width, 3, stride=2, padding=1)]
        self.body = nn.Sequential(*parts, Residual(4 * width))
        self.kinds = nn.Conv2d(4 * width, anchors * classes, 3, padding=1)
        self.boxes = nn.Conv2d(4 * width, anchors * 4, 3, padding=1)

    def forward(self, photos: Tensor) -> tuple[Tensor, Tensor]:
        """Scores of the classes and shifts of the boxes, by anchor."""
        x = self.body(photos)
        kinds, boxes = self.kinds(x).permute(0, 2, 3, 1), self.boxes(x).permute(0, 2, 3, 1)
        rows = x.shape[0]
        return kinds.reshape(rows, -1, self.classes), boxes.reshape(rows, -1, 4)


@pair(
    "compiled-loss-not-used",
    "torch.compile(criterion) gives a compiled module back, but nobody keeps it: the focal loss runs eagerly,"
    " as dozens of passes over the scores of all anchors.",
    "criterion.compile(), which compiles in place (or criterion = torch.compile(criterion)).",
)
def fifteenth_shelf_finder(faulty: bool) -> Step:
    """A detector learns to find the goods on the shelves of a shop."""
    classes = sized(80, 4)
    model = on_images(Detector(sized(32, 8), classes)).train()
    criterion = FocalLoss(classes).to(DEVICE)
    if faulty:
        torch.compile(criterion)
    elif DEVICE == "cuda":
        criterion.compile()
    photos = images(24, 512)
    anchors = model(photos[:1])[0].shape[1]
    labels = torch.randint(-60 * classes, classes, (photos.shape[0], anchors), device=DEVICE)
    labels = labels.clamp(min=-1)
    shifts = torch.randn(photos.shape[0], anchors, 4, device=DEVICE, dtype=HALF)
    found = (labels >= 0).unsqueeze(-1).to(HALF)
    optimizer, numbers = adamw(model), itertools.count()
    losses: list[tuple[float, float]] = []

    def step() -> Tensor:
        kinds, boxes = model(photos)
        sorting = criterion(kinds, labels)
        placing = functional.smooth_l1_loss(boxes * found, shifts * found)
        loss = sorting + placing
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if next(numbers) % LOG_EVERY == LOG_EVERY - 1:
            losses.append((sorting.item(), placing.item()))
        return loss.detach()

    return step


class Mixer(nn.Module):
    """A layer in which the tiles of a slide look at each other."""

    def __init__(self, width: int, heads: int, **options: bool) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.wide = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.options = options

    def forward(self, x: Tensor) -> Tensor:
        """Attention, then two linear layers, each added to what came in."""
        y = self.norms[0](x)
        mixed, _ = self.attention(y, y, y, **self.options)
        x = x + mixed
        return x + self.wide(self.norms[1](x))


@pair(
    "attention-weights-asked-for",
    "nn.MultiheadAttention is called with its default need_weights=True and the weights are thrown away: the"
    " whole matrix of 4096 x 4096 scores of each head is written, and their mean over the heads.",
    "self.attention(y, y, y, need_weights=False), which takes the flash kernel.",
)
def fifteenth_slide_reader(faulty: bool) -> Step:
    """A transformer over the tiles of a tissue slide learns the grade of a tumour."""
    width, rows, tiles = sized(768, 64), sized(4, 2), sized(4096, 24)
    options = {} if faulty else {"need_weights": False}
    with torch.device(DEVICE):
        first = nn.Linear(sized(1024, 32), width)
        layers = nn.Sequential(*(Mixer(width, sized(12, 2), **options) for _ in range(sized(4, 1))))
        gate = nn.Linear(width, 1)
        last = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 5))
    model = nn.ModuleList([first, layers, gate, last]).to(HALF).train()
    slides = [pinned(torch.randn(rows, tiles, sized(1024, 32)).to(HALF)) for _ in range(2)]
    grades = torch.randint(0, 5, (rows,), device=DEVICE)
    optimizer, numbers = adamw(model, weight_decay=0.05), itertools.count()
    history: list[float] = []

    def step() -> Tensor:
        number = next(numbers)
        x = layers(first(slides[number % 2].to(DEVICE, non_blocking=True)))
        pooled = (x * gate(x).softmax(1)).sum(1)
        loss = functional.cross_entropy(last(pooled).float(), grades, label_smoothing=0.1)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if number % LOG_EVERY == LOG_EVERY - 1:
            history.append(loss.item())
        return loss.detach()

    return step
