"""Programs that are well made."""

from __future__ import annotations

import torch
from benchmarks.faults.models import DEVICE, HALF, adamw, gpt, next_word_loss, pinned, sized, words
from benchmarks.faults.registry import Step, healthy
from torch import Tensor, nn
from torch.nn import functional


@healthy(
    "A wide language model learns in bf16, its layers compiled, with fused attention and a fused optimizer."
)
def ninth_law_reader() -> Step:
    """A language model reads laws."""
    model = gpt(4, 4096)
    if DEVICE == "cuda":
        for layer in model.layers:
            layer.compile()
    optimizer = adamw(model, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100_000)
    pages = [words(8, 2048) for _ in range(4)]
    running = torch.zeros((), device=DEVICE)
    turn = 0

    def step() -> None:
        nonlocal turn
        turn = (turn + 1) % len(pages)
        loss = next_word_loss(model, pages[turn])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        running.lerp_(loss.detach().float(), 0.02)

    return step


class Ahead:
    """Batches of bytes that are copied to the device while the one before is worked on."""

    def __init__(self, batches: list[Tensor]) -> None:
        self.batches = batches
        self.turn = 0
        self.stream = torch.cuda.Stream() if DEVICE == "cuda" else None
        self.ready = self.sent()

    def sent(self) -> Tensor:
        """The next batch on its way to the device."""
        self.turn = (self.turn + 1) % len(self.batches)
        with torch.cuda.stream(self.stream):
            return self.batches[self.turn].to(DEVICE, non_blocking=True)

    def next(self) -> Tensor:
        """A batch on the device."""
        batch = self.ready
        if self.stream is not None:
            torch.cuda.current_stream().wait_stream(self.stream)
            batch.record_stream(torch.cuda.current_stream())
        self.ready = self.sent()
        return batch


@healthy(
    "A large ViT in bf16 with compiled layers embeds big batches; bytes are copied ahead from pinned memory."
)
def ninth_photo_archive() -> Step:
    """Photos of an archive are embedded for a search."""
    from transformers import Dinov2Config, Dinov2Model

    side, rows = sized(224, 28), sized(256, 2)
    config = Dinov2Config(
        hidden_size=sized(1024, 64),
        num_hidden_layers=sized(24, 1),
        num_attention_heads=sized(16, 2),
        image_size=side,
        patch_size=14,
    )
    with torch.device(DEVICE):
        model = Dinov2Model(config).to(HALF).eval()
    if DEVICE == "cuda":
        for layer in model.encoder.layer:
            layer.compile()
    photos = [pinned(torch.randint(0, 256, (rows, 3, side, side), dtype=torch.uint8)) for _ in range(3)]
    ahead = Ahead(photos)
    index = torch.zeros(16 * rows, config.hidden_size, device=DEVICE, dtype=HALF)
    turn = 0

    @torch.inference_mode()
    def step() -> None:
        nonlocal turn
        turn = (turn + 1) % 16
        batch = ahead.next().to(HALF) / 127.5 - 1
        found = model(pixel_values=batch).pooler_output
        index[turn * rows : (turn + 1) * rows] = functional.normalize(found, dim=-1)

    return step
