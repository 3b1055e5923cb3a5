"""Programs with nothing to gain: a language model with averaged weights, a sharpener and a painter."""

from __future__ import annotations

import copy

import torch
from benchmarks.faults.library_models import autocast
from benchmarks.faults.models import DEVICE, HALF, Gpt, UNet, adamw, graphed, on_images, pinned, sized, words
from benchmarks.faults.registry import Step, healthy, pair
from torch import Tensor, nn
from torch.nn import functional


class Average:
    """A moving average of the weights of a model."""

    def __init__(self, model: nn.Module, keep: float, *, one_by_one: bool) -> None:
        self.model = copy.deepcopy(model).requires_grad_(False)
        self.slow = list(self.model.parameters())
        self.fast = list(model.parameters())
        self.share = 1 - keep
        self.one_by_one = one_by_one

    @torch.no_grad()
    def update(self) -> None:
        """Draws the average towards the weights."""
        if self.one_by_one:
            for slow, fast in zip(self.slow, self.fast, strict=True):
                slow.lerp_(fast, self.share)
        else:
            torch._foreach_lerp_(self.slow, self.fast, self.share)


@pair(
    "average-updated-tensor-by-tensor",
    "The average of the weights is updated in a loop, in a step where the host is far ahead.",
    "torch._foreach_lerp_, which moves the same bytes.",
    kind="fair",
)
def twentieth_letter_writer(faulty: bool) -> Step:
    """A language model learns letters, and its weights are averaged."""
    torch.manual_seed(33)
    vocabulary = sized(8192, 128)
    with torch.device(DEVICE):
        model = Gpt(sized(8, 1), sized(2048, 64), words=vocabulary)
    average = Average(model, 0.999, one_by_one=faulty)
    optimizer = adamw(model)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 1000)
    ids = words(12, 1025, vocabulary)
    running = torch.zeros((), device=DEVICE)

    def step() -> Tensor:
        with autocast():
            scores = model(ids[:, :-1])
        loss = functional.cross_entropy(scores.flatten(0, 1).float(), ids[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        average.update()
        running.lerp_(loss.detach(), 0.02)
        return loss.detach()

    return step


class Sharpener(nn.Module):
    """Residual convolutions without norms, then pixels rearranged to twice the size."""

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.ups = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(blocks))
        self.downs = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(blocks))
        self.last = nn.Conv2d(width, 12, 3, padding=1)

    def forward(self, images: Tensor) -> Tensor:
        """Images of twice the size."""
        x = self.first(images)
        for up, down in zip(self.ups, self.downs, strict=True):
            x = x + down(functional.relu(up(x), inplace=True))
        detail = functional.pixel_shuffle(self.last(x), 2)
        return detail + functional.interpolate(images, scale_factor=2.0, mode="nearest")


@healthy("A super-resolution network is trained in bf16 with its channels last, from pinned bytes.")
def twentieth_satellite_sharpener() -> Step:
    """Pictures from orbit are sharpened."""
    torch.manual_seed(34)
    torch.backends.cudnn.benchmark = True
    rows, side = sized(24, 2), sized(96, 16)
    model = Sharpener(sized(256, 16), sized(12, 1)).to(DEVICE, memory_format=torch.channels_last)
    optimizer = adamw(model)
    blurred = pinned(torch.randint(0, 256, (rows, 3, side, side), dtype=torch.uint8))
    sharp = pinned(torch.randint(0, 256, (rows, 3, 2 * side, 2 * side), dtype=torch.uint8))
    error = torch.zeros((), device=DEVICE)

    def scaled(batch: Tensor) -> Tensor:
        there = batch.to(DEVICE, non_blocking=True).to(HALF, memory_format=torch.channels_last)
        return there.div_(255.0)

    def step() -> Tensor:
        with autocast():
            drawn = model(scaled(blurred))
        loss = functional.l1_loss(drawn.float(), scaled(sharp).float())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        error.lerp_(loss.detach(), 0.02)
        return loss.detach()

    return step


class TextureMaker:
    """A trained denoiser with the tensors that its graph reads and writes."""

    def __init__(self, rows: int, side: int, width: int, kept: list[float]) -> None:
        self.model = on_images(UNet(width)).eval()
        self.kept = kept
        noise = torch.randn(rows, 3, side, side, device=DEVICE, dtype=HALF)
        self.start = noise.contiguous(memory_format=torch.channels_last)
        scale = torch.linspace(0, 4, 32, device=DEVICE).exp()
        self.times = [
            torch.cat([(turn * scale).sin(), (turn * scale).cos()]).expand(rows, 64).to(HALF).contiguous()
            for turn in range(len(kept) - 1)
        ]
        self.drawn = torch.empty(rows, 3, side, side, device=DEVICE, dtype=torch.uint8)
        self.replay = graphed(self.once)

    @torch.inference_mode()
    def once(self) -> None:
        """Takes the noise away, step by step, and writes pictures of bytes."""
        x = self.start
        for turn, time in enumerate(self.times):
            now, after = self.kept[turn], self.kept[turn + 1]
            error = self.model(x, time)
            clean = (x - (1 - now) ** 0.5 * error) / now**0.5
            x = after**0.5 * clean.clamp(-1, 1) + (1 - after) ** 0.5 * error
        self.drawn.copy_(x.add(1).mul_(127.5).clamp_(0, 255))

    def draw(self) -> Tensor:
        """The pictures, on the host."""
        self.replay()
        return self.drawn.cpu()


@healthy("A diffusion sampler of four steps is replayed from a CUDA graph, in bf16 with channels last.")
def twentieth_texture_maker() -> Step:
    """Textures for a game are drawn from noise."""
    torch.manual_seed(35)
    torch.backends.cudnn.benchmark = True
    maker = TextureMaker(sized(32, 1), sized(128, 16), sized(64, 16), [0.05, 0.35, 0.7, 0.95, 1.0])
    return maker.draw
