"""The models that the programs train and serve, each small and of a kind that people use."""

from __future__ import annotations

import math
from typing import Any

import torch
from benchmarks.faults.registry import Step
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HALF = torch.bfloat16 if DEVICE == "cuda" else torch.float32


def sized(full: int, tiny: int) -> int:
    """A size for the device, or a tiny one where there is none and the program is only tried out."""
    return full if DEVICE == "cuda" else tiny


def synchronize() -> None:
    """Waits for the device, where there is one."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def pinned(tensor: Tensor) -> Tensor:
    """The tensor in pinned memory, where there is a device to copy it to."""
    return tensor.pin_memory() if DEVICE == "cuda" else tensor


def adamw(model: nn.Module, **options: Any) -> torch.optim.Optimizer:
    """The optimizer of a program whose fault is elsewhere: one kernel for many tensors."""
    return torch.optim.AdamW(model.parameters(), lr=1e-4, **({"fused": True} | options))


def graphed(step: Step) -> Step:
    """The step captured in a CUDA graph."""
    if DEVICE == "cpu":
        return step
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


# ---------------------------------------------------------------- transformers


class Attention(nn.Module):
    """Causal attention, by torch's own kernel or written by hand."""

    def __init__(self, width: int, heads: int, *, by_hand: bool = False) -> None:
        super().__init__()
        self.heads = heads
        self.by_hand = by_hand
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Mixes every position with those before it."""
        rows, length, width = x.shape
        parts = self.qkv(x).view(rows, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        if self.by_hand:
            scores = query @ key.transpose(-2, -1) / math.sqrt(width // self.heads)
            future = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
            mixed = torch.softmax(scores.masked_fill(future, -math.inf), -1) @ value
        else:
            mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(rows, length, width))


class Block(nn.Module):
    """One layer of a transformer."""

    def __init__(self, width: int, heads: int, hidden: int, *, by_hand: bool = False) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.attention = Attention(width, heads, by_hand=by_hand)
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        """Attention, then two linear layers, each added to what came in."""
        x = x + self.attention(self.norms[0](x))
        return x + self.down(functional.gelu(self.up(self.norms[1](x))))


class Gpt(nn.Module):
    """A small language model."""

    def __init__(
        self, layers: int, width: int, *, words: int = 1024, hidden: int | None = None, by_hand: bool = False
    ) -> None:
        super().__init__()
        heads = max(1, width // 64)
        self.embedding = nn.Embedding(words, width)
        self.layers = nn.ModuleList(
            Block(width, heads, hidden or 4 * width, by_hand=by_hand) for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        self.checkpointed = False

    def hidden(self, tokens: Tensor) -> Tensor:
        """What the head is given."""
        x = self.embedding(tokens)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.checkpointed else layer(x)
        return self.norm(x)

    def forward(self, tokens: Tensor) -> Tensor:
        """Scores of every word at every position."""
        return self.head(self.hidden(tokens))


def gpt(layers: int, width: int, **options: Any) -> Gpt:
    """A language model in half precision on the device."""
    with torch.device(DEVICE):
        return Gpt(sized(layers, 1), sized(width, 64), **options).to(HALF)


def words(rows: int, length: int, count: int = 1024) -> Tensor:
    """A batch of random tokens."""
    return torch.randint(0, count, (sized(rows, 2), sized(length, 16)), device=DEVICE)


def next_word_loss(model: nn.Module, tokens: Tensor) -> Tensor:
    """How badly the model tells the next word."""
    return functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())


def train_words(model: nn.Module, tokens: Tensor, optimizer: torch.optim.Optimizer) -> Tensor:
    """One plain step of training."""
    optimizer.zero_grad()
    loss = next_word_loss(model, tokens)
    loss.backward()
    optimizer.step()
    return loss.detach()


# ---------------------------------------------------------------- images


class Residual(nn.Module):
    """Two convolutions added to what came in."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        """Keeps the size of the images."""
        y = torch.relu(self.norms[0](self.convolutions[0](x)))
        return torch.relu(x + self.norms[1](self.convolutions[1](y)))


class ResNet(nn.Module):
    """A small residual network: three widths, each at half the size of the one before."""

    def __init__(self, width: int = 64, blocks: int = 1, classes: int = 128) -> None:
        super().__init__()
        parts: list[nn.Module] = [nn.Conv2d(3, width, 7, stride=2, padding=3)]
        for turn in range(3):
            now = width << turn
            parts += [Residual(now) for _ in range(blocks)]
            parts += [nn.Conv2d(now, 2 * now, 3, stride=2, padding=1)] if turn < 2 else []
        self.body = nn.Sequential(*parts)
        self.head = nn.Linear(4 * width, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Scores of the classes."""
        return self.head(self.body(images).mean((2, 3)))


class Stage(nn.Module):
    """A convolution that is told the time of the diffusion."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(8, inside)
        self.convolution = nn.Conv2d(inside, outside, 3, padding=1)
        self.time = nn.Linear(64, outside)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """Keeps the size of the images."""
        return self.convolution(functional.silu(self.norm(x))) + self.time(time)[:, :, None, None]


class UNet(nn.Module):
    """A small U-shaped network, as diffusion models have."""

    def __init__(self, width: int = 32, outside: int = 3) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.ModuleList([Stage(width, 2 * width), Stage(2 * width, 4 * width)])
        self.middle = nn.ModuleList([Stage(4 * width, 4 * width)])
        self.up = nn.ModuleList([Stage(8 * width, 2 * width), Stage(4 * width, width)])
        self.last = nn.Conv2d(width, outside, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """An image of as many channels as asked for."""
        x = self.first(x)
        skipped = []
        for stage in self.down:
            x = stage(x, time)
            skipped.append(x)
            x = functional.avg_pool2d(x, 2)
        for stage in self.middle:
            x = x + stage(x, time)
        for stage in self.up:
            x = functional.interpolate(x, scale_factor=2.0)
            x = stage(torch.cat([x, skipped.pop()], 1), time)
        return self.last(x)


def on_images(model: nn.Module, *, dtype: torch.dtype = HALF) -> nn.Module:
    """The model on the device, with its channels last."""
    return model.to(DEVICE, dtype, memory_format=torch.channels_last)


def images(rows: int, side: int, *, dtype: torch.dtype = HALF) -> Tensor:
    """A batch of random images with their channels last."""
    batch = torch.randn(sized(rows, 2), 3, sized(side, 32), sized(side, 32), device=DEVICE, dtype=dtype)
    return batch.to(memory_format=torch.channels_last)


# ---------------------------------------------------------------- others


class Policy(nn.Module):
    """An agent with a memory, and the value it expects."""

    def __init__(self, seen: int = 64, width: int = 256, actions: int = 16) -> None:
        super().__init__()
        self.see = nn.Linear(seen, width)
        self.remember = nn.GRUCell(width, width)
        self.act = nn.Linear(width, actions)
        self.value = nn.Linear(width, 1)

    def forward(self, seen: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Scores of the actions, the value and the memory of the next moment."""
        memory = self.remember(torch.relu(self.see(seen)), memory)
        return self.act(memory), self.value(memory), memory


def wide_mlp(width: int, layers: int) -> nn.Module:
    """Linear layers so wide that the device is busy with products alone."""
    width, layers = sized(width, 64), sized(layers, 2)
    with torch.device(DEVICE):
        parts = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())]
        return nn.Sequential(*parts).to(HALF)
