"""Training scripts of several families: vision, speech, time series, graphs and language."""

from __future__ import annotations

import os
from typing import Any

import torch
from benchmarks.faults.library_models import autocast, noise, tokens
from benchmarks.faults.models import DEVICE, HALF, adamw, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional


@pair(
    "averaged-weights-on-the-cpu",
    'A ViT of timm is trained with ModelEmaV3(device="cpu"), as train.py --model-ema-force-cpu does.',
    "ModelEmaV3 without a device: the average stays beside the model and is updated by foreach kernels.",
)
def sixth_vit_classifier(faulty: bool) -> Step:
    """An image classifier with a moving average of its weights."""
    import timm
    from timm.utils import ModelEmaV3

    side, rows = sized(224, 32), sized(128, 2)
    name = "vit_small_patch16_224" if DEVICE == "cuda" else "vit_tiny_patch16_224"
    model = timm.create_model(name, img_size=side, num_classes=1000).to(DEVICE)
    average = ModelEmaV3(model, decay=0.9998, device="cpu" if faulty else None)
    optimizer = adamw(model, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100_000)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    pictures, labels = noise(rows, 3, side, side, dtype=torch.float32), tokens(1000, rows)
    done = 0

    def step() -> None:
        nonlocal done
        with autocast():
            loss = criterion(model(pictures), labels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        done += 1
        average.update(model, step=done)
        schedule.step()

    return step


def depth_of(name: str, layers: int) -> int:
    """How far from the input a parameter of wav2vec2 lies."""
    if ".layers." in name and "encoder" in name:
        return int(name.split(".layers.")[1].split(".", maxsplit=1)[0]) + 1
    return 0 if name.startswith("wav2vec2") else layers + 1


def layerwise_groups(model: nn.Module, layers: int, *, merged: bool) -> list[dict[str, Any]]:
    """Parameter groups whose learning rate falls towards the input."""
    groups: list[dict[str, Any]] = []
    known: dict[tuple[int, float], dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        depth = depth_of(name, layers)
        decay = 0.0 if parameter.ndim < 2 else 0.01
        group = {"params": [parameter], "lr": 1e-4 * 0.9 ** (layers + 1 - depth), "weight_decay": decay}
        if merged and (depth, decay) in known:
            known[depth, decay]["params"].append(parameter)
            continue
        known[depth, decay] = group
        groups.append(group)
    return groups


@pair(
    "one-optimizer-group-per-parameter",
    "wav2vec2 is fine-tuned under accelerate with falling learning rates: one group for every parameter.",
    "Parameters of the same layer and decay share a group, so that foreach has something to join.",
)
def sixth_speech_emotion(faulty: bool) -> Step:
    """Emotions are told from speech."""
    from accelerate import Accelerator
    from transformers import Wav2Vec2Config, Wav2Vec2ForSequenceClassification

    layers, width = sized(12, 2), sized(768, 32)
    config = Wav2Vec2Config(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=sized(12, 2),
        intermediate_size=4 * width,
        num_labels=8,
        apply_spec_augment=False,
        layerdrop=0.0,
        attn_implementation="sdpa",
    )
    accelerator = Accelerator(mixed_precision="bf16" if DEVICE == "cuda" else "no", cpu=DEVICE == "cpu")
    model = Wav2Vec2ForSequenceClassification(config)
    model.freeze_feature_encoder()
    optimizer = torch.optim.AdamW(layerwise_groups(model, layers, merged=not faulty))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda turn: min(1.0, (turn + 1) / 500))
    model, optimizer, schedule = accelerator.prepare(model, optimizer, schedule)
    waves = noise(sized(8, 2), sized(48_000, 4000), dtype=torch.float32)
    labels = tokens(8, sized(8, 2))

    def step() -> None:
        with accelerator.autocast():
            loss = model(input_values=waves, labels=labels).loss
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()

    return step


@pair(
    "anomaly-detection-left-on",
    "A PatchTST is trained with torch.autograd.set_detect_anomaly(True), left from a hunt for a NaN.",
    "set_detect_anomaly(False).",
)
def sixth_load_forecast(faulty: bool) -> Step:
    """Load curves of seven stations are forecast."""
    from transformers import PatchTSTConfig, PatchTSTForPrediction

    torch.autograd.set_detect_anomaly(faulty)
    width, context, ahead = sized(256, 32), sized(512, 64), sized(96, 8)
    config = PatchTSTConfig(
        num_input_channels=7,
        context_length=context,
        prediction_length=ahead,
        patch_length=16,
        patch_stride=8,
        d_model=width,
        ffn_dim=4 * width,
        num_hidden_layers=sized(6, 1),
        num_attention_heads=sized(8, 2),
        attn_implementation="sdpa",
    )
    model = PatchTSTForPrediction(config).to(DEVICE)
    optimizer = adamw(model)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=100_000)
    past = noise(sized(64, 2), context, 7, dtype=torch.float32)
    future = noise(sized(64, 2), ahead, 7, dtype=torch.float32)

    def step() -> None:
        with autocast():
            loss = model(past_values=past, future_values=future).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()

    return step


