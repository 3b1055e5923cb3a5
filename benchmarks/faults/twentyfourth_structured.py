"""Training scripts with losses and models of their own: boxes, two views of a picture, signals."""

from __future__ import annotations

import copy
from typing import Any

import torch
from benchmarks.faults.library_models import autocast, noise
from benchmarks.faults.models import DEVICE, Block, ResNet, adamw, images, on_images, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional


def overlap(some: Tensor, others: Tensor) -> Tensor:
    """Intersection over union of all pairs of boxes."""
    low = torch.maximum(some[..., :, None, :2], others[..., None, :, :2])
    high = torch.minimum(some[..., :, None, 2:], others[..., None, :, 2:])
    shared = (high - low).clamp(min=0).prod(-1)
    size = (some[..., 2:] - some[..., :2]).prod(-1)[..., :, None]
    other_size = (others[..., 2:] - others[..., :2]).prod(-1)[..., None, :]
    return shared / (size + other_size - shared).clamp(min=1e-6)


class BoxFinder(nn.Module):
    """Boxes and classes at every place of a grid."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.backbone = ResNet(width).body
        self.head = nn.Conv2d(4 * width, 4 + classes, 1)

    def forward(self, pictures: Tensor) -> tuple[Tensor, Tensor]:
        """Offsets of the boxes and scores of the classes."""
        found = self.head(self.backbone(pictures)).flatten(2).transpose(1, 2).float()
        return found[..., :4], found[..., 4:]


def anchors(cells: int) -> Tensor:
    """A box around every place of the grid."""
    centres = (torch.arange(cells, device=DEVICE) + 0.5) / cells
    y, x = torch.meshgrid(centres, centres, indexing="ij")
    return torch.stack([x - 0.1, y - 0.1, x + 0.1, y + 0.1], -1).flatten(0, 1)


def loss_by_image(
    offsets: Tensor, scores: Tensor, places: Tensor, boxes: list[Tensor], classes: list[Tensor]
) -> Tensor:
    """The loss of a batch, image after image."""
    losses = []
    for index, wanted in enumerate(boxes):
        best, match = overlap(places, wanted).max(1)
        positive = best > 0.3
        target = torch.zeros_like(scores[index])
        target[positive, classes[index][match[positive]]] = 1.0
        loss = functional.binary_cross_entropy_with_logits(scores[index], target, reduction="sum")
        if positive.sum() > 0:
            found = (places + offsets[index])[positive]
            apart = functional.smooth_l1_loss(found, wanted[match[positive]], reduction="sum")
            loss = loss + 5.0 * apart
        losses.append(loss / positive.sum().clamp(min=1))
    return torch.stack(losses).mean()


def loss_by_batch(
    offsets: Tensor, scores: Tensor, places: Tensor, boxes: list[Tensor], classes: list[Tensor]
) -> Tensor:
    """The loss of a batch, over boxes that are padded to the same number."""
    wanted = nn.utils.rnn.pad_sequence(boxes, batch_first=True)
    kinds = nn.utils.rnn.pad_sequence(classes, batch_first=True)
    best, match = overlap(places.expand(len(boxes), -1, -1), wanted).max(2)
    positive = (best > 0.3).float()
    target = torch.zeros_like(scores).scatter_(2, kinds.gather(1, match)[..., None], positive[..., None])
    named = functional.binary_cross_entropy_with_logits(scores, target, reduction="none").sum((1, 2))
    goal = wanted.gather(1, match[..., None].expand(-1, -1, 4))
    apart = functional.smooth_l1_loss(places + offsets, goal, reduction="none").sum(2)
    loss = named + 5.0 * (apart * positive).sum(1)
    return (loss / positive.sum(1).clamp(min=1)).mean()


@pair(
    "loss-looped-over-images",
    "Boxes are matched and the losses summed image by image in a Python loop with boolean indexing.",
    "The boxes are padded and the whole batch is matched at once.",
)
def parcel_detector(faulty: bool) -> Step:
    """A detector learns to find parcels on a belt."""
    torch.manual_seed(3)
    rows, cells, kinds = sized(32, 2), sized(256, 32) // 8, 12
    model = on_images(BoxFinder(sized(64, 8), kinds), dtype=torch.float32)
    optimizer = adamw(model)
    pictures = images(32, 256, dtype=torch.float32)
    counts = torch.randint(2, 24, (rows,)).tolist()
    corners = [torch.rand(count, 2, device=DEVICE) * 0.75 for count in counts]
    boxes = [torch.cat([low, low + 0.1 + 0.15 * torch.rand_like(low)], 1) for low in corners]
    classes = [torch.randint(0, kinds, (count,), device=DEVICE) for count in counts]
    places = anchors(cells)
    loss_of = loss_by_image if faulty else loss_by_batch

    def step() -> Tensor:
        with autocast():
            offsets, scores = model(pictures)
        loss = loss_of(offsets.float(), scores.float(), places, boxes, classes)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


class PatchEncoder(nn.Module):
    """A transformer over the patches of a picture."""

    def __init__(self, layers: int, width: int, patch: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.layers = nn.ModuleList(Block(width, max(1, width // 64), 4 * width) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, 128))

    def forward(self, pictures: Tensor) -> Tensor:
        """A vector of length one for every picture."""
        x = self.patches(pictures).flatten(2).transpose(1, 2)
        for layer in self.layers:
            x = layer(x)
        return functional.normalize(self.head(self.norm(x).mean(1)), dim=-1)


@pair(
    "moving-average-looped-over-parameters",
    "The momentum encoder is updated parameter by parameter, with three small kernels for each.",
    "One foreach call over all parameters.",
)
def wafer_matcher(faulty: bool) -> Step:
    """Pictures of wafers are embedded by momentum contrast."""
    torch.manual_seed(5)
    torch.set_float32_matmul_precision("high")
    side, rows, momentum = sized(128, 32), sized(64, 4), 0.996
    query = PatchEncoder(sized(12, 2), sized(256, 32), 16).to(DEVICE)
    key = copy.deepcopy(query).requires_grad_(False)
    optimizer = adamw(query)
    queue = functional.normalize(noise(sized(8192, 64), 128, dtype=torch.float32), dim=-1)
    one, two = (noise(rows, 3, side, side, dtype=torch.float32) for _ in range(2))
    labels = torch.zeros(rows, dtype=torch.long, device=DEVICE)
    slow, fast = list(key.parameters()), list(query.parameters())

    @torch.no_grad()
    def follow() -> None:
        if faulty:
            for param_k, param_q in zip(key.parameters(), query.parameters(), strict=True):
                param_k.data = param_k.data * momentum + param_q.data * (1.0 - momentum)
        else:
            torch._foreach_lerp_(slow, fast, 1.0 - momentum)

    def step() -> Tensor:
        nonlocal queue
        seen = query(one)
        with torch.no_grad():
            follow()
            kept = key(two)
        positive = (seen * kept).sum(-1, keepdim=True)
        scores = torch.cat([positive, seen @ queue.T], 1) / 0.2
        loss = functional.cross_entropy(scores, labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        queue = torch.cat([queue[rows:], kept])
        return loss.detach()

    return step


class GatedResidual(nn.Module):
    """A gated layer added to what came in."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inner = nn.Linear(width, 2 * width)
        self.outer = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """The same shape."""
        value, gate = self.inner(self.norm(x)).chunk(2, -1)
        return x + self.outer(functional.silu(value) * torch.sigmoid(gate))


