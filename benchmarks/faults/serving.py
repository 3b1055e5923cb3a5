"""Programs that make one word after another."""

from __future__ import annotations

import math

import torch
from benchmarks.faults.models import DEVICE, HALF, graphed, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional

Pair = tuple[Tensor, Tensor]


class Layer(nn.Module):
    """A layer of a language model that sees one new position at a time."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def parts(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value of the new position, by heads of 64."""
        parts = self.qkv(self.norms[0](x)).view(len(x), 3, -1, 1, 64)
        return parts[:, 0], parts[:, 1], parts[:, 2]

    def rest(self, x: Tensor, mixed: Tensor) -> Tensor:
        """What follows attention."""
        x = x + self.out(mixed.reshape(x.shape))
        return x + self.down(functional.gelu(self.up(self.norms[1](x))))


class Decoder(nn.Module):
    """A small language model for serving."""

    def __init__(self, layers: int, width: int, words: int) -> None:
        super().__init__()
        self.width = width
        self.embedding = nn.Embedding(words, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)

    def cache(self, rows: int, length: int) -> list[Pair]:
        """Keys and values of a prompt, for every layer."""
        size = (rows, self.width // 64, length, 64)
        return [
            (torch.randn(size, device=DEVICE, dtype=HALF), torch.randn(size, device=DEVICE, dtype=HALF))
            for _ in self.layers
        ]


class StaticDecoding:
    """Greedy decoding with a cache of fixed size, so that every word runs the same kernels."""

    def __init__(self, model: Decoder, rows: int, length: int) -> None:
        self.model = model
        self.cache = model.cache(rows, length)
        self.places = torch.arange(length, device=DEVICE)
        self.place = torch.zeros(1, dtype=torch.long, device=DEVICE)
        self.tokens = torch.zeros(rows, dtype=torch.long, device=DEVICE)

    def word(self) -> None:
        """Makes the next word of every row, in place."""
        x = self.model.embedding(self.tokens)
        seen = (self.places <= self.place)[None, None, None]
        for layer, (keys, values) in zip(self.model.layers, self.cache, strict=True):
            query, key, value = layer.parts(x)
            keys.index_copy_(2, self.place, key)
            values.index_copy_(2, self.place, value)
            mixed = functional.scaled_dot_product_attention(query, keys, values, attn_mask=seen)
            x = layer.rest(x, mixed)
        self.tokens.copy_(self.model.head(self.model.norm(x)).argmax(-1))
        self.place.add_(1)


def static_decoding(*, with_graph: bool, layers: int = 3, width: int = 512, rows: int = 1) -> Step:
    """A step of six words after a prompt of 64, eagerly or by replaying a graph of one word."""
    model = Decoder(sized(layers, 1), sized(width, 64), sized(4096, 64)).to(DEVICE, HALF).eval()
    decoding = StaticDecoding(model, sized(rows, 1), sized(256, 96))
    with torch.no_grad():
        word = graphed(decoding.word) if with_graph else decoding.word

    def step() -> None:
        decoding.place.fill_(64)
        with torch.no_grad():
            for _ in range(6):
                word()

    return step


@pair(
    "eager-decode",
    "A small language model makes its words eagerly: some hundred launches for each.",
    "A CUDA graph of one word is replayed.",
)
def eager_decode(faulty: bool) -> Step:
    """Decoding where the device waits for each launch."""
    return static_decoding(with_graph=not faulty)


@pair(
    "cache-copies",
    "Every new word joins the caches of keys and values by torch.cat.",
    "The caches are made once, with room, and written in place.",
)
def cache_copies(faulty: bool) -> Step:
    """The whole cache is copied for each word."""
    rows, prompt, count = sized(32, 2), sized(2048, 16), 4
    model = Decoder(sized(4, 1), sized(1024, 64), sized(4096, 64)).to(DEVICE, HALF).eval()
    stored = model.cache(rows, prompt if faulty else prompt + count)

    def word(tokens: Tensor, cache: list[Pair], length: int) -> tuple[Tensor, list[Pair]]:
        x = model.embedding(tokens)
        longer = []
        for layer, (keys, values) in zip(model.layers, cache, strict=True):
            query, key, value = layer.parts(x)
            if faulty:
                kept = torch.cat([keys, key], 2), torch.cat([values, value], 2)
                longer.append(kept)
            else:
                keys[:, :, length : length + 1] = key
                values[:, :, length : length + 1] = value
                longer.append((keys, values))
                kept = keys[:, :, : length + 1], values[:, :, : length + 1]
            x = layer.rest(x, functional.scaled_dot_product_attention(query, *kept))
        return model.head(model.norm(x)).argmax(-1), longer

    def step() -> None:
        with torch.no_grad():
            tokens, cache = torch.zeros(rows, dtype=torch.long, device=DEVICE), stored
            for number in range(count):
                tokens, cache = word(tokens, cache, prompt + number)

    return step


@pair(
    "sampling-cost",
    "Each word is sampled from 128 thousand, all of them sorted in fp32.",
    "Only the best 64 are looked at.",
)
def sampling_cost(faulty: bool) -> Step:
    """Choosing a word takes longer than the model."""
    rows, width, count = sized(64, 2), sized(1024, 64), sized(128_000, 256)
    layers = nn.Sequential(*[nn.Linear(width, width) for _ in range(4)]).to(DEVICE, HALF)
    head = nn.Linear(width, count, bias=False).to(DEVICE, HALF)
    x = torch.randn(rows, width, device=DEVICE, dtype=HALF)

    def sample(logits: Tensor) -> Tensor:
        if faulty:
            best, places = torch.sort(logits.float(), -1, descending=True)
        else:
            best, places = torch.topk(logits, 64, -1)
            best = best.float()
        chances = torch.softmax(best, -1)
        outside = chances.cumsum(-1) - chances > 0.9
        chosen = torch.multinomial(torch.softmax(best.masked_fill(outside, -math.inf), -1), 1)
        return places.gather(-1, chosen)

    def step() -> None:
        with torch.no_grad():
            for _ in range(2):
                sample(head(layers(x)))

    return step
