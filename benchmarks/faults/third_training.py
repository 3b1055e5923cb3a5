"""Programs that train vision, speech and diffusion models as people's scripts do, each with one mistake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from benchmarks.faults.library_models import autocast, noise, tokens
from benchmarks.faults.models import DEVICE, adamw, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional


def vision_sizes() -> dict[str, Any]:
    """The sizes of a base vision transformer, or of a tiny one where there is no device."""
    width = sized(768, 32)
    return {
        "hidden_size": width,
        "num_hidden_layers": sized(12, 2),
        "num_attention_heads": sized(12, 2),
        "image_size": sized(224, 32),
        "num_labels": sized(1000, 10),
    }


def photos(rows: int) -> Tensor:
    """A batch of random images."""
    side = sized(224, 32)
    return noise(sized(rows, 2), 3, side, side, dtype=torch.float32)


# ---------------------------------------------------------------- speech


@pair(
    "spectrograms-computed-on-the-cpu",
    "Fine-tunes Whisper and lets the feature extractor make the spectrograms on the CPU in every step.",
    "Tell the feature extractor to compute the batch of spectrograms on the GPU.",
)
def third_whisper_features(faulty: bool) -> Step:
    """Raw clips go through the library's own feature extractor, then through the model."""
    from transformers import WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration

    width = sized(768, 32)
    config = WhisperConfig(
        vocab_size=sized(51865, 200),
        d_model=width,
        encoder_layers=sized(8, 1),
        decoder_layers=sized(4, 1),
        encoder_attention_heads=sized(12, 2),
        decoder_attention_heads=sized(12, 2),
        encoder_ffn_dim=4 * width,
        decoder_ffn_dim=4 * width,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    model = WhisperForConditionalGeneration(config).to(DEVICE).train()
    extractor = WhisperFeatureExtractor()
    optimizer = adamw(model)
    rng = np.random.default_rng(1)
    clips = [rng.standard_normal(16000 * 28).astype(np.float32) for _ in range(sized(16, 2))]
    labels = tokens(config.vocab_size - 3, len(clips), sized(96, 8)) + 3
    where = "cpu" if faulty else DEVICE

    def step() -> None:
        prepared = extractor(clips, sampling_rate=16000, return_tensors="pt", device=where)
        features = prepared["input_features"].to(DEVICE)
        with autocast():
            loss = model(input_features=features, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


# ---------------------------------------------------------------- images


def norms_one_by_one(model: nn.Module) -> dict[str, float]:
    """The norm of every gradient, for the log."""
    return {
        name: parameter.grad.norm().item()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


def norms_together(model: nn.Module) -> dict[str, float]:
    """The same norms, fetched from the device once."""
    named = {name: one.grad for name, one in model.named_parameters() if one.grad is not None}
    norms = torch._foreach_norm(list(named.values()))  # noqa: SLF001
    return dict(zip(named, torch.stack(norms).tolist(), strict=True))


@pair(
    "fetches-each-gradient-norm-separately",
    "Trains a ViT and logs the norm of every gradient in every step, each fetched with its own item().",
    "Compute all norms with one foreach call and fetch them from the device together.",
)
def third_gradient_log(faulty: bool) -> Step:
    """A monitor of the gradients as people add one when a training is unstable."""
    from transformers import ViTConfig, ViTForImageClassification

    sizes = vision_sizes()
    config = ViTConfig(**sizes, intermediate_size=4 * sizes["hidden_size"], patch_size=16)
    model = ViTForImageClassification(config).to(DEVICE).train()
    optimizer = adamw(model)
    images = photos(64)
    labels = tokens(sizes["num_labels"], len(images))
    history: dict[str, float] = {}
    norms_of: Callable[[nn.Module], dict[str, float]] = norms_one_by_one if faulty else norms_together

    def step() -> None:
        with autocast():
            loss = model(pixel_values=images, labels=labels).loss
        loss.backward()
        history.update(norms_of(model))
        optimizer.step()
        optimizer.zero_grad()

    return step


def decayed_rate(name: str, layers: int, rate: float = 1e-4, decay: float = 0.75) -> float:
    """The learning rate of a parameter: the lower its layer, the smaller."""
    parts = name.split(".")
    numbers = [int(part) for part in parts if part.isdigit()]
    depth = numbers[0] + 1 if numbers else (0 if "embeddings" in name else layers + 1)
    return rate * decay ** (layers + 1 - depth)


def parameter_groups(model: nn.Module, layers: int, *, merged: bool) -> list[dict[str, Any]]:
    """Groups with their learning rate and weight decay: one for each parameter, or for each such setting."""
    groups: dict[Any, dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        rate = decayed_rate(name, layers)
        decay = 0.0 if parameter.ndim <= 1 else 0.05
        key = (rate, decay) if merged else name
        group = groups.setdefault(key, {"params": [], "lr": rate, "weight_decay": decay})
        group["params"].append(parameter)
    return list(groups.values())


@pair(
    "one-optimizer-group-per-parameter",
    "Fine-tunes DINOv2 with layer-wise learning rates and gives the optimizer one group for every parameter.",
    "Put the parameters that share a learning rate and weight decay into one group.",
)
def third_layer_decay(faulty: bool) -> Step:
    """Layer-wise decay of the learning rate, as recipes for fine-tuning of vision transformers ask for."""
    from transformers import Dinov2Config, Dinov2ForImageClassification

    sizes = vision_sizes()
    model = Dinov2ForImageClassification(Dinov2Config(**sizes, patch_size=16)).to(DEVICE).train()
    groups = parameter_groups(model, sizes["num_hidden_layers"], merged=not faulty)
    optimizer = torch.optim.AdamW(groups, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda turn: min(1.0, (turn + 1) / 1000))
    images = photos(32)
    labels = tokens(sizes["num_labels"], len(images))

    def step() -> None:
        with autocast():
            loss = model(pixel_values=images, labels=labels).loss
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()

    return step


@pair(
    "metrics-computed-in-every-step",
    "Trains SegFormer and calls a torchmetrics collection in every step, which computes values too.",
    "Only update the metrics in the step and compute them when they are reported.",
)
def third_segmentation_metrics(faulty: bool) -> Step:
    """Training of a segmentation model with the metrics of its epoch."""
    from torchmetrics import MetricCollection
    from torchmetrics.classification import (
        MulticlassAccuracy,
        MulticlassF1Score,
        MulticlassJaccardIndex,
        MulticlassPrecision,
        MulticlassRecall,
    )
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    classes = sized(64, 5)
    side = sized(256, 64)
    model = SegformerForSemanticSegmentation(SegformerConfig(num_labels=classes)).to(DEVICE).train()
    optimizer = adamw(model)
    kinds = (
        MulticlassAccuracy,
        MulticlassF1Score,
        MulticlassJaccardIndex,
        MulticlassPrecision,
        MulticlassRecall,
    )
    metrics = MetricCollection(
        {
            f"{average}/{kind.__name__}": kind(num_classes=classes, average=average, validate_args=False)
            for average in ("macro", "weighted")
            for kind in kinds
        }
    ).to(DEVICE)
    images = noise(sized(16, 2), 3, side, side, dtype=torch.float32)
    masks = tokens(classes, len(images), side, side)
    logged: dict[str, Tensor] = {}

    def step() -> None:
        with autocast():
            scores = model(pixel_values=images).logits
        large = functional.interpolate(scores.float(), size=(side, side), mode="bilinear")
        loss = functional.cross_entropy(large, masks)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        predicted = large.detach().argmax(1)
        if faulty:
            logged.update(metrics(predicted, masks))
        else:
            metrics.update(predicted, masks)

    return step


# ---------------------------------------------------------------- diffusion


@pair(
    "average-of-weights-updated-tensor-by-tensor",
    "Trains a diffusion UNet and keeps an average of its weights with EMAModel, one tensor at a time.",
    "Give EMAModel foreach=True, so that a few kernels update all tensors.",
)
def third_diffusion_average(faulty: bool) -> Step:
    """Unconditional diffusion as in the example scripts of diffusers."""
    from diffusers import DDPMScheduler, UNet2DModel
    from diffusers.training_utils import EMAModel

    wide = sized(128, 32)
    model = UNet2DModel(
        sample_size=sized(32, 16),
        block_out_channels=(wide, 2 * wide, 2 * wide),
        layers_per_block=sized(2, 1),
        down_block_types=("DownBlock2D", "AttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "AttnUpBlock2D", "UpBlock2D"),
    ).to(DEVICE)
    average = EMAModel(model.parameters(), decay=0.9999, foreach=not faulty)
    average.to(DEVICE)
    optimizer = adamw(model)
    scheduler = DDPMScheduler(num_train_timesteps=1000)
    scheduler.alphas_cumprod = scheduler.alphas_cumprod.to(DEVICE)
    clean = noise(sized(32, 2), 3, sized(32, 16), sized(32, 16), dtype=torch.float32)

    def step() -> None:
        added = torch.randn_like(clean)
        times = torch.randint(0, 1000, (len(clean),), device=DEVICE)
        noisy = scheduler.add_noise(clean, added, times)
        with autocast():
            predicted = model(noisy, times).sample
        functional.mse_loss(predicted.float(), added).backward()
        optimizer.step()
        optimizer.zero_grad()
        average.step(model.parameters())

    return step


# ---------------------------------------------------------------- snapshots


class Snapshots:
    """Copies of the weights on the host, made on a stream of their own into pinned memory that is kept."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        pinned = DEVICE == "cuda"
        self.kept = {
            name: torch.empty(one.shape, dtype=one.dtype, pin_memory=pinned)
            for name, one in model.state_dict().items()
        }
        self.stream = torch.cuda.Stream() if pinned else None

    def take(self) -> None:
        """Begins to copy the weights as they are now."""
        if self.stream is None:
            for name, one in self.model.state_dict().items():
                self.kept[name].copy_(one)
            return
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            for name, one in self.model.state_dict().items():
                self.kept[name].copy_(one, non_blocking=True)

    def wait(self) -> None:
        """Lets what comes next on the device wait for the copies."""
        if self.stream is not None:
            torch.cuda.current_stream().wait_stream(self.stream)


@pair(
    "blocking-snapshot-of-the-weights",
    "Trains BERT on masked words and copies all weights to ordinary host memory every eight iterations.",
    "Copy the weights into pinned buffers that are kept, on a stream of their own beside the next iteration.",
)
def third_weight_snapshot(faulty: bool) -> Step:
    """A snapshot to roll back to when the loss runs away; one step is eight iterations and a snapshot."""
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=sized(30522, 200),
        hidden_size=sized(768, 32),
        num_hidden_layers=sized(12, 1),
        num_attention_heads=sized(12, 2),
        intermediate_size=sized(3072, 64),
    )
    model = BertForMaskedLM(config).to(DEVICE).train()
    optimizer = adamw(model)
    ids = tokens(config.vocab_size, sized(32, 2), sized(256, 16))
    labels = torch.where(torch.rand(ids.shape, device=DEVICE) < 0.15, ids, -100)
    snapshots = None if faulty else Snapshots(model)
    kept: dict[str, Tensor] = {}

    def iterate() -> None:
        with autocast():
            loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        if snapshots is not None:
            snapshots.wait()
        optimizer.step()
        optimizer.zero_grad()

    def step() -> None:
        for _ in range(8):
            iterate()
        if snapshots is None:
            kept.update({name: one.cpu() for name, one in model.state_dict().items()})
        else:
            snapshots.take()

    return step
