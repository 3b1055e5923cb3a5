"""Fine-tuning of encoders and vision models, with what people add around the plain step."""

from __future__ import annotations

import gc
from contextlib import nullcontext
from typing import Any

import torch
from benchmarks.faults.library_models import autocast, bert, noise, tokens
from benchmarks.faults.models import DEVICE, adamw, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional


def essay_reader() -> Any:
    """A DeBERTa that gives an essay a mark."""
    from transformers import DebertaV2Config, DebertaV2ForSequenceClassification

    width = sized(768, 64)
    config = DebertaV2Config(
        vocab_size=sized(32_000, 256),
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=sized(6, 1),
        num_attention_heads=max(1, width // 64),
        relative_attention=True,
        position_buckets=sized(256, 8),
        pos_att_type=["p2c", "c2p"],
        share_att_key=True,
        norm_rel_ebd="layer_norm",
        max_relative_positions=-1,
        position_biased_input=False,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=1,
    )
    return DebertaV2ForSequenceClassification(config).to(DEVICE)


@pair(
    "garbage-and-cache-cleared",
    "A DeBERTa is fine-tuned to mark essays, in a plain loop of a notebook.",
    "gc.collect() and torch.cuda.empty_cache() are no longer called in every step.",
)
def tenth_essay_scoring(faulty: bool) -> Step:
    """Essays of 512 words are given marks."""
    model = essay_reader().train()
    rows, length = sized(16, 2), sized(512, 16)
    essays, marks = tokens(250, rows, length), noise(rows, 1, dtype=torch.float32)
    mask = torch.ones_like(essays)
    optimizer = adamw(model)
    average = torch.zeros((), device=DEVICE)

    def train_batch() -> Tensor:
        with autocast():
            predicted = model(input_ids=essays, attention_mask=mask).logits
            loss = functional.mse_loss(predicted.float(), marks)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    def step() -> None:
        average.lerp_(train_batch(), 0.05)
        if faulty:
            gc.collect()
            torch.cuda.empty_cache()

    return step


@pair(
    "gradients-that-nobody-uses",
    "A small BERT learns from the scores of a large one, and from labels.",
    "The large one is asked under torch.no_grad().",
)
def tenth_small_student(faulty: bool) -> Step:
    """Knowledge goes from eight layers to three."""
    teacher, student = bert(8, 768, attn_implementation="sdpa"), bert(3, 384, attn_implementation="sdpa")
    teacher.eval()
    rows, length = sized(256, 2), sized(128, 16)
    texts = {"input_ids": tokens(250, rows, length)}
    texts["attention_mask"] = torch.ones_like(texts["input_ids"])
    labels = tokens(10, rows)
    optimizer = adamw(student)
    heat, share = 2.0, 0.7

    def distilled(scores: Tensor, wanted: Tensor) -> Tensor:
        soft = functional.kl_div(
            functional.log_softmax(scores.float() / heat, -1),
            functional.softmax(wanted.float() / heat, -1),
            reduction="batchmean",
        )
        hard = functional.cross_entropy(scores.float(), labels)
        return share * heat**2 * soft + (1 - share) * hard

    def step() -> None:
        with autocast():
            with nullcontext() if faulty else torch.no_grad():
                wanted = teacher(**texts).logits
            scores = student(**texts).logits
        optimizer.zero_grad()
        distilled(scores, wanted).backward()
        optimizer.step()

    return step


@pair(
    "average-of-weights-on-the-cpu",
    "A ViT of timm is trained with the moving average of its weights that timm offers.",
    "ModelEmaV3 keeps the average beside the weights, without a device of its own.",
)
def tenth_herbarium(faulty: bool) -> Step:
    """Pressed plants are sorted by species."""
    import timm
    from timm.loss import SoftTargetCrossEntropy
    from timm.utils import ModelEmaV3

    rows, side = sized(64, 2), sized(224, 32)
    name = "vit_base_patch16_224"
    model = timm.create_model(name, num_classes=1000, img_size=side, depth=sized(12, 1)).to(DEVICE)
    optimizer = adamw(model, weight_decay=0.05)
    average = ModelEmaV3(model, decay=0.9998, use_warmup=True, device="cpu" if faulty else None)
    criterion = SoftTargetCrossEntropy()
    plants = noise(rows, 3, side, side, dtype=torch.float32)
    species = torch.softmax(noise(rows, 1000, dtype=torch.float32), -1)
    done = 0

    def step() -> None:
        nonlocal done
        with autocast():
            loss = criterion(model(plants), species)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        done += 1
        average.update(model, step=done)

    return step
