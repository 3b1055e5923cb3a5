"""Models of the programs that no rule was tuned to: other kinds than those in models.py."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from benchmarks.faults.models import DEVICE, HALF, sized
from benchmarks.faults.registry import Step
from torch import Tensor, nn
from torch.nn import functional

FP16 = torch.float16 if DEVICE == "cuda" else torch.float32  # recurrent layers of cuDNN know no bf16


def noise(*shape: int, dtype: torch.dtype = HALF) -> Tensor:
    """Random numbers on the device."""
    return torch.randn(shape, device=DEVICE, dtype=dtype)


def labels(count: int, *shape: int) -> Tensor:
    """Random classes on the device."""
    return torch.randint(0, count, shape, device=DEVICE)


def training(loss_of: Callable[[], Tensor], optimizer: torch.optim.Optimizer) -> Step:
    """A plain step of training."""

    def step() -> None:
        optimizer.zero_grad()
        loss_of().backward()
        optimizer.step()

    return step


class Heads(nn.Module):
    """Attention to the same tokens or to others."""

    def __init__(self, width: int, size: int = 64) -> None:
        super().__init__()
        self.size = size
        self.query = nn.Linear(width, width)
        self.pair = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)

    def split(self, x: Tensor) -> Tensor:
        """The heads apart: rows, heads, positions, size."""
        return x.unflatten(-1, (-1, self.size)).transpose(1, 2)

    def forward(self, x: Tensor, seen: Tensor | None = None, *, causal: bool = False) -> Tensor:
        """Mixes what was seen, or the tokens themselves."""
        keys, values = self.pair(x if seen is None else seen).chunk(2, -1)
        parts = self.split(self.query(x)), self.split(keys), self.split(values)
        mixed = functional.scaled_dot_product_attention(*parts, is_causal=causal)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Encoding(nn.Module):
    """A layer of an encoder, with its parts as asked for."""

    def __init__(self, width: int, attention: nn.Module, norm: Any = nn.LayerNorm, act: Any = None) -> None:
        super().__init__()
        self.norms = nn.ModuleList(norm(width) for _ in range(2))
        self.attention = attention
        self.act = act or functional.gelu
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Attention, then two linear layers."""
        x = x + self.attention(self.norms[0](x))
        return x + self.down(self.act(self.up(self.norms[1](x))))


class Vit(nn.Module):
    """A vision transformer that is given its patches."""

    def __init__(self, layers: int, width: int, attention: Any = Heads, **options: Any) -> None:
        super().__init__()
        self.patch = nn.Linear(768, width)
        self.layers = nn.Sequential(*[Encoding(width, attention(width), **options) for _ in range(layers)])
        self.head = nn.Linear(width, 128)

    def forward(self, patches: Tensor) -> Tensor:
        """Scores of the classes."""
        return self.head(self.layers(self.patch(patches)).mean(1))


def vit(layers: int, width: int, **options: Any) -> Vit:
    """A vision transformer in half precision on the device."""
    with torch.device(DEVICE):
        return Vit(sized(layers, 2), sized(width, 64), **options).to(HALF)


def patches(rows: int, count: int) -> tuple[Tensor, Tensor]:
    """Pictures in patches, and their classes."""
    rows = sized(rows, 4)
    return noise(rows, sized(count, 9), 768), labels(128, rows)


class Mixer(nn.Module):
    """A layer that mixes places, then channels."""

    def __init__(self, places: int, width: int, hidden: int | None = None) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.across = nn.ModuleList([nn.Linear(places, 2 * places), nn.Linear(2 * places, places)])
        self.along = nn.ModuleList(
            [nn.Linear(width, hidden or 4 * width), nn.Linear(hidden or 4 * width, width)]
        )

    def forward(self, x: Tensor) -> Tensor:
        """Keeps the shape."""
        turned = self.norms[0](x).transpose(1, 2)
        x = x + self.across[1](functional.gelu(self.across[0](turned))).transpose(1, 2)
        return x + self.along[1](functional.gelu(self.along[0](self.norms[1](x))))


def mixers(layers: int, places: int, width: int) -> nn.Sequential:
    """Some of them in half precision on the device."""
    with torch.device(DEVICE):
        made = [Mixer(sized(places, 8), sized(width, 32)) for _ in range(sized(layers, 2))]
        return nn.Sequential(*made).to(HALF)


Timed = Callable[[str], Any]


class Translator(nn.Module):
    """An encoder and a decoder that looks at what was encoded."""

    def __init__(self, layers: int, width: int, words: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.encoder = nn.ModuleList(Encoding(width, Heads(width)) for _ in range(layers))
        self.decoder = nn.ModuleList(Encoding(width, Heads(width)) for _ in range(layers))
        self.crossed = nn.ModuleList(Heads(width) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, source: Tensor, target: Tensor, timed: Timed) -> Tensor:
        """Scores of the words; each part runs inside of what `timed` gives for its name."""
        x = self.words(source)
        for layer in self.encoder:
            with timed("encoder attention"):
                x = x + layer.attention(layer.norms[0](x))
            with timed("encoder linear"):
                x = x + layer.down(functional.gelu(layer.up(layer.norms[1](x))))
        y = self.words(target)
        for layer, crossed, norm in zip(self.decoder, self.crossed, self.norms, strict=True):
            with timed("decoder attention"):
                y = y + layer.attention(layer.norms[0](y), causal=True)
            with timed("cross attention"):
                y = y + crossed(norm(y), x)
            with timed("decoder linear"):
                y = y + layer.down(functional.gelu(layer.up(layer.norms[1](y))))
        return self.head(y)


def tower(*widths: int, dtype: torch.dtype = HALF) -> nn.Sequential:
    """Linear layers of these widths with ReLU between them."""
    with torch.device(DEVICE):
        parts: list[nn.Module] = []
        for inside, outside in itertools.pairwise(widths):
            parts += [nn.Linear(inside, outside), nn.ReLU()]
        return nn.Sequential(*parts[:-1]).to(dtype)