class SignalVae(nn.Module):
    """A variational autoencoder whose prior weighs more as training goes on."""

    def __init__(self, seen: int, width: int, layers: int, steps: Any) -> None:
        super().__init__()
        self.enter = nn.Linear(seen, width)
        self.encoder = nn.Sequential(*(GatedResidual(width) for _ in range(layers)))
        self.middle = nn.Linear(width, 64)
        self.widen = nn.Linear(32, width)
        self.decoder = nn.Sequential(*(GatedResidual(width) for _ in range(layers)))
        self.leave = nn.Linear(width, seen)
        self.steps = steps

    def forward(self, signals: Tensor) -> Tensor:
        """The loss of a batch."""
        self.steps += 1
        mean, spread = self.middle(self.encoder(self.enter(signals))).chunk(2, -1)
        latent = mean + torch.randn_like(mean) * (0.5 * spread).exp()
        rebuilt = self.leave(self.decoder(self.widen(latent)))
        prior = 0.5 * (mean.square() + spread.exp() - spread - 1).sum(-1).mean()
        weight = self.steps / (self.steps + 10_000)
        return functional.mse_loss(rebuilt, signals) + weight * prior


@pair(
    "compiled-model-recompiles-on-a-counter",
    "A compiled module counts its steps in a Python int: compiled anew until the limit, then eager.",
    "The counter is a tensor on the device.",
)
def sluice_watcher(faulty: bool) -> Step:
    """An autoencoder learns how the sensors of a sluice move together."""
    steps = 0 if faulty else torch.zeros((), device=DEVICE)
    plain = SignalVae(sized(256, 16), sized(512, 32), sized(4, 2), steps).to(DEVICE)
    model: Any = torch.compile(plain, backend="inductor" if DEVICE == "cuda" else "eager")
    optimizer = adamw(plain)
    signals = noise(sized(4096, 16), sized(256, 16), dtype=torch.float32)

    def step() -> Tensor:
        with autocast():
            loss = model(signals)
        loss.backward()
        nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    for _ in range(12):
        step()
    return step
