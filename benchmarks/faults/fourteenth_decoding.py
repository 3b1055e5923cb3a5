"""Services that write text with a decoder of their own and a cache of fixed size."""

from __future__ import annotations

import torch
from benchmarks.faults.models import DEVICE, HALF, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional

Cache = tuple[Tensor, Tensor]


def repeat_kv(heads: Tensor, times: int) -> Tensor:
    """Gives every head of the queries a copy of its keys or values."""
    rows, count, length, size = heads.shape
    return heads[:, :, None].expand(rows, count, times, length, size).reshape(rows, -1, length, size)


class GroupedAttention(nn.Module):
    """Attention in which several heads of queries share one of keys and values."""

    def __init__(self, width: int, heads: int, shared: int, *, copied: bool) -> None:
        super().__init__()
        self.heads, self.shared, self.size = heads, shared, width // heads
        self.copied = copied
        self.query = nn.Linear(width, width, bias=False)
        self.both = nn.Linear(width, 2 * shared * self.size, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, cache: Cache, place: int) -> Tensor:
        """Writes the keys and values of one word into the cache and reads all until there."""
        rows = x.shape[0]
        query = self.query(x).view(rows, 1, self.heads, self.size).transpose(1, 2)
        new = self.both(x).view(rows, 2, self.shared, self.size)
        for turn, kept in enumerate(cache):
            kept[:, :, place] = new[:, turn]
        key, value = (kept[:, :, : place + 1] for kept in cache)
        if self.copied:
            times = self.heads // self.shared
            key, value = repeat_kv(key, times), repeat_kv(value, times)
            mixed = functional.scaled_dot_product_attention(query, key, value)
        else:
            mixed = functional.scaled_dot_product_attention(query, key, value, enable_gqa=True)
        return self.out(mixed.transpose(1, 2).reshape(rows, 1, -1))


class Layer(nn.Module):
    """One layer of the decoder."""

    def __init__(self, width: int, heads: int, shared: int, *, copied: bool) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(width, eps=1e-5) for _ in range(2))
        self.attention = GroupedAttention(width, heads, shared, copied=copied)
        self.up = nn.Linear(width, 6 * width, bias=False)
        self.down = nn.Linear(3 * width, width, bias=False)

    def forward(self, x: Tensor, cache: Cache, place: int) -> Tensor:
        """Attention, then gated linear layers, each added to what came in."""
        x = x + self.attention(self.norms[0](x), cache, place)
        gate, rest = self.up(self.norms[1](x)).chunk(2, -1)
        return x + self.down(functional.silu(gate) * rest)


class Decoder(nn.Module):
    """A language model that writes one word at a time for many rows."""

    def __init__(self, layers: int, width: int, words: int, *, copied: bool = False) -> None:
        super().__init__()
        self.heads = max(4, width // 128)
        self.shared = self.heads // 4
        self.embedding = nn.Embedding(words, width)
        self.layers = nn.ModuleList(
            Layer(width, self.heads, self.shared, copied=copied) for _ in range(layers)
        )
        self.norm = nn.RMSNorm(width, eps=1e-5)
        self.head = nn.Linear(width, words, bias=False)

    def caches(self, rows: int, length: int) -> list[Cache]:
        """Keys and values of texts that were read before, with room for more."""
        size = self.embedding.embedding_dim // self.heads
        shape = (rows, self.shared, length, size)
        return [
            (torch.randn(shape, device=DEVICE, dtype=HALF), torch.randn(shape, device=DEVICE, dtype=HALF))
            for _ in self.layers
        ]

    def forward(self, word: Tensor, caches: list[Cache], place: int) -> Tensor:
        """Scores of the next word of each row."""
        x = self.embedding(word)[:, None]
        for layer, cache in zip(self.layers, caches, strict=True):
            x = layer(x, cache, place)
        return self.head(self.norm(x))[:, 0]


def decoder(layers: int, width: int, words: int, *, copied: bool = False) -> Decoder:
    """A decoder in half precision on the device."""
    with torch.device(DEVICE):
        model = Decoder(sized(layers, 2), sized(width, 64), sized(words, 128), copied=copied)
    return model.to(HALF).eval()


@pair(
    "keys-and-values-copied-for-each-head",
    "repeat_kv() writes the cache of 8 heads out for 32 heads of queries, in every layer, for every word.",
    "scaled_dot_product_attention(..., enable_gqa=True) reads the cache as it is.",
)
def fourteenth_story_server(faulty: bool) -> Step:
    """Stories of sixteen readers are carried on, eight words in a turn."""
    model = decoder(4, 4096, 32_000, copied=faulty)
    rows, known, count = sized(16, 2), sized(4088, 8), sized(8, 3)
    caches = model.caches(rows, known + count)
    first = torch.randint(0, sized(32_000, 128), (rows,), device=DEVICE)

    @torch.inference_mode()
    def step() -> Tensor:
        word, written = first, []
        for turn in range(count):
            word = model(word, caches, known + turn).argmax(-1)
            written.append(word)
        return torch.stack(written, 1).cpu()

    return step


@pair(
    "asked-for-the-end-after-every-word",
    "After every word the host asks the device whether all rows are at their end; a word takes milliseconds,"
    " so that the question costs next to nothing.",
    "It asks once, after the last word of the turn.",
    kind="fair",
)
def fourteenth_lesson_writer(faulty: bool) -> Step:
    """Exercises for 128 pupils are written side by side until all have ended."""
    model = decoder(6, 4096, 32_000)
    rows, known, count = sized(128, 2), sized(4088, 8), sized(8, 3)
    caches = model.caches(rows, known + count)
    first = torch.randint(0, sized(32_000, 128), (rows,), device=DEVICE)
    end = -1  # the random weights never write it: every turn is as long as the others

    @torch.inference_mode()
    def step() -> Tensor:
        word, written = first, []
        ended = torch.zeros(rows, dtype=torch.bool, device=DEVICE)
        for turn in range(count):
            word = model(word, caches, known + turn).argmax(-1)
            written.append(word)
            ended |= word == end
            if faulty and ended.all().item():
                break
        return torch.stack(written, 1).cpu()

    return step
