"""Programs with structure: clicks on vouchers, a network of accounts, and boxes and maps in pictures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from benchmarks.faults.library_models import autocast, noise, tokens
from benchmarks.faults.models import DEVICE, Residual, adamw, images, on_images, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional

# ---------------------------------------------------------------- a recommender


@dataclass(frozen=True)
class SparseField:
    """A field of ids."""

    name: str
    ids: int


class DeepFm(nn.Module):
    """A linear part, pairs of fields and a deep part, in the style of DeepCTR-Torch."""

    def __init__(self, fields: list[SparseField], dense: int, width: int) -> None:
        super().__init__()
        self.fields = fields
        self.embedding_dict = nn.ModuleDict({f.name: nn.Embedding(f.ids, 16) for f in fields})
        self.linear_dict = nn.ModuleDict({f.name: nn.Embedding(f.ids, 1) for f in fields})
        self.linear_dense = nn.Linear(dense, 1)
        inside = 16 * len(fields) + dense
        self.dnn = nn.Sequential(
            nn.Linear(inside, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)
        )
        for table in [*self.embedding_dict.values(), *self.linear_dict.values()]:
            nn.init.normal_(table.weight, std=1e-4)

    def regularized(self) -> list[nn.Parameter]:
        """The weights that are kept small."""
        return [weight for name, weight in self.named_parameters() if "bias" not in name]

    def regularization_loss(self, strength: float) -> Tensor:
        """The penalty on large weights."""
        total = torch.zeros((1,), device=self.linear_dense.weight.device)
        for weight in self.regularized():
            total = total + torch.sum(strength * torch.square(weight))
        return total

    def forward(self, ids: Tensor, dense: Tensor) -> Tensor:
        """The logit of a click."""
        columns = list(enumerate(self.fields))
        vectors = torch.stack([self.embedding_dict[f.name](ids[:, i]) for i, f in columns], 1)
        linear = torch.cat([self.linear_dict[f.name](ids[:, i]) for i, f in columns], 1).sum(1, keepdim=True)
        pairs = 0.5 * (vectors.sum(1).square() - vectors.square().sum(1)).sum(1, keepdim=True)
        deep = self.dnn(torch.cat([vectors.flatten(1), dense], 1))
        return (linear + self.linear_dense(dense) + pairs + deep).squeeze(1)


@pair(
    "weight-penalty-through-autograd",
    "The loss is given l2 times the square of every weight, tables included, one tensor after another: "
    "hundreds of small kernels forward and back, and a second gradient for every table.",
    "weight_decay=2 * l2 of Adam, which adds the same to the gradient within the fused step.",
)
def voucher_mailer(faulty: bool) -> Step:
    """A shop guesses who opens which voucher."""
    l2, rows, dense = 1e-5, sized(4096, 8), 13
    fields = [SparseField(f"C{i}", sized(20_000 + 4000 * i, 50)) for i in range(26)]
    with torch.device(DEVICE):
        model = DeepFm(fields, dense, sized(400, 16))
    kept_small = model.regularized()
    known = {id(weight) for weight in kept_small}
    others = [weight for weight in model.parameters() if id(weight) not in known]
    groups: list[dict[str, Any]] = [
        {"params": kept_small, "weight_decay": 0.0 if faulty else 2 * l2},
        {"params": others, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.Adam(groups, lr=1e-3, fused=True)
    ids = torch.stack([tokens(field.ids, rows) for field in fields], 1)
    numbers, clicked = noise(rows, dense, dtype=torch.float32), tokens(2, rows).float()
    total = torch.zeros((), device=DEVICE)

    def step() -> None:
        loss = functional.binary_cross_entropy_with_logits(model(ids, numbers), clicked)
        total.add_(loss.detach())
        if faulty:
            loss = (loss + model.regularization_loss(l2)).squeeze()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


# ---------------------------------------------------------------- a graph


class MessageLayer(nn.Module):
    """Sums up what those who are followed say."""

    def __init__(self, width: int, *, on_edges: bool) -> None:
        super().__init__()
        self.message = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
        self.update = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.LayerNorm(width))
        self.on_edges = on_edges

    def forward(self, x: Tensor, edges: Tensor, degree: Tensor) -> Tensor:
        """New features of the nodes."""
        source, target = edges
        if self.on_edges:
            said = self.message(x.index_select(0, source))
        else:
            said = self.message(x).index_select(0, source)
        heard = torch.zeros_like(x).index_add_(0, target, said) / degree
        return x + self.update(torch.cat([x, heard], 1))


class AccountNet(nn.Module):
    """Three rounds of messages and a verdict on each account."""

    def __init__(self, inside: int, width: int, *, on_edges: bool) -> None:
        super().__init__()
        self.inside = nn.Linear(inside, width)
        self.layers = nn.ModuleList(MessageLayer(width, on_edges=on_edges) for _ in range(3))
        self.head = nn.Linear(width, 2)

    def forward(self, x: Tensor, edges: Tensor, degree: Tensor) -> Tensor:
        """Scores of honest and not."""
        x = torch.relu(self.inside(x))
        for layer in self.layers:
            x = layer(x, edges, degree)
        return self.head(x)


@pair(
    "node-work-repeated-for-every-edge",
    "The message network sees nothing but the sender, and yet it is run after the gather: on a million edges "
    "instead of fifty thousand nodes.",
    "It is run on the nodes, and its results are gathered.",
)
def rumor_tracer(faulty: bool) -> Step:
    """Accounts that spread rumors are found by whom they follow."""
    torch.set_float32_matmul_precision("high")
    nodes, count, width = sized(50_000, 40), sized(1_000_000, 200), sized(128, 16)
    model = AccountNet(64, width, on_edges=faulty).to(DEVICE)
    optimizer = adamw(model)
    edges = torch.stack([tokens(nodes, count), tokens(nodes, count)])
    degree = torch.bincount(edges[1].cpu(), minlength=nodes).clamp(min=1).to(DEVICE)[:, None].float()
    features, verdicts = noise(nodes, 64, dtype=torch.float32), tokens(2, nodes)
    known = (torch.rand(nodes, device=DEVICE) < 0.3).float()

    def step() -> None:
        scores = model(features, edges, degree)
        each = functional.cross_entropy(scores, verdicts, reduction="none")
        loss = (each * known).sum() / known.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


# ---------------------------------------------------------------- boxes


class Detector(nn.Module):
    """A small backbone with one head of three anchors at every place."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.classes = classes
        self.stem = nn.Conv2d(3, width, 7, stride=4, padding=3)
        self.body = nn.Sequential(
            Residual(width),
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
            Residual(2 * width),
            Residual(2 * width),
        )
        self.head = nn.Conv2d(2 * width, 3 * (classes + 4), 3, padding=1)

    def forward(self, pictures: Tensor) -> tuple[Tensor, Tensor]:
        """Scores and offsets of every anchor."""
        found = self.head(self.body(self.stem(pictures))).permute(0, 2, 3, 1)
        found = found.reshape(found.shape[0], -1, self.classes + 4).float()
        return found[..., : self.classes], found[..., self.classes :]


