"""Training loops of texts, pictures and clicks, as people write them around a library's model."""

from __future__ import annotations

import random
from collections import deque
from typing import Any

import torch
from benchmarks.faults.library_models import autocast, noise, tokens
from benchmarks.faults.models import DEVICE, adamw, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional


def magnitudes_by_name(model: nn.Module) -> dict[str, float]:
    """How large every parameter and its gradient are."""
    report: dict[str, float] = {}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            report[f"gradient/{name}"] = parameter.grad.norm().item()
            report[f"weight/{name}"] = parameter.detach().norm().item()
    return report


def magnitudes_together(model: nn.Module) -> Tensor:
    """How large every gradient and every parameter are, in the order of the parameters."""
    known = [parameter for parameter in model.parameters() if parameter.grad is not None]
    with torch.no_grad():
        gradients = torch._foreach_norm([parameter.grad for parameter in known])  # noqa: SLF001
        return torch.stack([*gradients, *torch._foreach_norm(known)])  # noqa: SLF001


def roberta() -> Any:
    """An encoder of the size of roberta-base that sorts texts into twenty classes."""
    from transformers import RobertaConfig, RobertaForSequenceClassification

    config = RobertaConfig(
        vocab_size=sized(50_265, 256),
        hidden_size=sized(768, 64),
        intermediate_size=sized(3072, 128),
        num_hidden_layers=sized(12, 1),
        num_attention_heads=sized(12, 2),
        max_position_embeddings=514,
        num_labels=20,
    )
    return RobertaForSequenceClassification(config)


@pair(
    "norms-read-one-by-one",
    "The norm of every parameter and of its gradient is read with .item() in every step, for the dashboard.",
    "All norms are computed at once and stay on the device; they are read every fifty steps.",
)
def ninth_ticket_router(faulty: bool) -> Step:
    """Tickets of a help desk are sorted by an encoder that accelerate trains."""
    from accelerate import Accelerator
    from transformers import get_linear_schedule_with_warmup

    accelerator = Accelerator(mixed_precision="bf16" if DEVICE == "cuda" else "no", cpu=DEVICE == "cpu")
    network = roberta().to(DEVICE)
    plain = adamw(network, weight_decay=0.01)
    plan = get_linear_schedule_with_warmup(plain, 500, 100_000)
    model, optimizer, schedule = accelerator.prepare(network, plain, plan)
    rows, length = sized(24, 2), sized(128, 16)
    tickets = tokens(200, 32 * rows, length) + 5
    queues = tokens(20, 32 * rows)
    dashboard: deque[Any] = deque(maxlen=64)
    turn = 0

    def step() -> None:
        nonlocal turn
        turn += 1
        first = turn % 32 * rows
        ids, labels = tickets[first : first + rows], queues[first : first + rows]
        loss = model(input_ids=ids, labels=labels).loss
        accelerator.backward(loss)
        if faulty:
            dashboard.append(magnitudes_by_name(model))
        else:
            dashboard.append(magnitudes_together(model))
            if turn % 50 == 0:
                dashboard.append(dashboard.pop().tolist())
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()

    return step


@pair(
    "fp32-training",
    "A ViT is trained by Lightning Fabric with its default precision: all products are fp32.",
    'Fabric(precision="bf16-mixed").',
)
def ninth_plant_classifier(faulty: bool) -> Step:
    """Leaves are told apart by a vision transformer, with mixed pictures and soft labels."""
    from lightning.fabric import Fabric
    from transformers import ViTConfig, ViTForImageClassification

    plain_precision: Any = "32-true" if faulty or DEVICE == "cpu" else "bf16-mixed"
    fabric = Fabric(accelerator=DEVICE, devices=1, precision=plain_precision)
    side = sized(224, 32)
    config = ViTConfig(
        hidden_size=sized(768, 64),
        intermediate_size=sized(3072, 128),
        num_hidden_layers=sized(12, 1),
        num_attention_heads=sized(12, 2),
        image_size=side,
        num_labels=sized(1000, 10),
    )
    network = ViTForImageClassification(config).to(DEVICE)
    model, optimizer = fabric.setup(network, adamw(network, weight_decay=0.05))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10_000)
    rows = sized(48, 2)
    pictures = noise(rows, 3, side, side, dtype=torch.float32)
    labels = tokens(config.num_labels, rows)

    def step() -> None:
        share = random.betavariate(0.8, 0.8)
        order = torch.randperm(rows, device=DEVICE)
        mixed = share * pictures + (1 - share) * pictures[order]
        scores = model(pixel_values=mixed).logits
        loss = share * functional.cross_entropy(scores, labels, label_smoothing=0.1)
        loss = loss + (1 - share) * functional.cross_entropy(scores, labels[order], label_smoothing=0.1)
        fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, max_norm=1.0, error_if_nonfinite=False)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()

    return step