class RootNorm(nn.Module):
    """Normalisation by the root mean square, in fp32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """The same shape and type."""
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return wide.to(x.dtype) * self.weight


class GatedLayer(nn.Module):
    """A decoder layer with rotary positions and a gated feed-forward part."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(RootNorm(width) for _ in range(2))
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, 3 * width, bias=False)
        self.up = nn.Linear(width, 3 * width, bias=False)
        self.down = nn.Linear(3 * width, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Attention, then the gated part, each added to what came in."""
        rows, length, width = x.shape
        parts = self.qkv(self.norms[0](x)).view(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        query, key = (turned(part, cos, sin) for part in parts[:2])
        mixed = functional.scaled_dot_product_attention(query, key, parts[2], is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, width))
        y = self.norms[1](x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions."""
    left, right = x.float().chunk(2, -1)
    return (x.float() * cos + torch.cat([-right, left], -1) * sin).to(x.dtype)


class CodeModel(nn.Module):
    """A language model with a method that returns its loss."""

    def __init__(self, layers: int, width: int, words: int, length: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.layers = nn.ModuleList(GatedLayer(width, max(1, width // 64)) for _ in range(layers))
        self.norm = RootNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        angles = torch.arange(length)[:, None] / 10_000 ** (torch.arange(0, 64, 2) / 64)
        both = torch.cat([angles, angles], -1)
        self.register_buffer("cos", both.cos(), persistent=False)
        self.register_buffer("sin", both.sin(), persistent=False)

    def forward(self, ids: Tensor) -> Tensor:
        """Scores of the next word."""
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return self.head(self.norm(x))

    def training_loss(self, ids: Tensor) -> Tensor:
        """The loss of a batch."""
        return next_loss(self(ids), ids)


def next_loss(scores: Tensor, ids: Tensor) -> Tensor:
    """Cross entropy of the next word."""
    return functional.cross_entropy(scores[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())


@pair(
    "compiled-model-bypassed",
    "torch.compile(model), but the loop calls model.training_loss(), which reaches the eager module.",
    "The compiled module itself is called, and the loss is taken of what it returns.",
)
def sixth_code_model(faulty: bool) -> Step:
    """A small language model learns code."""
    words, length = sized(16_384, 128), sized(1024, 16)
    with torch.device(DEVICE):
        plain = CodeModel(sized(8, 1), sized(1024, 64), words, length).to(HALF)
    model: Any = torch.compile(plain, backend="inductor" if DEVICE == "cuda" else "eager")
    optimizer = adamw(model)
    ids = tokens(words, sized(12, 2), length)
    running = torch.zeros((), device=DEVICE)

    def step() -> None:
        loss = model.training_loss(ids) if faulty else next_loss(model(ids), ids)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        running.lerp_(loss.detach(), 0.02)

    return step


class Neighbours(nn.Module):
    """A layer that adds up what a node's neighbours say."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.own = nn.Linear(width, width)
        self.others = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, source: Tensor, target: Tensor, degree: Tensor) -> Tensor:
        """New features of all nodes."""
        said = self.others(x).index_select(0, source)
        heard = torch.zeros_like(x).index_add_(0, target, said) / degree
        return torch.relu(self.own(x) + heard)


class GraphNet(nn.Module):
    """Three rounds of messages, then a class for every node."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.rounds = nn.ModuleList(Neighbours(width) for _ in range(3))
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor, source: Tensor, target: Tensor, degree: Tensor) -> Tensor:
        """Scores of the classes of all nodes."""
        for layer in self.rounds:
            x = layer(x, source, target, degree)
        return self.head(x)


@pair(
    "deterministic-algorithms-left-on",
    "A graph network on a graph with hubs runs under torch.use_deterministic_algorithms(True).",
    "Without it: index_add_ by atomic adds.",
    environment={"CUBLAS_WORKSPACE_CONFIG": ":4096:8"},
)
def sixth_citation_graph(faulty: bool) -> Step:
    """Papers are sorted into subjects by whom they cite."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.manual_seed(7)
    torch.use_deterministic_algorithms(faulty, warn_only=True)
    nodes, edges, width = sized(100_000, 50), sized(2_000_000, 200), sized(128, 16)
    source = torch.randint(0, nodes, (edges,), device=DEVICE)
    target = (torch.rand(edges, device=DEVICE).pow(2.5) * (nodes - 1)).long()
    degree = torch.bincount(target.cpu(), minlength=nodes).clamp(min=1).to(DEVICE)[:, None].float()
    features, subjects = noise(nodes, width, dtype=torch.float32), tokens(40, nodes)
    model = GraphNet(width, 40).to(DEVICE)
    optimizer = adamw(model)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1000, 0.5)

    def step() -> None:
        scores = model(features, source, target, degree)
        loss = functional.cross_entropy(scores, subjects)
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()

    return step


@pair(
    "exact-auroc-computed-every-step",
    "Under Fabric every training step calls a MulticlassAUROC of torchmetrics, which returns its value.",
    "metric.update() in the step; compute() at the end of the epoch.",
)
def sixth_skin_lesions(faulty: bool) -> Step:
    """Pictures of skin are sorted into forty findings."""
    from lightning.fabric import Fabric
    from torchmetrics.classification import MulticlassAccuracy, MulticlassAUROC
    from transformers import ViTConfig, ViTForImageClassification

    classes, side, width, rows = sized(40, 5), sized(224, 32), sized(768, 32), sized(64, 4)
    fabric = Fabric(accelerator=DEVICE, devices=1, precision="bf16-mixed" if DEVICE == "cuda" else "32-true")
    config = ViTConfig(
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=sized(12, 1),
        num_attention_heads=sized(12, 2),
        image_size=side,
        num_labels=classes,
        attn_implementation="sdpa",
    )
    plain = ViTForImageClassification(config)
    model, optimizer = fabric.setup(plain, torch.optim.AdamW(plain.parameters(), lr=1e-4, fused=True))
    accuracy = MulticlassAccuracy(classes, average="micro", validate_args=False).to(DEVICE)
    auroc = MulticlassAUROC(classes).to(DEVICE)
    pictures, labels = noise(rows, 3, side, side, dtype=torch.float32), tokens(classes, rows)
    shown: dict[str, Tensor] = {}

    def step() -> None:
        scores = model(pixel_values=pictures).logits
        loss = functional.cross_entropy(scores.float(), labels)
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        chances = scores.detach().float().softmax(-1)
        accuracy.update(chances, labels)
        shown["loss"] = loss.detach()
        if faulty:
            shown["auroc"] = auroc(chances, labels)
        else:
            auroc.update(chances, labels)

    return step


class MusicLayer(nn.Module):
    """A decoder layer that is given a mask."""

    def __init__(self, width: int, heads: int, *, masked: bool) -> None:
        super().__init__()
        self.heads = heads
        self.masked = masked
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Mixes every position with those before it."""
        rows, length, width = x.shape
        parts = self.qkv(self.norms[0](x)).view(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)
        if self.masked:
            mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        else:
            mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, width))
        return x + self.feed(self.norms[1](x))


@pair(
    "causal-mask-as-a-tensor",
    "A model of audio codes hands scaled_dot_product_attention a mask of 4096 x 4096 scores.",
    "is_causal=True, by the flash kernel, which skips the upper half.",
)
def sixth_audio_codes(faulty: bool) -> Step:
    """A decoder learns the codes of music."""
    length, width, codes = sized(4096, 32), sized(1024, 64), sized(2048, 64)
    with torch.device(DEVICE):
        embedding = nn.Embedding(codes, width)
        layers = nn.ModuleList(
            MusicLayer(width, max(1, width // 64), masked=faulty) for _ in range(sized(6, 1))
        )
        model = nn.ModuleDict({"embedding": embedding, "layers": layers, "head": nn.Linear(width, codes)})
    model.to(HALF)
    optimizer = adamw(model)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100_000)
    mask = torch.full((length, length), -torch.inf, device=DEVICE, dtype=HALF).triu(1)
    ids = tokens(codes, sized(4, 2), length)

    def step() -> None:
        x = embedding(ids)
        for layer in layers:
            x = layer(x, mask)
        loss = functional.cross_entropy(model["head"](x).flatten(0, 1).float(), ids.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()

    return step