def anchors_of(cells: int, stride: int) -> Tensor:
    """Three squares at every place, as corners."""
    middle = (torch.arange(cells, device=DEVICE) + 0.5) * stride
    y, x = torch.meshgrid(middle, middle, indexing="ij")
    half = torch.tensor([12.0, 24.0, 48.0], device=DEVICE)
    x, y = x[..., None].expand(-1, -1, 3), y[..., None].expand(-1, -1, 3)
    return torch.stack([x - half, y - half, x + half, y + half], -1).reshape(-1, 4)


def box_iou(first: Tensor, second: Tensor) -> Tensor:
    """How much every box of the first overlaps every box of the second."""
    first, second = first[..., :, None, :], second[..., None, :, :]
    corner = torch.minimum(first[..., 2:], second[..., 2:]) - torch.maximum(first[..., :2], second[..., :2])
    shared = corner.clamp(min=0).prod(-1)
    areas = [(boxes[..., 2:] - boxes[..., :2]).prod(-1) for boxes in (first, second)]
    return shared / (areas[0] + areas[1] - shared)


def encode(boxes: Tensor, anchors: Tensor) -> Tensor:
    """Boxes as offsets of their anchors."""
    size = anchors[..., 2:] - anchors[..., :2]
    return (boxes - anchors) / torch.cat([size, size], -1)


class DetectionLoss(nn.Module):
    """Matches anchors to boxes and scores both classes and places."""

    def __init__(self, anchors: Tensor, classes: int) -> None:
        super().__init__()
        self.classes = classes
        self.register_buffer("anchors", anchors, persistent=False)

    def forward(self, scores: Tensor, offsets: Tensor, targets: list[dict[str, Tensor]]) -> Tensor:
        """The mean loss of the pictures."""
        losses = []
        for i, target in enumerate(targets):
            overlap, match = box_iou(self.anchors, target["boxes"]).max(1)
            positive = overlap > 0.4
            wanted = torch.zeros_like(scores[i])
            wanted[positive, target["labels"][match[positive]]] = 1.0
            count = positive.sum().clamp(min=1)
            class_loss = functional.binary_cross_entropy_with_logits(scores[i], wanted, reduction="sum")
            goal = encode(target["boxes"][match[positive]], self.anchors[positive])
            box_loss = functional.smooth_l1_loss(offsets[i][positive], goal, reduction="sum")
            losses.append((class_loss + box_loss) / count)
        return torch.stack(losses).mean()


class BatchedDetectionLoss(DetectionLoss):
    """The same for all pictures at once; the missing boxes of a picture have no size."""

    def forward(self, scores: Tensor, offsets: Tensor, targets: Any) -> Tensor:
        """The mean loss of the pictures."""
        boxes, labels = targets["boxes"], targets["labels"]
        overlap, match = box_iou(self.anchors, boxes).max(2)
        positive = (overlap > 0.4).float()
        kinds = functional.one_hot(labels.gather(1, match), self.classes)
        wanted = kinds * positive[..., None]
        count = positive.sum(1).clamp(min=1)
        class_loss = functional.binary_cross_entropy_with_logits(scores, wanted, reduction="none").sum((1, 2))
        matched = boxes.gather(1, match[..., None].expand(-1, -1, 4))
        each = functional.smooth_l1_loss(offsets, encode(matched, self.anchors), reduction="none")
        box_loss = (each.sum(2) * positive).sum(1)
        return ((class_loss + box_loss) / count).mean()


