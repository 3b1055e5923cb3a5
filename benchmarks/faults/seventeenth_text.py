"""Models that write: one continues laws and one continues novels."""

from __future__ import annotations

import itertools

import torch
from benchmarks.faults.library_models import autocast
from benchmarks.faults.models import (
    DEVICE,
    HALF,
    Gpt,
    adamw,
    next_word_loss,
    pinned,
    sized,
    train_words,
    words,
)
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional

LOG_EVERY = 50


@pair(
    "adamw-with-default-kernels",
    "AdamW is left as it comes. It then walks over the weights, the gradients and both averages with one"
    " list operation after another, about a dozen passes over memory. The model is large and its batches"
    " are small, so that these passes are a good part of the step.",
    "torch.optim.AdamW(..., fused=True) reads and writes everything once.",
)
def seventeenth_statute_model(faulty: bool) -> Step:
    """A language model of wide layers goes on learning from statutes, with small batches."""
    count = sized(32_768, 128)
    model = Gpt(sized(6, 1), sized(2048, 64), words=count).to(DEVICE)
    matrices = [weight for weight in model.parameters() if weight.dim() > 1]
    others = [weight for weight in model.parameters() if weight.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-4, betas=(0.9, 0.95), fused=None if faulty else True)
    batches = [pinned(torch.randint(0, count, (4, sized(512, 16)))) for _ in range(4)]
    ahead, numbers = itertools.cycle(batches), itertools.count()
    losses: list[float] = []

    def step() -> Tensor:
        tokens = next(ahead).to(DEVICE, non_blocking=True)
        with autocast():
            loss = next_word_loss(model, tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if next(numbers) % LOG_EVERY == LOG_EVERY - 1:
            losses.append(loss.item())
        return loss.detach()

    return step


class Looking(nn.Module):
    """Attention of several heads to what was written before."""

    mask: Tensor

    def __init__(self, width: int, heads: int, length: int, *, masked: bool) -> None:
        super().__init__()
        self.heads, self.masked = heads, masked
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        before = torch.ones(length, length, dtype=torch.bool).tril()
        self.register_buffer("mask", before.view(1, 1, length, length), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Mixes every position with those before it."""
        rows, length, width = x.shape
        parts = self.qkv(x).view(rows, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        if self.masked:
            seen = self.mask[:, :, :length, :length]
            mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=seen)
        else:
            mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(rows, length, width))


@pair(
    "causal-mask-given-as-a-tensor",
    "The lower triangle is kept as a buffer and handed to scaled_dot_product_attention as attn_mask. With"
    " a mask of its own the flash kernel cannot be taken, the mask is read for every head, and the half of"
    " the scores that it hides is computed all the same.",
    "Leave the mask out and say is_causal=True.",
)
def seventeenth_novel_writer(faulty: bool) -> Step:
    """A language model learns from long pieces of novels."""
    width, length = sized(768, 64), sized(2048, 16)
    model = Gpt(sized(6, 1), width, words=sized(8192, 128))
    for layer in model.layers:
        layer.attention = Looking(width, max(1, width // 64), length, masked=faulty)
    model.to(DEVICE, HALF)
    optimizer = adamw(model)
    tokens = words(8, 2048, sized(8192, 128))
    numbers = itertools.count()
    losses: list[float] = []

    def step() -> Tensor:
        loss = train_words(model, tokens, optimizer)
        if next(numbers) % LOG_EVERY == LOG_EVERY - 1:
            losses.append(loss.item())
        return loss

    return step
