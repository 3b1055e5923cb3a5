"""Services for sound, video and pictures."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import torch
from benchmarks.faults.library_models import halved
from benchmarks.faults.models import DEVICE, HALF, on_images, pinned, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional

LETTERS = " 'abcdefghijklmnopqrstuvwxyz.,?-"
BLANK = 0


def speech_model() -> Any:
    """A model that hears letters, in the style of wav2vec 2.0."""
    from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

    width = sized(768, 64)
    config = Wav2Vec2Config(
        vocab_size=len(LETTERS) + 1,
        hidden_size=width,
        num_hidden_layers=sized(8, 1),
        num_attention_heads=max(1, width // 64),
        intermediate_size=4 * width,
        conv_dim=(sized(512, 16),) * 7,
        pad_token_id=BLANK,
        attn_implementation="sdpa",
    )
    return halved(Wav2Vec2ForCTC(config)).eval()


def collapsed(found: list[int]) -> str:
    """The letters without blanks and without what is there twice."""
    text, before = [], BLANK
    for letter in found:
        if letter not in (before, BLANK):
            text.append(LETTERS[letter - 1])
        before = letter
    return "".join(text)


def spelled(found: Tensor) -> str:
    """The same, asking the tensor for one letter after the other."""
    text, before = [], BLANK
    for moment in range(found.shape[0]):
        letter = int(found[moment].item())
        if letter not in (before, BLANK):
            text.append(LETTERS[letter - 1])
        before = letter
    return "".join(text)


@pair(
    "one-value-at-a-time-from-the-device",
    "The greedy decoder of a CTC model asks the device for each letter of each row with .item().",
    "The best letters of the whole batch come to the host at once, with .tolist().",
    light_steps=2,
)
def fourteenth_call_transcriber(faulty: bool) -> Step:
    """Eight calls of eight seconds are written down."""
    model = speech_model()
    sound = pinned(torch.randn(sized(8, 2), sized(128_000, 4000)))

    @torch.inference_mode()
    def step() -> list[str]:
        heard = sound.to(DEVICE, non_blocking=True)
        heard = (heard - heard.mean(1, keepdim=True)) / (heard.std(1, keepdim=True) + 1e-6)
        best = model(heard.to(HALF)).logits.argmax(-1)
        if faulty:
            return [spelled(row) for row in best]
        return [collapsed(row) for row in best.tolist()]

    return step


class SpaceTimeBlock(nn.Module):
    """A layer in which every patch of every frame sees all the others."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(1, width // 64)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Attention, then two linear layers, each added to what came in."""
        rows, length, width = x.shape
        parts = self.qkv(self.norms[0](x)).view(rows, length, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, width))
        return x + self.down(functional.gelu(self.up(self.norms[1](x)), approximate="tanh"))


class ClipModel(nn.Module):
    """A transformer over tubes of a clip: two frames by sixteen by sixteen points each."""

    def __init__(self, layers: int, width: int, places: int) -> None:
        super().__init__()
        self.patches = nn.Linear(3 * 2 * 16 * 16, width)
        self.places = nn.Parameter(0.02 * torch.randn(1, places, width))
        self.blocks = nn.ModuleList(SpaceTimeBlock(width) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 400)

    def forward(self, clips: Tensor, mask: Tensor | None) -> Tensor:
        """Scores of the tags."""
        tubes = clips.unflatten(4, (-1, 16)).unflatten(3, (-1, 16)).unflatten(2, (-1, 2))
        tubes = tubes.permute(0, 2, 4, 6, 1, 3, 5, 7).flatten(4).flatten(1, 3)
        x = self.patches(tubes) + self.places
        for block in self.blocks:
            x = block(x, mask)
        return self.head(self.norm(x.mean(1)))