def padded_targets(targets: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The boxes of all pictures in one tensor."""
    return {
        name: nn.utils.rnn.pad_sequence([target[name] for target in targets], batch_first=True)
        for name in ("boxes", "labels")
    }


@pair(
    "loss-looped-over-pictures",
    "The detection loss goes through the batch picture by picture, with some forty small kernels and several "
    "boolean indices, which wait for the device, for each.",
    "The boxes are padded by the collate function, and all pictures are matched and scored at once.",
)
def forklift_alarm(faulty: bool) -> Step:
    """Forklifts and people are found on pictures of a warehouse."""
    side, classes, rows = sized(384, 32), 8, sized(32, 2)
    model = on_images(Detector(sized(96, 8), classes), dtype=torch.float32)
    anchors = anchors_of(sized(384, 32) // 8, 8)
    criterion = (DetectionLoss if faulty else BatchedDetectionLoss)(anchors, classes)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9, weight_decay=1e-4, fused=True)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [60_000, 80_000])
    pictures = images(32, 384, dtype=torch.float32)
    targets = []
    for i in range(rows):
        corner = torch.rand(3 + i % 9, 2, device=DEVICE) * side * 0.7
        extent = 16 + torch.rand(3 + i % 9, 2, device=DEVICE) * 64
        boxes = torch.cat([corner, corner + extent], 1)
        targets.append({"boxes": boxes, "labels": tokens(classes, 3 + i % 9)})
    batch: Any = targets if faulty else padded_targets(targets)

    def step() -> None:
        with autocast():
            scores, offsets = model(pictures)
        loss = criterion(scores, offsets, batch)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        schedule.step()

    return step


# ---------------------------------------------------------------- segmentation


class DiceLoss(nn.Module):
    """One minus the overlap of every class, averaged."""

    def __init__(self, classes: int, smooth: float = 1.0, *, one_by_one: bool) -> None:
        super().__init__()
        self.classes = classes
        self.smooth = smooth
        self.one_by_one = one_by_one

    def dice(self, chance: Tensor, truth: Tensor) -> Tensor:
        """The overlap of one class."""
        both = (chance * truth).sum()
        return (2.0 * both + self.smooth) / (chance.sum() + truth.sum() + self.smooth)

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        """The loss of a batch of maps."""
        chances = logits.softmax(1)
        if self.one_by_one:
            loss = torch.zeros((), device=logits.device)
            for c in range(self.classes):
                loss = loss + 1.0 - self.dice(chances[:, c], (target == c).float())
            return loss / self.classes
        known = torch.arange(self.classes, device=target.device).view(1, -1, 1, 1)
        truth = target[:, None] == known
        both = (chances * truth).sum((0, 2, 3))
        total = chances.sum((0, 2, 3)) + truth.sum((0, 2, 3))
        return (1.0 - (2.0 * both + self.smooth) / (total + self.smooth)).mean()


@pair(
    "loss-looped-over-classes",
    "The dice loss takes chances[:, c] for one of forty classes after another; in the backward pass each "
    "slice becomes a gradient of the whole map, filled with zeros and added up.",
    "One comparison gives the truth of all classes, and the sums are taken over the map at once.",
)
def river_banks(faulty: bool) -> Step:
    """Aerial pictures of rivers are divided into forty kinds of ground."""
    from lightning.fabric import Fabric
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    classes, side, rows = sized(40, 5), sized(512, 64), sized(8, 2)
    widths = [64, 128, 320, 512] if DEVICE == "cuda" else [8, 16, 24, 32]
    fabric = Fabric(accelerator=DEVICE, devices=1, precision="bf16-mixed" if DEVICE == "cuda" else "32-true")
    config = SegformerConfig(
        hidden_sizes=widths,
        depths=[2, 2, 2, 2],
        num_attention_heads=[1, 2, 5, 8] if DEVICE == "cuda" else [1, 2, 3, 4],
        decoder_hidden_size=sized(256, 16),
        num_labels=classes,
    )
    plain = SegformerForSemanticSegmentation(config)
    model, optimizer = fabric.setup(plain, torch.optim.AdamW(plain.parameters(), lr=6e-5, fused=True))
    cross_entropy, dice = nn.CrossEntropyLoss(ignore_index=255), DiceLoss(classes, one_by_one=faulty)
    pictures, maps = noise(rows, 3, side, side, dtype=torch.float32), tokens(classes, rows, side, side)

    def step() -> None:
        logits = model(pixel_values=pictures).logits.float()
        logits = functional.interpolate(logits, size=maps.shape[-2:], mode="bilinear", align_corners=False)
        loss = cross_entropy(logits, maps) + 0.5 * dice(logits, maps)
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()

    return step
