"""Programs on timm, torchvision, accelerate and torchmetrics that learn from pictures or judge them."""

from __future__ import annotations

from typing import Any

import torch
from benchmarks.faults.library_models import autocast, noise, tokens
from benchmarks.faults.models import DEVICE, adamw, on_images, pinned, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional

MEAN, SPREAD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


@pair(
    "pictures-made-float-on-the-host",
    "Batches of uint8 pictures are scaled and normalised on the CPU and copied as fp32.",
    "They are copied as uint8 from pinned memory and normalised on the device.",
)
def twelfth_leaf_sorter(faulty: bool) -> Step:
    """A residual network learns to tell leaves apart."""
    import timm
    from torchvision.transforms import v2

    rows, side = sized(256, 2), sized(224, 32)
    model = on_images(timm.create_model("resnet18", num_classes=185), dtype=torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4, fused=True)
    mean, spread = (255 * torch.tensor(one, device=DEVICE)[:, None, None] for one in (MEAN, SPREAD))
    normalise = v2.Compose([v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, SPREAD)])
    batches = [
        pinned(torch.randint(0, 256, (rows, 3, side, side), dtype=torch.uint8)) for _ in range(sized(4, 2))
    ]
    labels = tokens(185, rows)
    turn = 0

    def batch() -> Tensor:
        nonlocal turn
        turn += 1
        pictures = batches[turn % len(batches)]
        if faulty:
            ready = normalise(pictures).to(DEVICE)
        else:
            ready = pictures.to(DEVICE, non_blocking=True).float().sub_(mean).div_(spread)
        return ready.contiguous(memory_format=torch.channels_last)

    def step() -> Tensor:
        pictures = batch()
        with autocast():
            loss = functional.cross_entropy(model(pictures), labels, label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


@pair(
    "averaged-weights-kept-on-the-cpu",
    "timm's ModelEmaV3 keeps its average of the weights on the CPU: all weights are copied in every step.",
    "The average is kept on the device.",
)
def twelfth_cell_atlas(faulty: bool) -> Step:
    """A small vision transformer learns the types of cells; an average of its weights is kept."""
    from timm.models.vision_transformer import VisionTransformer
    from timm.utils import ModelEmaV3

    rows, side = sized(128, 2), sized(224, 32)
    model = VisionTransformer(
        img_size=side,
        patch_size=16,
        embed_dim=sized(384, 64),
        depth=sized(12, 2),
        num_heads=sized(6, 1),
        num_classes=40,
    ).to(DEVICE)
    optimizer = adamw(model, weight_decay=0.05)
    averaged = ModelEmaV3(model, decay=0.9998, device=torch.device("cpu") if faulty else None)
    pictures, labels = noise(rows, 3, side, side, dtype=torch.float32), tokens(40, rows)

    def step() -> Tensor:
        with autocast():
            loss = functional.cross_entropy(model(pictures), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        averaged.update(model)
        return loss.detach()

    return step


class UnhealthyError(RuntimeError):
    """A number that is none has turned up."""


def watch_outputs(model: nn.Module) -> None:
    """Stops the run at the first module whose output is not finite."""

    def look(module: nn.Module, _: Any, found: Any) -> None:
        if isinstance(found, Tensor) and not torch.isfinite(found).all():
            raise UnhealthyError(type(module).__name__)

    for module in model.modules():
        if next(module.children(), None) is None:
            module.register_forward_hook(look)


@pair(
    "outputs-checked-by-hooks",
    "Hooks left from a hunt for NaNs ask of every module's output whether it is finite, and wait for it.",
    "Only the loss is watched, by a flag on the device that is read every hundred steps.",
)
def twelfth_scan_triage(faulty: bool) -> Step:
    """A ConvNeXt learns to sort scans with accelerate."""
    import timm
    from accelerate import Accelerator

    rows, side = sized(48, 2), sized(224, 32)
    accelerator = Accelerator(mixed_precision="bf16" if DEVICE == "cuda" else "no", cpu=DEVICE == "cpu")
    small: dict[str, Any] = {} if DEVICE == "cuda" else {"depths": (1, 1, 1, 1), "dims": (8, 16, 16, 16)}
    net = on_images(timm.create_model("convnext_tiny", num_classes=14, **small), dtype=torch.float32)
    model, optimizer = accelerator.prepare(net, adamw(net))
    scans = noise(rows, 3, side, side, dtype=torch.float32).to(memory_format=torch.channels_last)
    labels = (torch.rand(rows, 14, device=DEVICE) < 0.1).float()
    spoilt = torch.zeros((), dtype=torch.bool, device=DEVICE)
    if faulty:
        watch_outputs(model)
    done = 0

    def step() -> Tensor:
        nonlocal done
        loss = functional.binary_cross_entropy_with_logits(model(scans).float(), labels)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        if not faulty:
            done += 1
            spoilt.logical_or_(~torch.isfinite(loss.detach()))
            if done % 100 == 0 and spoilt.item():
                raise UnhealthyError("loss")
        return loss.detach()

    return step


LAND_CLASSES = 16
UNLABELLED = 255


def land_metrics() -> dict[str, Any]:
    """What is reported of a map of land cover."""
    from torchmetrics import classification as judged

    options: dict[str, Any] = {
        "num_classes": LAND_CLASSES,
        "ignore_index": UNLABELLED,
        "validate_args": False,
    }
    return {
        "accuracy": judged.MulticlassAccuracy(average="macro", **options),
        "precision": judged.MulticlassPrecision(average="macro", **options),
        "recall": judged.MulticlassRecall(average="macro", **options),
        "f1": judged.MulticlassF1Score(average="macro", **options),
        "specificity": judged.MulticlassSpecificity(average="macro", **options),
        "iou": judged.MulticlassJaccardIndex(average="macro", **options),
        "kappa": judged.MulticlassCohenKappa(**options),
    }


@pair(
    "metrics-that-count-the-same-again",
    "Seven metrics of torchmetrics are updated one by one, each with its own argmax, mask and counts.",
    "They are in a MetricCollection, which updates one of each group that shares its counts.",
)
def twelfth_land_cover(faulty: bool) -> Step:
    """A SegFormer is judged on maps of land cover."""
    from torchmetrics import MetricCollection
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    rows, side = sized(16, 2), sized(512, 64)
    config = SegformerConfig(num_labels=LAND_CLASSES)
    model = SegformerForSemanticSegmentation(config).to(DEVICE).eval()
    pictures = noise(rows, 3, side, side, dtype=torch.float32)
    truth = tokens(LAND_CLASSES, rows, side, side)
    truth[torch.rand(truth.shape, device=DEVICE) < 0.05] = UNLABELLED
    metrics = {name: metric.to(DEVICE) for name, metric in land_metrics().items()}
    together = MetricCollection(metrics)

    def step() -> Tensor:
        with torch.no_grad(), autocast():
            coarse = model(pixel_values=pictures).logits
            scores = functional.interpolate(coarse, size=(side, side), mode="bilinear", align_corners=False)
        if faulty:
            for metric in metrics.values():
                metric.update(scores, truth)
        else:
            together.update(scores, truth)
        return scores

    return step
