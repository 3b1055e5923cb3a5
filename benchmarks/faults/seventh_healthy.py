"""Programs that are well written, and one that waits for the device in every step, as it must."""

from __future__ import annotations

from typing import Any

import torch
from benchmarks.faults.library_models import tokens
from benchmarks.faults.models import DEVICE, adamw, gpt, pinned, sized, words
from benchmarks.faults.registry import Step, healthy, pair
from torch import Tensor, nn
from torch.nn import functional


@healthy("A wide language model in bf16 with fused attention and AdamW, a large batch, batches copied ahead.")
def seventh_healthy_wide_model() -> Step:
    """A language model learns; the loss is read once in a hundred steps."""
    model = gpt(2, 4096)
    optimizer = adamw(model)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda turn: min(1.0, (turn + 1) / 500))
    rows, length = sized(8, 2), sized(2048, 16)
    text = pinned(torch.randint(0, 1024, (4, rows, length + 1)))
    running = torch.zeros((), device=DEVICE)
    turn = 0

    def step() -> None:
        nonlocal turn
        batch = text[turn % 4].to(DEVICE, non_blocking=True)
        loss = functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        running.lerp_(loss.detach().float(), 0.02)
        turn += 1
        if turn % 100 == 0:
            print(f"step {turn}: {running.item():.3f}")

    return step


@healthy("A service with compiled blocks in bf16 and large batches of one length; one copy of the result.")
def seventh_healthy_reader() -> Step:
    """A transformer turns a large batch of texts into vectors."""
    model = gpt(8, 2048).eval()
    if DEVICE == "cuda":
        for layer in model.layers:
            layer.compile(dynamic=False)
    batch = words(64, 512)

    @torch.no_grad()
    def step() -> Tensor:
        hidden = model.hidden(batch)
        return functional.normalize(hidden.float().mean(1), dim=-1).cpu()

    return step


@pair(
    "waiting-for-the-device",
    "The norm of the gradients is clipped and read in every step: a step that is not finite is left out.",
    "Clipped, but not read.",
    kind="fair",
)
def seventh_careful_model(faulty: bool) -> Step:
    """A wide Llama learns and leaves out steps that would spoil it; its kernels are long."""
    from transformers import LlamaConfig, LlamaForCausalLM

    width = sized(4096, 64)
    config = LlamaConfig(
        vocab_size=sized(8192, 128),
        hidden_size=width,
        intermediate_size=sized(14_336, 128),
        num_hidden_layers=sized(2, 1),
        num_attention_heads=sized(32, 2),
        num_key_value_heads=sized(8, 1),
        use_cache=False,
        attn_implementation="sdpa",
    )
    with torch.device(DEVICE):
        model: Any = LlamaForCausalLM(config)
    model = model.to(DEVICE, torch.bfloat16 if DEVICE == "cuda" else torch.float32).train()
    optimizer = adamw(model)
    ids = tokens(128, sized(8, 2), sized(2048, 16))
    skipped = 0

    def step() -> None:
        nonlocal skipped
        model(input_ids=ids, labels=ids).loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if faulty and not torch.isfinite(norm).item():
            skipped += 1
        else:
            optimizer.step()
        optimizer.zero_grad()

    return step