@pair(
    "mask-that-hides-nothing",
    "Every clip has all its frames, but attention is given a mask of all pairs of places, all True.",
    "No mask is given, so that the fast kernel of scaled_dot_product_attention serves.",
)
def fourteenth_clip_tagger(faulty: bool) -> Step:
    """Clips of 64 frames are given tags."""
    rows, frames, side = sized(4, 2), sized(64, 4), sized(224, 32)
    places = frames // 2 * (side // 16) ** 2
    model = ClipModel(sized(6, 1), sized(1024, 64), places).to(DEVICE, HALF).eval()
    clips = pinned(torch.randint(0, 256, (rows, 3, frames, side, side), dtype=torch.uint8))
    lengths = torch.full((rows,), places, device=DEVICE)

    @torch.inference_mode()
    def step() -> Tensor:
        seen = clips.to(DEVICE, non_blocking=True).to(HALF).div_(127.5).sub_(1.0)
        mask = None
        if faulty:
            there = torch.arange(places, device=DEVICE)[None] < lengths[:, None]
            mask = (there[:, :, None] & there[:, None, :])[:, None]
        return model(seen, mask).float().sigmoid().topk(5).values

    return step


class Upscaler(nn.Module):
    """Residual convolutions, then four points for each."""

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(width, width, 3, padding=1),
                nn.ReLU(inplace=True),
                nn.Conv2d(width, width, 3, padding=1),
            )
            for _ in range(blocks)
        )
        self.last = nn.Conv2d(width, 3 * 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Pictures of twice the side."""
        x = self.first(x)
        for block in self.blocks:
            x = block(x).add_(x)
        return functional.pixel_shuffle(self.last(x), 2)


@pair(
    "memory-given-back-after-every-request",
    "Each request ends with gc.collect() and torch.cuda.empty_cache().",
    "Neither is called: the allocator keeps the memory for the next request.",
)
def fourteenth_scan_upscaler(faulty: bool) -> Step:
    """Scanned pages are enlarged, a tile of each in a request."""
    model = on_images(Upscaler(sized(64, 8), sized(12, 1))).eval()
    side = sized(1024, 16)
    page = pinned(torch.randint(0, 256, (sized(4, 1), 3, side, side), dtype=torch.uint8))
    big = pinned(torch.empty(page.shape[0], 3, 2 * side, 2 * side, dtype=torch.uint8))

    @torch.inference_mode()
    def step() -> Tensor:
        tile = page.to(DEVICE, non_blocking=True).to(HALF, memory_format=torch.channels_last).div_(255)
        shown = model(tile).clamp_(0, 1).mul_(255).round_().to(torch.uint8)
        big.copy_(shown, non_blocking=True)
        if DEVICE == "cuda":
            torch.cuda.current_stream().synchronize()  # the page is sent as soon as it is here
        del tile, shown
        if faulty:
            gc.collect()
            torch.cuda.empty_cache()
        return big

    return step


@pair(
    "round-trip-through-numpy",
    "Percentiles of the brightness are asked from np.percentile(), of pictures that are on the device.",
    "torch.quantile() on the device.",
    light_steps=2,
)
def fourteenth_cell_slides(faulty: bool) -> Step:
    """Pictures of cells are stretched to the same contrast and turned into features for a search."""
    from torchvision.models import resnet18

    model = resnet18(num_classes=128)
    model = on_images(model).eval()
    rows, side = sized(16, 2), sized(512, 32)
    slides = pinned(torch.randint(0, 4096, (rows, 3, side, side), dtype=torch.int16))
    shares = torch.tensor([0.01, 0.99], device=DEVICE)

    def limits(shown: Tensor) -> Tensor:
        flat = shown.flatten(2)
        if not faulty:
            return torch.quantile(flat, shares, dim=-1)
        found = np.percentile(flat.cpu().numpy(), (1, 99), axis=-1)
        return torch.from_numpy(found.astype(np.float32)).to(DEVICE)

    @torch.inference_mode()
    def step() -> Tensor:
        shown = slides.to(DEVICE, non_blocking=True).float()
        low, high = limits(shown)[..., None, None]
        shown = ((shown - low) / (high - low)).clamp_(0, 1)
        features = model(shown.to(HALF, memory_format=torch.channels_last))
        return functional.normalize(features.float(), dim=-1).cpu()

    return step