class Probe(nn.Module):
    """A pretrained backbone and a linear layer above it."""

    def __init__(self, backbone: nn.Module, width: int, classes: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.norm = nn.LayerNorm(2 * width)
        self.head = nn.Linear(2 * width, classes)

    def forward(self, pictures: Tensor) -> Tensor:
        """Scores of the classes, from the first token and the mean of the others."""
        found = self.backbone(pixel_values=pictures).last_hidden_state
        return self.head(self.norm(torch.cat([found[:, 0], found[:, 1:].mean(1)], -1)))


@pair(
    "gradients-that-nobody-uses",
    "Only the head is given to the optimizer, but the backbone's parameters still require gradients.",
    "backbone.requires_grad_(False).",
)
def ninth_bird_guide(faulty: bool) -> Step:
    """Birds are told apart by a linear layer above a pretrained DINOv2."""
    from transformers import Dinov2Config, Dinov2Model

    width, side = sized(768, 64), sized(224, 28)
    config = Dinov2Config(
        hidden_size=width,
        num_hidden_layers=sized(12, 1),
        num_attention_heads=sized(12, 2),
        image_size=side,
        patch_size=14,
    )
    model = Probe(Dinov2Model(config).eval(), width, classes=200).to(DEVICE)
    if not faulty:
        model.backbone.requires_grad_(False)
    learned = [*model.norm.parameters(), *model.head.parameters()]
    optimizer = torch.optim.AdamW(learned, lr=1e-3, weight_decay=1e-4, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10_000)
    rows = sized(64, 2)
    pictures = noise(rows, 3, side, side, dtype=torch.float32)
    labels = tokens(200, rows)
    right = torch.zeros((), device=DEVICE)

    def step() -> None:
        batch = pictures.flip(-1) if random.random() < 0.5 else pictures
        with autocast():
            scores = model(batch)
            loss = functional.cross_entropy(scores, labels)
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        right.add_((scores.detach().argmax(-1) == labels).sum())

    return step


class ClickModel(nn.Module):
    """Guesses whether a user opens an article."""

    def __init__(self, users: int, articles: int, *, sparse: bool, width: int = 64) -> None:
        super().__init__()
        self.user = nn.Embedding(users, width, sparse=sparse)
        self.article = nn.Embedding(articles, width, sparse=sparse)
        self.context = nn.EmbeddingBag(4096, width, mode="sum")
        self.deep = nn.Sequential(
            nn.Linear(3 * width + 13, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 1)
        )

    def forward(self, user: Tensor, article: Tensor, context: Tensor, numbers: Tensor) -> Tensor:
        """The logit of a click."""
        who, what = self.user(user), self.article(article)
        inside = torch.cat([who, what, self.context(context), numbers], -1)
        return self.deep(inside).squeeze(-1) + (who * what).sum(-1)


@pair(
    "dense-gradients-of-large-tables",
    "nn.Embedding tables of ten million rows give dense gradients, and Adagrad updates all rows each step.",
    "nn.Embedding(sparse=True): Adagrad then updates the rows of the batch, with the same result.",
)
def ninth_click_predictor(faulty: bool) -> Step:
    """A recommender of news learns from clicks."""
    users, articles, rows = sized(8_000_000, 2000), sized(2_000_000, 1000), sized(16_384, 16)
    with torch.device(DEVICE):
        model = ClickModel(users, articles, sparse=not faulty)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.02)
    batches = 8
    who, what = tokens(users, batches, rows), tokens(articles, batches, rows)
    context = tokens(4096, batches, rows, 10)
    numbers = noise(batches, rows, 13, dtype=torch.float32)
    clicked = tokens(2, batches, rows).float()
    running = torch.zeros((), device=DEVICE)
    turn = 0

    def step() -> None:
        nonlocal turn
        turn = (turn + 1) % batches
        with autocast():
            scores = model(who[turn], what[turn], context[turn], numbers[turn])
        loss = functional.binary_cross_entropy_with_logits(scores.float(), clicked[turn])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        running.lerp_(loss.detach(), 0.02)

    return step
