"""Programs that are well written and keep the device busy."""

from __future__ import annotations

from typing import Any

import torch
from benchmarks.faults.library_models import bert, llama, tokens
from benchmarks.faults.models import DEVICE, HALF, adamw, pinned, sized
from benchmarks.faults.registry import Step, healthy
from torch import Tensor, nn

BACKEND = "inductor" if DEVICE == "cuda" else "eager"


@healthy("A Llama is trained in bf16, compiled, with a fused optimizer; its loss is read now and then.")
def sixth_healthy_pretraining() -> Step:
    """A language model learns from packed texts."""
    plain = llama(8, 2048).train()
    model: Any = torch.compile(plain, backend=BACKEND)
    optimizer = adamw(plain, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100_000)
    packed = pinned(torch.randint(0, 128, (sized(16, 2), sized(1024, 16))))
    running = torch.zeros((), device=DEVICE)
    history: list[float] = []
    done = 0

    def step() -> None:
        nonlocal done
        ids = packed.to(DEVICE, non_blocking=True)
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        running.lerp_(loss.detach().float(), 0.02)
        done += 1
        if done % 200 == 0:
            history.append(running.item())

    return step


@healthy("A compiled bf16 encoder turns texts of one length into vectors, which are fetched a batch late.")
def sixth_healthy_embedding_job() -> Step:
    """Vectors of a corpus are written batch by batch."""
    encoder = bert(12, 1024, attn_implementation="sdpa").bert.to(HALF).eval()
    run: Any = torch.compile(encoder, backend=BACKEND)
    rows, length = sized(256, 2), sized(256, 16)
    texts = tokens(200, rows, length)
    outputs = [pinned(torch.empty(rows, sized(1024, 64), dtype=HALF)) for _ in range(2)]
    events = [torch.cuda.Event() for _ in range(2)] if DEVICE == "cuda" else []
    stored = torch.zeros(rows, sized(1024, 64), dtype=HALF)
    done = 0

    @torch.inference_mode()
    def step() -> Tensor:
        nonlocal done
        now, before = done % 2, (done + 1) % 2
        vectors = nn.functional.normalize(run(input_ids=texts).last_hidden_state[:, 0], dim=-1)
        outputs[now].copy_(vectors, non_blocking=True)
        if events:
            events[now].record()
        if done and events:
            events[before].synchronize()
        stored.copy_(outputs[before])
        done += 1
        return stored

    return step
