"""Training of models of images: slides of tissue, seams of welds and pallets in a hall."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from benchmarks.faults.library_models import autocast, noise, tokens
from benchmarks.faults.models import DEVICE, ResNet, adamw, on_images, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

# ---------------------------------------------------------------- slides of tissue


class Slides(Dataset[tuple[Tensor, int]]):
    """Cut-outs of slides, with stains that vary."""

    def __init__(self, count: int, side: int) -> None:
        self.side = side
        self.scans = torch.randint(0, 256, (count, 3, side, side), dtype=torch.uint8)
        self.grades = torch.randint(0, 5, (count,)).tolist()
        self.blur = torch.ones(3, 1, 5, 5) / 25

    def __len__(self) -> int:
        return len(self.scans)

    def __getitem__(self, place: int) -> tuple[Tensor, int]:
        scan = self.scans[place].float() / 255
        density = -torch.log(scan.clamp(min=1 / 255))
        density = density * (1 + 0.1 * torch.randn(3, 1, 1))
        scan = torch.exp(-density)
        if torch.rand(()) < 0.5:
            scan = functional.conv2d(scan[None], self.blur, padding=2, groups=3)[0]
        if torch.rand(()) < 0.5:
            scan = scan.flip(-1)
        return (scan - 0.7) / 0.2, self.grades[place]


def epochs_of(loader: DataLoader[tuple[Tensor, int]]) -> Iterator[list[Tensor]]:
    """The batches of as many epochs as are asked for."""
    while True:
        yield from loader


@pair(
    "workers-started-anew-every-epoch",
    "An epoch has sixteen batches, and the DataLoader starts and ends its eight workers for each of them.",
    "persistent_workers=True: the workers outlive the epoch.",
)
def twentysixth_biopsy_grader(faulty: bool) -> Step:
    """A network grades small cut-outs of biopsies, of which there are few."""
    rows, side = sized(16, 2), sized(256, 32)
    slides = Slides(sized(256, 8), side)
    loader = DataLoader(
        slides,
        batch_size=rows,
        shuffle=True,
        drop_last=True,
        num_workers=sized(8, 1),
        pin_memory=DEVICE == "cuda",
        persistent_workers=not faulty,
    )
    model = on_images(ResNet(sized(96, 8), sized(6, 1), 5), dtype=torch.float32)
    optimizer = adamw(model, weight_decay=0.02)
    batches = epochs_of(loader)

    def step() -> None:
        scans, grades = next(batches)
        scans = scans.to(DEVICE, non_blocking=True, memory_format=torch.channels_last)
        grades = grades.to(DEVICE, non_blocking=True)
        with autocast():
            loss = functional.cross_entropy(model(scans), grades, label_smoothing=0.1)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


# ---------------------------------------------------------------- seams of welds


class Twice(nn.Module):
    """Two convolutions, each with its norm."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inside, outside, 3, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(outside)
        self.second = nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(outside)

    def forward(self, x: Tensor) -> Tensor:
        """Keeps the size of the images."""
        x = functional.relu(self.first_norm(self.first(x)), inplace=True)
        return functional.relu(self.second_norm(self.second(x)), inplace=True)


