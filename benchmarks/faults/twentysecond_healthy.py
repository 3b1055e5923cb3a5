"""Programs that are well written, and some where a known pattern costs nothing."""

from __future__ import annotations

import copy
from typing import Any

import torch
from benchmarks.faults.library_models import autocast, llama, noise, tokens
from benchmarks.faults.models import DEVICE, HALF, adamw, gpt, next_word_loss, pinned, sized
from benchmarks.faults.registry import Step, healthy, pair
from torch import Tensor, nn
from torch.nn import functional


@pair(
    "average-updated-in-a-loop",
    "A moving average of a ViT's weights is updated tensor by tensor, but the device has work for much longer"
    " than the host needs to ask for it.",
    "torch._foreach_lerp_.",
    kind="fair",
)
def lighthouse_keeper(faulty: bool) -> Step:
    """Weather seen from lighthouses is sorted."""
    from transformers import ViTConfig, ViTForImageClassification

    rows, side, width = sized(192, 2), sized(224, 32), sized(768, 32)
    config = ViTConfig(
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=sized(12, 1),
        num_attention_heads=sized(12, 2),
        image_size=side,
        num_labels=sized(64, 8),
        attn_implementation="sdpa",
    )
    model = ViTForImageClassification(config).to(DEVICE)
    average = copy.deepcopy(model).requires_grad_(False).eval()
    model.train()
    optimizer = adamw(model)
    own, kept = list(model.parameters()), list(average.parameters())
    pictures, labels = noise(rows, 3, side, side, dtype=torch.float32), tokens(sized(64, 8), rows)

    @torch.no_grad()
    def follow() -> None:
        if not faulty:
            torch._foreach_lerp_(kept, own, 0.001)
            return
        for mean, parameter in zip(kept, own, strict=True):
            mean.lerp_(parameter, 0.001)

    def step() -> None:
        with autocast():
            loss = functional.cross_entropy(model(pixel_values=pictures).logits.float(), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        follow()

    return step


@pair(
    "batch-in-four-parts",
    "Gradients are accumulated under accelerate over four micro-batches, each of which fills the device.",
    "One batch of all rows.",
    kind="fair",
)
def parish_register(faulty: bool) -> Step:
    """A language model learns the entries of parish registers."""
    from accelerate import Accelerator

    parts, rows = (4, sized(8, 1)) if faulty else (1, sized(32, 4))
    accelerator = Accelerator(gradient_accumulation_steps=parts, cpu=DEVICE == "cpu")
    plain = llama(4, 1536, words=8192)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-4, fused=True)
    model, optimizer = accelerator.prepare(plain, optimizer)
    batches = [tokens(sized(8192, 128), rows, sized(1024, 16)) for _ in range(parts)]

    def step() -> None:
        for ids in batches:
            with accelerator.accumulate(model):
                loss = model(input_ids=ids, labels=ids, use_cache=False).loss
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()

    return step


@healthy("A compiled language model in bf16 is trained on pinned batches that are copied one step ahead.")
def anthem_composer() -> Step:
    """Anthems are composed."""
    count, shape = sized(8192, 1024), (sized(16, 2), sized(1024, 16))
    model = gpt(4, 2048, words=count)
    loss_of: Any = torch.compile(next_word_loss, backend="inductor" if DEVICE == "cuda" else "eager")
    optimizer = adamw(model)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100_000)
    shelf = [pinned(torch.randint(0, count, shape)) for _ in range(8)]
    running = torch.zeros((), device=DEVICE)
    ahead = shelf[0].to(DEVICE, non_blocking=True)
    turn = 0

    def step() -> None:
        nonlocal ahead, turn
        turn += 1
        batch, ahead = ahead, shelf[turn % len(shelf)].to(DEVICE, non_blocking=True)
        loss = loss_of(model, batch)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        running.lerp_(loss.detach().float(), 0.02)

    return step


@healthy("A compiled spectrogram transformer of transformers embeds large batches of sound in bf16.")
def whale_listener() -> Step:
    """Songs of whales are turned into vectors for a search."""
    from transformers import ASTConfig, ASTModel

    width, rows, frames, bands = sized(1024, 32), sized(32, 2), sized(1024, 64), sized(128, 32)
    config = ASTConfig(
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=sized(8, 1),
        num_attention_heads=sized(16, 2),
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        max_length=frames,
        num_mel_bins=bands,
        attn_implementation="sdpa",
    )
    plain = ASTModel(config).to(DEVICE, HALF).eval()
    model: Any = torch.compile(plain, backend="inductor" if DEVICE == "cuda" else "eager")
    sounds = noise(rows, frames, bands)
    vectors = torch.zeros(64, rows, width, device=DEVICE, dtype=HALF)
    turn = 0

    @torch.no_grad()
    def step() -> Tensor:
        nonlocal turn
        pooled = model(input_values=sounds).pooler_output
        vectors[turn % len(vectors)] = functional.normalize(pooled, dim=-1)
        turn += 1
        return vectors

    return step
