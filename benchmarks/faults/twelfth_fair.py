"""Programs with something that looks like a mistake but costs nothing."""

from __future__ import annotations

import random

import torch
from benchmarks.faults.library_models import WORDS, autocast, bert, llama, tokenizer, tokens
from benchmarks.faults.models import DEVICE, adamw, pinned, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor


@pair(
    "loss-read-in-every-step",
    "loss.item() in every step of a large model, whose kernels are long: the device is hardly kept waiting.",
    "The mean loss is kept on the device. It gains nothing.",
    kind="fair",
)
def twelfth_ledger_model(faulty: bool) -> Step:
    """A wide Llama learns from ledgers; its loss is followed."""
    with torch.device(DEVICE):
        model = llama(4, 4096).train()
    optimizer = adamw(model)
    ids = tokens(128, sized(4, 2), sized(2048, 16))
    running = torch.zeros((), device=DEVICE)
    history = [0.0]

    def step() -> Tensor:
        loss: Tensor = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if faulty:
            history[0] += 0.02 * (loss.item() - history[0])
        else:
            running.lerp_(loss.detach().float(), 0.02)
        return loss.detach()

    return step


@pair(
    "texts-encoded-in-the-main-process",
    "Texts are turned into ids by the main process in every step, while the device is busy with the step"
    " before.",
    "All batches are encoded before the training. It gains nothing.",
    kind="fair",
)
def twelfth_news_sorter(faulty: bool) -> Step:
    """A wide encoder learns to sort news of 128 words each."""
    coder = tokenizer()
    rng = random.Random(2)
    rows, length = sized(128, 2), sized(128, 16)
    count = sized(8, 2)
    texts = [
        [" ".join(f"word{rng.randrange(min(WORDS, 200))}" for _ in range(length)) for _ in range(rows)]
        for _ in range(count)
    ]
    model = bert(6, 1024, attn_implementation="sdpa")
    optimizer = adamw(model)
    labels = tokens(10, rows)

    def encoded(batch: list[str]) -> Tensor:
        return pinned(torch.tensor(coder(batch)["input_ids"]))

    ready = [] if faulty else [encoded(batch) for batch in texts]
    turn = 0

    def step() -> Tensor:
        nonlocal turn
        turn = (turn + 1) % count
        found = encoded(texts[turn]) if faulty else ready[turn]
        ids = found.to(DEVICE, non_blocking=True)
        with autocast():
            loss: Tensor = model(input_ids=ids, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step
