"""Training of small teams: sounds of birds, streets from above the bonnet and pictures of welds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from benchmarks.faults.library_models import autocast, noise, tokens
from benchmarks.faults.models import DEVICE, adamw, pinned, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional


class EncoderLayer(nn.Module):
    """A layer of a transformer that sees all positions."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.norm2 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.fc1 = nn.Linear(width, 4 * width)
        self.fc2 = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Attention, then two linear layers, each added to what came in."""
        rows, length, width = x.shape
        parts = self.qkv(self.norm1(x)).view(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(parts[0], parts[1], parts[2])
        x = x + self.proj(mixed.transpose(1, 2).reshape(rows, length, width))
        return x + self.fc2(functional.gelu(self.fc1(self.norm2(x))))


class PatchEncoder(nn.Module):
    """Cuts a picture or a spectrogram into patches and encodes them."""

    def __init__(self, channels: int, patches: int, layers: int, width: int) -> None:
        super().__init__()
        self.patch = nn.Conv2d(channels, width, 16, stride=16)
        self.position = nn.Parameter(0.02 * torch.randn(1, patches, width))
        self.layers = nn.ModuleList(EncoderLayer(width, max(1, width // 64)) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        """Features of all patches."""
        x = self.patch(x).flatten(2).transpose(1, 2) + self.position
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


class CallHead(nn.Module):
    """Weighs the patches of a recording and names the species that are heard in it."""

    def __init__(self, width: int, species: int) -> None:
        super().__init__()
        self.weigh = nn.Linear(width, species)
        self.score = nn.Linear(width, species)

    def forward(self, features: Tensor) -> Tensor:
        """Scores of all species."""
        weights = torch.softmax(self.weigh(features), 1)
        return (weights * self.score(features)).sum(1)


class BirdNet(nn.Module):
    """A pretrained encoder of spectrograms under a new head."""

    def __init__(self, patches: int, layers: int, width: int, species: int) -> None:
        super().__init__()
        self.backbone = PatchEncoder(1, patches, layers, width)
        self.head = CallHead(width, species)

    def forward(self, mels: Tensor) -> Tensor:
        """Scores of all species."""
        return self.head(self.backbone(mels))


def hide_bands(mels: Tensor, widest: int) -> Tensor:
    """Hides one band of frequencies of each recording."""
    rows, _, bands, _ = mels.shape
    first = torch.randint(0, bands - widest, (rows, 1), device=mels.device)
    band = torch.arange(bands, device=mels.device)
    hidden = (band >= first) & (band < first + widest)
    return mels.masked_fill(hidden[:, None, :, None], 0.0)


@pair(
    "frozen-backbone-still-gets-gradients",
    "Only the head is trained, but the backbone is frozen by leaving it out of the optimizer alone.",
    "backbone.requires_grad_(False): the backward pass ends at the head.",
)
def twentieth_dawn_chorus(faulty: bool) -> Step:
    """A new head learns the birds of a region on top of a pretrained encoder."""
    torch.manual_seed(20)
    species, bands, frames, rows = sized(264, 8), sized(128, 32), sized(1024, 32), sized(32, 2)
    with torch.device(DEVICE):
        model = BirdNet((bands // 16) * (frames // 16), sized(12, 1), sized(768, 64), species)
    if not faulty:
        model.backbone.requires_grad_(False)
    optimizer = adamw(model.head)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50_000)
    mels = pinned(torch.randn(rows, 1, bands, frames))
    heard = pinned((torch.rand(rows, species) < 0.02).float())
    seen = {"loss": torch.zeros((), device=DEVICE), "hits": torch.zeros((), device=DEVICE)}

    def step() -> Tensor:
        batch = hide_bands(mels.to(DEVICE, non_blocking=True), bands // 8)
        target = heard.to(DEVICE, non_blocking=True)
        with autocast():
            scores = model(batch)
        loss = functional.binary_cross_entropy_with_logits(scores.float(), target)
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        seen["loss"].lerp_(loss.detach(), 0.02)
        seen["hits"].add_(((scores.detach() > 0) == target.bool()).float().mean())
        return loss.detach()

    return step


class ConvNorm(nn.Sequential):
    """A convolution, its norm and its activation."""

    def __init__(self, inside: int, outside: int, stride: int = 1) -> None:
        super().__init__(
            nn.Conv2d(inside, outside, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(outside),
            nn.ReLU(inplace=True),
        )


class StreetNet(nn.Module):
    """An encoder of three scales and a light decoder."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.stem = ConvNorm(3, width, 2)
        self.down1 = nn.Sequential(ConvNorm(width, 2 * width, 2), ConvNorm(2 * width, 2 * width))
        self.down2 = nn.Sequential(ConvNorm(2 * width, 4 * width, 2), ConvNorm(4 * width, 4 * width))
        self.lift = nn.Conv2d(4 * width, 2 * width, 1)
        self.fuse = ConvNorm(2 * width, 2 * width)
        self.head = nn.Conv2d(2 * width, 16 * classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the classes at all pixels."""
        fine = self.down1(self.stem(x))
        coarse = self.lift(self.down2(fine))
        coarse = functional.interpolate(coarse, scale_factor=2.0, mode="nearest")
        return functional.pixel_shuffle(self.head(self.fuse(fine + coarse)), 4)


@pair(
    "each-metric-counts-the-pixels-anew",
    "Five metrics of torchmetrics that share the same counts are updated one by one in every step.",
    "A MetricCollection, whose compute groups update the shared counts once.",
)
def twentieth_kerb_mapper(faulty: bool) -> Step:
    """A car learns where the kerb is; the quality on the batch is followed as it trains."""
    from torchmetrics import Metric, MetricCollection
    from torchmetrics import classification as scores_of

    torch.manual_seed(21)
    classes, side, rows, ignored = sized(19, 5), sized(512, 32), sized(16, 2), 255
    model = StreetNet(sized(48, 8), classes).to(DEVICE, memory_format=torch.channels_last)
    optimizer = adamw(model)
    options: dict[str, Any] = {"num_classes": classes, "ignore_index": ignored, "validate_args": False}
    metrics: dict[str, Metric] = {
        "accuracy": scores_of.MulticlassAccuracy(average="macro", **options),
        "precision": scores_of.MulticlassPrecision(average="macro", **options),
        "recall": scores_of.MulticlassRecall(average="macro", **options),
        "specificity": scores_of.MulticlassSpecificity(average="macro", **options),
        "f1": scores_of.MulticlassF1Score(average="macro", **options),
    }
    separate = [metric.to(DEVICE) for metric in metrics.values()]
    together = MetricCollection(metrics).to(DEVICE)
    frames = pinned(torch.randint(0, 256, (rows, 3, side, side), dtype=torch.uint8))
    labels = tokens(classes, rows, side, side)
    labels.masked_fill_(torch.rand(rows, side, side, device=DEVICE) < 0.05, ignored)

    def batch() -> Tensor:
        pictures = frames.to(DEVICE, non_blocking=True).float().div_(255.0)
        return pictures.contiguous(memory_format=torch.channels_last)

    def step() -> Tensor:
        with autocast():
            scores = model(batch())
            loss = functional.cross_entropy(scores, labels, ignore_index=ignored)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        guess = scores.detach()
        if faulty:
            for metric in separate:
                metric.update(guess, labels)
        else:
            together.update(guess, labels)
        return loss.detach()

    return step


class SignMomentum(torch.optim.Optimizer):
    """The optimizer of the paper: steps along the sign of a blend of the gradient and its average."""

    def __init__(self, params: Iterable[Tensor], lr: float = 1e-4, decay: float = 0.1) -> None:
        super().__init__(params, {"lr": lr, "betas": (0.9, 0.99), "decay": decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # noqa: ARG002
        """Updates the parameters one after the other."""
        for group in self.param_groups:
            lr, (beta1, beta2) = group["lr"], group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["average"] = torch.zeros_like(p)
                average = state["average"]
                p.mul_(1 - lr * group["decay"])
                update = average * beta1 + p.grad * (1 - beta1)
                p.add_(update.sign_(), alpha=-lr)
                average.mul_(beta2).add_(p.grad, alpha=1 - beta2)


class SignMomentumTogether(SignMomentum):
    """The same steps, taken with all tensors of a group at once."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # noqa: ARG002
        """Updates the parameters by torch's operators on lists."""
        for group in self.param_groups:
            lr, (beta1, beta2) = group["lr"], group["betas"]
            params = [p for p in group["params"] if p.grad is not None]
            grads = [p.grad for p in params]
            for p in params:
                if not self.state[p]:
                    self.state[p]["average"] = torch.zeros_like(p)
            averages = [self.state[p]["average"] for p in params]
            torch._foreach_mul_(params, 1 - lr * group["decay"])
            update = torch._foreach_lerp(averages, grads, 1 - beta1)  # noqa: SLF001
            torch._foreach_sign_(update)
            torch._foreach_add_(params, update, alpha=-lr)
            torch._foreach_lerp_(averages, grads, 1 - beta2)


class WeldNet(nn.Module):
    """A deep and narrow encoder of pictures with two answers: the defect and how bad it is."""

    def __init__(self, patches: int, layers: int, width: int, defects: int) -> None:
        super().__init__()
        self.encoder = PatchEncoder(3, patches, layers, width)
        self.defect = nn.Linear(width, defects)
        self.badness = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Scores of the defects and the badness."""
        pooled = self.encoder(x).mean(1)
        return self.defect(pooled), self.badness(pooled).squeeze(-1)


@pair(
    "optimizer-of-a-paper-loops-over-tensors",
    "An optimizer copied from a paper updates three hundred tensors one at a time, seven kernels each.",
    "The same update by the torch._foreach operators.",
)
def twentieth_weld_inspector(faulty: bool) -> Step:
    """Pictures of welds are sorted into defects and graded."""
    torch.manual_seed(22)
    side, rows, defects = sized(224, 32), sized(32, 2), sized(12, 3)
    with torch.device(DEVICE):
        model = WeldNet((side // 16) ** 2, sized(24, 1), sized(384, 64), defects)
    chosen = SignMomentum if faulty else SignMomentumTogether
    optimizer = chosen(model.parameters(), lr=3e-5)
    pictures = noise(rows, 3, side, side, dtype=torch.float32)
    kinds, badness = tokens(defects, rows), torch.rand(rows, device=DEVICE)

    def step() -> Tensor:
        with autocast():
            scores, grade = model(pictures)
        loss = functional.cross_entropy(scores.float(), kinds)
        loss = loss + 0.5 * functional.smooth_l1_loss(grade.float(), badness)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step
