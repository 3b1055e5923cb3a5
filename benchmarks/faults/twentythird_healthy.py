"""Two programs that are well as they are, and one whose pattern costs nothing."""

from __future__ import annotations

import torch
from benchmarks.faults.library_models import halved, tokens
from benchmarks.faults.models import DEVICE, HALF, adamw, gpt, next_word_loss, pinned, sized
from benchmarks.faults.registry import Step, healthy, pair
from torch import Tensor, nn

BACKEND = "inductor" if DEVICE == "cuda" else "eager"


@pair(
    "gradients-gathered-over-small-batches",
    "A step of a language model goes through its batch in four parts and gathers their gradients, although "
    "the whole would fit.",
    "The whole batch at once.",
    kind="fair",
)
def fjord_chronicler(faulty: bool) -> Step:
    """A language model learns chronicles."""
    words, parts = sized(8192, 128), 4 if faulty else 1
    model = gpt(6, 1024, words=words)
    optimizer = adamw(model)
    ids = tokens(words, sized(48, 4), sized(1024, 16))
    shown: dict[str, Tensor] = {}

    def step() -> None:
        total = torch.zeros((), device=DEVICE)
        for part in ids.chunk(parts):
            loss = next_word_loss(model, part) / parts
            loss.backward()
            total += loss.detach()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        shown["loss"] = total

    return step


@healthy("A compiled decoder in bf16 learns from batches that are copied ahead from pinned memory.")
def granite_linguist() -> Step:
    """A language model learns the texts of a quarry's archive."""
    words = sized(16_384, 128)
    plain = gpt(8, 1280, words=words)
    model = torch.compile(plain, backend=BACKEND)
    optimizer = adamw(plain)
    shelf = [pinned(torch.randint(0, words, (sized(24, 2), sized(1024, 16)))) for _ in range(4)]
    turn = 0
    ready = shelf[0].to(DEVICE, non_blocking=True)
    shown: dict[str, Tensor] = {}

    def step() -> None:
        nonlocal turn, ready
        ids = ready
        turn += 1
        ready = shelf[turn % len(shelf)].to(DEVICE, non_blocking=True)
        loss = next_word_loss(model, ids)
        loss.backward()
        nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        shown["loss"] = loss.detach()

    return step


@healthy(
    "A compiled ViT of transformers in bf16 embeds large batches; copies come from and go to pinned memory."
)
def cloud_librarian() -> Step:
    """Photographs of clouds become vectors to search by."""
    from transformers import ViTConfig, ViTModel

    side, rows, width = sized(224, 32), sized(256, 2), sized(768, 32)
    config = ViTConfig(
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=sized(12, 1),
        num_attention_heads=sized(12, 2),
        image_size=side,
        patch_size=16,
        attn_implementation="sdpa",
    )
    model = torch.compile(halved(ViTModel(config, add_pooling_layer=False)).eval(), backend=BACKEND)
    shelf = [pinned(torch.randint(0, 256, (rows, 3, side, side), dtype=torch.uint8)) for _ in range(3)]
    kept = [pinned(torch.zeros(rows, width, dtype=HALF)) for _ in range(2)]
    turn = 0

    @torch.no_grad()
    def step() -> None:
        nonlocal turn
        photos = shelf[turn % len(shelf)].to(DEVICE, non_blocking=True)
        pictures = photos.to(HALF).div_(127.5).sub_(1)
        vectors = model(pixel_values=pictures).last_hidden_state[:, 0]
        kept[turn % len(kept)].copy_(nn.functional.normalize(vectors, dim=-1), non_blocking=True)
        turn += 1

    return step
