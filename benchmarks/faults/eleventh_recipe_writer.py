"""A language model of recipes, trained."""

from __future__ import annotations

import torch
from benchmarks.faults.models import DEVICE, adamw, gpt, next_word_loss, pinned, sized
from benchmarks.faults.registry import Step, healthy

WORDS = 32_768


@healthy(
    "A compiled language model is trained in bf16 with a fused optimizer; batches come from pinned memory."
)
def eleventh_recipe_writer() -> Step:
    """Eight layers of width 2048 learn to write."""
    words = sized(WORDS, 128)
    model = gpt(8, 2048, words=words)
    optimizer = adamw(model)
    loss_of = torch.compile(next_word_loss)
    recipes = [pinned(torch.randint(0, words, (sized(8, 2), sized(2048, 16)))) for _ in range(4)]
    turn = 0

    def step() -> None:
        nonlocal turn
        recipe = recipes[turn % len(recipes)].to(DEVICE, non_blocking=True)
        turn += 1
        loss = loss_of(model, recipe)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step
