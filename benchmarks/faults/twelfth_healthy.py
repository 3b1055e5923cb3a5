"""Programs in which nothing is wrong."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from benchmarks.faults.models import DEVICE, HALF, adamw, gpt, next_word_loss, pinned, sized
from benchmarks.faults.registry import Step, healthy
from torch import Tensor


@healthy("A wide language model is trained with Lightning Fabric in bf16; batches come from pinned memory.")
def twelfth_score_composer() -> Step:
    """A model of notes: long products, one fused optimizer, nothing that the host waits for."""
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cuda" if DEVICE == "cuda" else "cpu", devices=1)
    plain = gpt(3, 4096)
    model, optimizer = fabric.setup(plain, adamw(plain))
    shape = (sized(8, 2), sized(2048, 16))
    batches = [pinned(torch.randint(0, 1024, shape)) for _ in range(4)]
    running = torch.zeros((), device=DEVICE)
    turn = 0

    def step() -> Tensor:
        nonlocal turn
        turn += 1
        notes = batches[turn % len(batches)].to(DEVICE, non_blocking=True)
        loss = next_word_loss(model, notes)
        fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, max_norm=1.0, error_if_nonfinite=False)
        optimizer.step()
        optimizer.zero_grad()
        running.lerp_(loss.detach().float(), 0.02)
        return loss.detach()

    return step


@healthy("A large vision transformer of timm embeds photos: bf16, compiled blocks, copies beside the work.")
def twelfth_photo_index() -> Step:
    """Photos come as uint8 from pinned memory, a batch ahead on a stream of their own."""
    from timm.models.vision_transformer import VisionTransformer

    rows, side = sized(256, 2), sized(224, 32)
    with torch.device(DEVICE):
        model = VisionTransformer(
            img_size=side,
            patch_size=16,
            embed_dim=sized(1024, 64),
            depth=sized(12, 2),
            num_heads=sized(16, 1),
            num_classes=0,
        )
    model = model.to(HALF).eval()
    if DEVICE == "cuda":
        for block in model.blocks:
            block.compile(dynamic=False)
    photos = [
        pinned(torch.randint(0, 256, (rows, 3, side, side), dtype=torch.uint8)) for _ in range(sized(3, 2))
    ]
    copied = ahead(photos)

    def step() -> Tensor:
        pictures = next(copied)
        with torch.no_grad():
            return model(pictures.to(HALF).sub_(127.5).div_(58.0))

    return step


def ahead(batches: list[Tensor]) -> Iterator[Tensor]:
    """Batches on the device without end, each copied while the one before is worked on."""
    if DEVICE == "cpu":
        while True:
            yield from batches
    beside = torch.cuda.Stream()
    room = [torch.empty_like(batches[0], device=DEVICE) for _ in range(2)]
    free = [torch.cuda.Event() for _ in room]
    turn = 0

    def copy(number: int) -> None:
        beside.wait_event(free[number % 2])
        with torch.cuda.stream(beside):
            room[number % 2].copy_(batches[number % len(batches)], non_blocking=True)

    copy(0)
    while True:
        torch.cuda.current_stream().wait_stream(beside)
        if turn:
            free[(turn - 1) % 2].record()
        copy(turn + 1)
        yield room[turn % 2]
        turn += 1
