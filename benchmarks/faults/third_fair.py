"""Programs with a pattern that looks like a mistake, where mending it gains next to nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from benchmarks.faults.library_models import autocast, noise, tokens
from benchmarks.faults.models import DEVICE, HALF, adamw, sized
from benchmarks.faults.registry import Step, pair
from benchmarks.faults.third_text import llama_config
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset


def forever(loader: DataLoader[tuple[Tensor, ...]]) -> Iterator[list[Tensor]]:
    """The batches of one epoch after the other."""
    while True:
        yield from loader


@pair(
    "loader-without-workers-or-pinned-memory",
    "Trains T5 on ids that are in memory already, loaded without workers and copied from ordinary memory.",
    "Load in two workers with pinned memory and copy without waiting.",
    kind="fair",
)
def third_translation_loader(faulty: bool) -> Step:
    """Putting a batch together takes less than a millisecond, while the device is still at the last one."""
    from transformers import T5Config, T5ForConditionalGeneration

    width = sized(1024, 32)
    config = T5Config(
        vocab_size=sized(32128, 128),
        d_model=width,
        d_kv=sized(64, 16),
        d_ff=4 * width,
        num_layers=sized(6, 1),
        num_heads=sized(16, 2),
        decoder_start_token_id=0,
    )
    model = T5ForConditionalGeneration(config).to(DEVICE, HALF).train()
    optimizer = adamw(model)
    count, source, target = sized(4096, 8), sized(256, 12), sized(128, 8)
    pairs = TensorDataset(
        torch.randint(1, config.vocab_size, (count, source)),
        torch.randint(1, config.vocab_size, (count, target)),
    )
    rows = sized(96, 2)
    if faulty:
        loader = DataLoader(pairs, rows, shuffle=True, drop_last=True)
    else:
        workers = sized(2, 0)
        loader = DataLoader(
            pairs,
            rows,
            shuffle=True,
            drop_last=True,
            num_workers=workers,
            pin_memory=DEVICE == "cuda",
            persistent_workers=workers > 0,
        )
    batches = forever(loader)

    def step() -> None:
        ids, labels = (part.to(DEVICE, non_blocking=not faulty) for part in next(batches))
        model(input_ids=ids, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


@pair(
    "loss-fetched-in-every-step",
    "Trains Swin with accelerate and fetches the loss with item() in every step for the progress bar.",
    "Keep the loss on the device and fetch it every fifty steps.",
    kind="fair",
)
def third_swin_progress(faulty: bool) -> Step:
    """A step is so long that the pause after fetching the loss does not count."""
    from accelerate import Accelerator
    from transformers import SwinConfig, SwinForImageClassification

    accelerator = Accelerator(mixed_precision="bf16" if DEVICE == "cuda" else "no", cpu=DEVICE == "cpu")
    side = sized(224, 32)
    config = SwinConfig(
        image_size=side,
        embed_dim=sized(96, 16),
        depths=[2, 2, 6, 2] if DEVICE == "cuda" else [1, 1],
        num_heads=[3, 6, 12, 24] if DEVICE == "cuda" else [2, 2],
        window_size=sized(7, 4),
        num_labels=sized(1000, 10),
    )
    plain = SwinForImageClassification(config)
    model, optimizer = accelerator.prepare(plain, torch.optim.AdamW(plain.parameters(), lr=1e-4))
    images = noise(sized(192, 2), 3, side, side, dtype=torch.float32)
    labels = tokens(config.num_labels, len(images))
    shown: dict[str, Any] = {"loss": 0.0, "turn": 0}

    def step() -> None:
        loss = model(pixel_values=images, labels=labels).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        shown["turn"] += 1
        if faulty or shown["turn"] % 50 == 0:
            shown["loss"] = loss.item()

    return step


@pair(
    "average-of-a-few-large-weights-in-a-loop",
    "Trains a wide Llama and updates an average of its weights in a Python loop over the tensors.",
    "Update the average with one foreach call.",
    kind="fair",
)
def third_wide_average(faulty: bool) -> Step:
    """Three dozen large tensors: the time is that of reading and writing them, however they are called."""
    from transformers import LlamaForCausalLM

    config = llama_config(3, 4096, 11008, 16000)
    with torch.device(DEVICE):
        model = LlamaForCausalLM(config).train()
    optimizer = adamw(model)
    weights = [one.detach() for one in model.parameters()]
    average = [one.clone() for one in weights]
    ids = tokens(config.vocab_size, sized(8, 2), sized(512, 16))

    @torch.no_grad()
    def update() -> None:
        if faulty:
            for kept, now in zip(average, weights, strict=True):
                kept.lerp_(now, 0.001)
        else:
            torch._foreach_lerp_(average, weights, 0.001)

    def step() -> None:
        with autocast():
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        update()

    return step