class SeamNet(nn.Module):
    """A U-Net that marks faults of welds."""

    def __init__(self, width: int, kinds: int) -> None:
        super().__init__()
        sizes = [width, 2 * width, 4 * width, 8 * width]
        self.down = nn.ModuleList(Twice(a, b) for a, b in zip([3, *sizes[:-1]], sizes, strict=True))
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(b, a, 2, stride=2) for a, b in zip(sizes[-2::-1], sizes[:0:-1], strict=True)
        )
        self.join = nn.ModuleList(Twice(2 * a, a) for a in sizes[-2::-1])
        self.last = nn.Conv2d(width, kinds, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the kinds of fault at every pixel."""
        skipped: list[Tensor] = []
        for stage in self.down:
            if skipped:
                x = functional.max_pool2d(x, 2)
            x = stage(x)
            skipped.append(x)
        skipped.pop()
        for up, join in zip(self.up, self.join, strict=True):
            x = join(torch.cat([up(x), skipped.pop()], 1))
        return self.last(x)


def overlap_loss(scores: Tensor, marked: Tensor) -> Tensor:
    """Cross entropy and soft Dice together."""
    chances = scores.float().softmax(1)
    wanted = functional.one_hot(marked, scores.shape[1]).permute(0, 3, 1, 2)
    shared = (chances * wanted).sum((0, 2, 3))
    dice = 1 - (2 * shared + 1) / (chances.sum((0, 2, 3)) + wanted.sum((0, 2, 3)) + 1)
    return functional.cross_entropy(scores.float(), marked) + dice.mean()


@pair(
    "convolutions-with-channels-first",
    "A U-Net is trained by bf16 autocast with its images and weights in the contiguous format.",
    "Model and images in channels_last, which the kernels of the tensor cores want.",
)
def twentysixth_seam_inspector(faulty: bool) -> Step:
    """Faults of welded seams are marked in X-ray pictures."""
    layout = torch.contiguous_format if faulty else torch.channels_last
    rows, side, kinds = sized(24, 2), sized(320, 32), 4
    model = SeamNet(sized(64, 8), kinds).to(DEVICE, memory_format=layout)
    optimizer = adamw(model, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.PolynomialLR(optimizer, 50_000, 0.9)
    pictures = noise(rows, 3, side, side, dtype=torch.float32)
    marked = tokens(kinds, rows, side, side)

    def step() -> None:
        with autocast():
            scores = model(pictures.to(memory_format=layout))
        loss = overlap_loss(scores, marked)
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()

    return step


# ---------------------------------------------------------------- pallets in a hall


class PalletNet(nn.Module):
    """A detector with three anchors at every cell."""

    def __init__(self, width: int) -> None:
        super().__init__()
        parts: list[nn.Module] = []
        inside = 3
        for turn in range(4):
            outside = width << min(turn, 3)
            parts += [nn.Conv2d(inside, outside, 3, stride=2, padding=1, bias=False)]
            parts += [nn.BatchNorm2d(outside), nn.SiLU(inplace=True)]
            parts += [nn.Conv2d(outside, outside, 3, padding=1, bias=False)]
            parts += [nn.BatchNorm2d(outside), nn.SiLU(inplace=True)]
            inside = outside
        self.body = nn.Sequential(*parts)
        self.head = nn.Conv2d(inside, 3 * 5, 1)

    def forward(self, pictures: Tensor) -> Tensor:
        """A score and four offsets for every anchor."""
        found = self.head(self.body(pictures))
        return found.permute(0, 2, 3, 1).reshape(len(pictures), -1, 5).float()


def anchors_on_grid(side: int) -> Tensor:
    """Three boxes around every cell of sixteen pixels, by their corners."""
    centres = torch.arange(8, side, 16, dtype=torch.float32)
    y, x = torch.meshgrid(centres, centres, indexing="ij")
    middle = torch.stack([x, y], -1).view(-1, 1, 2)
    half = torch.tensor([[24.0, 24.0], [40.0, 20.0], [20.0, 40.0]])
    return torch.cat([middle - half, middle + half], -1).view(-1, 4).to(DEVICE)


def pallets(rows: int, side: int, most: int) -> list[Tensor]:
    """For every picture the corners of its pallets, of which there may be none."""
    torch.manual_seed(3)
    found = []
    for _ in range(rows):
        count = int(torch.randint(0, most + 1, ()))
        corner = torch.rand(count, 2) * (side - 80)
        found.append(torch.cat([corner, corner + 30 + 50 * torch.rand(count, 2)], -1).to(DEVICE))
    return found


def intersection_over_union(left: Tensor, right: Tensor) -> Tensor:
    """How much boxes overlap, all with all."""
    low = torch.maximum(left[..., :, None, :2], right[..., None, :, :2])
    high = torch.minimum(left[..., :, None, 2:], right[..., None, :, 2:])
    shared = (high - low).clamp(min=0).prod(-1)
    areas = [(boxes[..., 2:] - boxes[..., :2]).prod(-1) for boxes in (left, right)]
    return shared / (areas[0][..., :, None] + areas[1][..., None, :] - shared + 1e-6)


def offsets(anchors: Tensor, boxes: Tensor) -> Tensor:
    """What the detector should say to turn anchors into boxes."""
    size = (anchors[..., 2:] - anchors[..., :2]).repeat(1, 2)
    return (boxes - anchors) / size


def detection_loss_of_each(found: Tensor, boxes: list[Tensor], anchors: Tensor) -> tuple[Tensor, int]:
    """The loss, averaged over the pictures, and how many anchors were matched."""
    losses: list[Tensor] = []
    matched = 0
    for picture, here in zip(found, boxes, strict=True):
        wanted = torch.zeros(len(anchors), device=found.device)
        placing = picture.new_zeros(())
        if len(here):
            best, which = intersection_over_union(anchors, here).max(1)
            positive = best > 0.4
            if positive.any():
                wanted[positive] = 1.0
                aim = offsets(anchors[positive], here[which[positive]])
                placing = functional.smooth_l1_loss(picture[positive, 1:], aim)
                matched += int(positive.sum())
        chance = functional.binary_cross_entropy_with_logits(picture[:, 0], wanted)
        losses.append(chance + 2 * placing)
    return torch.stack(losses).mean(), matched


def detection_loss_of_all(
    found: Tensor, boxes: Tensor, real: Tensor, anchors: Tensor
) -> tuple[Tensor, Tensor]:
    """The loss, averaged over the pictures, and how many anchors were matched."""
    overlaps = intersection_over_union(anchors.expand(len(found), -1, -1), boxes)
    best, which = overlaps.masked_fill(~real[:, None], 0.0).max(2)
    positive = (best > 0.4).float()
    aim = offsets(anchors, boxes.gather(1, which[..., None].expand(-1, -1, 4)))
    apart = functional.smooth_l1_loss(found[..., 1:], aim, reduction="none").mean(-1)
    count = positive.sum(1)
    placing = (apart * positive).sum(1) / count.clamp(min=1)
    chance = functional.binary_cross_entropy_with_logits(found[..., 0], positive, reduction="none").mean(1)
    return (chance + 2 * placing).mean(), count.sum()


@pair(
    "loss-picture-by-picture",
    "The loss of a detector matches anchors in a loop over the pictures, with masks and any() in each turn.",
    "Boxes padded to the same number and matched for the whole batch at once, without a wait.",
)
def twentysixth_pallet_counter(faulty: bool) -> Step:
    """Pallets are found in pictures of a warehouse."""
    rows, side, most = sized(48, 2), sized(512, 96), sized(24, 4)
    model = on_images(PalletNet(sized(48, 8)), dtype=torch.float32)
    optimizer = adamw(model)
    pictures = noise(rows, 3, side, side, dtype=torch.float32).to(memory_format=torch.channels_last)
    anchors, boxes = anchors_on_grid(side), pallets(rows, side, most)
    padded = nn.utils.rnn.pad_sequence(boxes, batch_first=True)
    real = torch.arange(padded.shape[1], device=DEVICE) < torch.tensor(
        [[len(here)] for here in boxes], device=DEVICE
    )
    total = torch.zeros((), device=DEVICE)

    def step() -> None:
        with autocast():
            found = model(pictures)
        if faulty:
            loss, matched = detection_loss_of_each(found, boxes, anchors)
            total.add_(matched)
        else:
            loss, counted = detection_loss_of_all(found, padded, real, anchors)
            total.add_(counted)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        optimizer.zero_grad()

    return step
