"""Programs that have nothing to mend: two with a cheap habit, and two that are well written."""

from __future__ import annotations

import itertools

import torch
from benchmarks.faults.library_models import halved, llama, tokens
from benchmarks.faults.models import DEVICE, HALF, adamw, gpt, next_word_loss, pinned, sized, words
from benchmarks.faults.registry import Step, healthy, pair
from torch import Tensor


@pair(
    "loss-read-in-each-step",
    "The loss is read with item() in each step, but a step keeps the device busy for so long that the host is"
    " far ahead of it: after the wait the first kernels are there again within a fraction of a millisecond.",
    "Keep the losses on the device and read them now and then.",
    kind="fair",
)
def eighteenth_saga_writer(faulty: bool) -> Step:
    """A language model learns from sagas and shows how it is doing."""
    model = gpt(6, 3072, words=sized(8192, 128))
    optimizer = adamw(model)
    sagas = [words(16, 1024, sized(8192, 128)) for _ in range(4)]
    total, told = torch.zeros((), device=DEVICE), 0.0
    seen = 0

    def step() -> float | Tensor:
        nonlocal seen, told
        saga = sagas[seen % 4]
        seen += 1
        loss = next_word_loss(model, saga)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if faulty:
            told += loss.item()
            return told / seen
        total.add_(loss.detach())
        return total / seen

    return step


@pair(
    "eager-attention-on-short-texts",
    "The attention is set to eager, but no text has more than 64 words and the layers are wide: the scores of"
    " all pairs are few beside the products, and writing them out costs next to nothing.",
    "Leave the attention at 'sdpa'.",
    kind="fair",
)
def eighteenth_slogan_reader(faulty: bool) -> Step:
    """A language model learns from short slogans."""
    rows, length = sized(192, 2), sized(64, 8)
    model = llama(4, 4096, inner=12_288, attention="eager" if faulty else "sdpa").train()
    optimizer = adamw(model)
    slogans = tokens(sized(8192, 128), rows, length)

    def step() -> Tensor:
        loss = model(input_ids=slogans, labels=slogans, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


@healthy(
    "A wide language model learns in bf16 with torch's own attention and a fused optimizer, with batches so"
    " large that products fill nearly all of the step."
)
def eighteenth_almanac_trainer() -> Step:
    """A language model learns from almanacs."""
    model = gpt(4, 4096, words=sized(8192, 128))
    optimizer = adamw(model)
    waiting = itertools.cycle([pinned(words(16, 1024, sized(8192, 128)).cpu()) for _ in range(4)])
    total = torch.zeros((), device=DEVICE)

    def step() -> Tensor:
        loss = next_word_loss(model, next(waiting).to(DEVICE, non_blocking=True))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        total.add_(loss.detach())
        return total

    return step


@healthy(
    "A wide vision transformer makes vectors of large batches in bf16 without autograd; the pictures travel"
    " as bytes from pinned memory and the vectors alone come back."
)
def eighteenth_stamp_finder() -> Step:
    """A vision transformer makes a vector of each stamp of a collection."""
    from transformers import ViTConfig, ViTModel

    width, side, rows = sized(2560, 64), sized(224, 32), sized(128, 2)
    config = ViTConfig(
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=sized(6, 1),
        num_attention_heads=sized(20, 1),
        image_size=side,
        patch_size=16,
    )
    model = halved(ViTModel(config, add_pooling_layer=False)).eval()
    stamps = itertools.cycle(
        [pinned(torch.randint(0, 256, (rows, 3, side, side), dtype=torch.uint8)) for _ in range(4)]
    )

    @torch.inference_mode()
    def step() -> Tensor:
        pixels = next(stamps).to(DEVICE, non_blocking=True).to(HALF).div_(127.5).sub_(1.0)
        return model(pixel_values=pixels).last_hidden_state[:, 0].cpu()

    return step
