"""An evaluation, a language model in training and a service of embeddings."""

from __future__ import annotations

from typing import Any

import torch
from benchmarks.faults.library_models import halved, noise, tokens
from benchmarks.faults.models import DEVICE, adamw, gpt, next_word_loss, pinned, sized, words
from benchmarks.faults.registry import Step, healthy, pair
from torch import Tensor, nn
from torch.nn import functional

COMPILER = "inductor" if DEVICE == "cuda" else "eager"


@pair(
    "evaluation-with-gradients",
    "A ViT is evaluated in eval mode but without no_grad, on batches that keep the device busy.",
    "torch.no_grad(): less memory, but the same kernels in the same time.",
    kind="fair",
)
def orchard_census(faulty: bool) -> Step:
    """Trees of an orchard are counted by kind, for a report."""
    from torchmetrics.classification import MulticlassAccuracy
    from transformers import ViTConfig, ViTForImageClassification

    kinds, side, width, rows = sized(40, 5), sized(224, 32), sized(768, 32), sized(192, 4)
    config = ViTConfig(
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=sized(12, 1),
        num_attention_heads=sized(12, 2),
        image_size=side,
        num_labels=kinds,
        attn_implementation="sdpa",
    )
    model = halved(ViTForImageClassification(config)).eval()
    accuracy = MulticlassAccuracy(kinds, average="micro", validate_args=False).to(DEVICE)
    pictures, truth = noise(rows, 3, side, side), tokens(kinds, rows)
    total = torch.zeros((), device=DEVICE)

    def step() -> None:
        scores = model(pixel_values=pictures).logits.float()
        total.add_(functional.cross_entropy(scores, truth).detach())
        accuracy.update(scores.detach(), truth)

    return step if faulty else torch.no_grad()(step)


@healthy("A language model in bf16, compiled with its loss; flash attention and a fused optimizer.")
def sonnet_pretraining() -> Step:
    """A language model learns to write verse."""
    count = sized(16_384, 128)
    model = gpt(8, 1024, words=count)
    loss_of: Any = torch.compile(next_word_loss, backend=COMPILER)
    optimizer = adamw(model, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100_000)
    verses = words(24, 1024, count)
    running = torch.zeros((), device=DEVICE)

    def step() -> None:
        loss = loss_of(model, verses)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        running.lerp_(loss.detach().float(), 0.02)

    return step


class Embedder(nn.Module):
    """An encoder whose states are averaged to a direction."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, ids: Tensor) -> Tensor:
        """A direction for every text."""
        states = self.encoder(input_ids=ids).last_hidden_state
        return functional.normalize(states.float().mean(1), dim=-1)


@healthy("Texts of one length go through a compiled BERT in bf16, from pinned memory and back into it.")
def archive_embedder() -> Step:
    """Texts of an archive are turned into directions for a search."""
    from transformers import BertConfig, BertModel

    width, rows, length, count = sized(768, 64), sized(192, 2), sized(256, 16), sized(30_528, 256)
    config = BertConfig(
        vocab_size=count,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=sized(12, 1),
        num_attention_heads=max(1, width // 64),
        attn_implementation="sdpa",
    )
    encoder = halved(BertModel(config, add_pooling_layer=False)).eval()
    model: Any = torch.compile(Embedder(encoder), backend=COMPILER)
    texts = pinned(torch.randint(0, count, (rows, length)))
    found = [pinned(torch.empty(rows, width)) for _ in range(2)]
    ready = [torch.cuda.Event() for _ in found] if DEVICE == "cuda" else []
    turn = 0

    @torch.inference_mode()
    def step() -> None:
        nonlocal turn
        found[turn].copy_(model(texts.to(DEVICE, non_blocking=True)), non_blocking=True)
        if ready:
            ready[turn].record()
            ready[1 - turn].synchronize()
        turn = 1 - turn

    return step
