"""Programs that no rule was tuned to: compiled code, and words one after another."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import torch
from benchmarks.faults.models import DEVICE, HALF, graphed, sized
from benchmarks.faults.registry import Step, pair
from benchmarks.faults.unseen_models import (
    Encoding,
    Heads,
    labels,
    mixers,
    noise,
    tower,
)
from torch import Tensor, nn
from torch.nn import functional

# ---------------------------------------------------------------- compiled


@pair(
    "weight-casts",
    "An encoder with fp32 weights is served under autocast, a few sentences at a time.",
    "Its weights are bf16.",
)
def unseen_served_by_autocast(faulty: bool) -> Step:
    """Every weight is cast for every request."""
    width = sized(4096, 64)
    with torch.device(DEVICE):
        model = nn.Sequential(*[Encoding(width, Heads(width)) for _ in range(sized(3, 1))]).eval()
    if not faulty:
        model = model.to(torch.bfloat16)
    x = noise(4, 16, width, dtype=torch.bfloat16)

    def step() -> None:
        with torch.no_grad(), torch.autocast(DEVICE, torch.bfloat16, enabled=faulty):
            model(x)

    return step


@pair(
    "graph-breaks",
    "A compiled mixer prints the shapes of its activations after every layer.",
    "It does not print.",
)
def unseen_printing_mixer(faulty: bool) -> Step:
    """Compiled code that goes back to Python after every layer."""
    model = mixers(8, 64, 256).eval()
    x = noise(4, sized(64, 8), sized(256, 32))
    sink = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - it is open as long as the program

    class Told(nn.Module):
        def __init__(self, inside: nn.Module) -> None:
            super().__init__()
            self.inside = inside

        def forward(self, x: Tensor) -> Tensor:
            x = self.inside(x)
            if faulty:
                print("activations", x.shape, file=sink)
            return x * 0.9

    run = torch.compile(nn.Sequential(*[Told(layer) for layer in model]))

    def step() -> None:
        with torch.no_grad():
            run(x)

    return step


@pair(
    "missed-graphs",
    "A diffusion mixer is compiled and called for four steps of denoising, its kernels launched one by one.",
    'torch.compile(mode="reduce-overhead").',
)
def unseen_sampled_mixer(faulty: bool) -> Step:
    """Many short kernels, the same each time."""
    model = mixers(8, 64, 384).eval()
    run = torch.compile(model) if faulty else torch.compile(model, mode="reduce-overhead")
    start = noise(2, sized(64, 8), sized(384, 32))

    def step() -> None:
        with torch.no_grad():
            x = start
            for _ in range(4):
                x = 0.98 * x - 0.02 * run(x)

    return step


# ---------------------------------------------------------------- words


class Word(nn.Module):
    """A layer that makes one word: it sees the words so far, and a text that was encoded."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.own, self.other = Heads(width), Heads(width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def halves(self, x: Tensor) -> Tensor:
        """Key and value of the new word: 2, rows, heads, 1, size."""
        return torch.stack([self.own.split(part) for part in self.own.pair(self.norms[0](x)).chunk(2, -1)])

    def mixed(self, x: Tensor, cache: Any, mask: Tensor | None = None) -> Tensor:
        """The word with those before it."""
        query = self.own.split(self.own.query(self.norms[0](x)))
        found = functional.scaled_dot_product_attention(query, cache[0], cache[1], attn_mask=mask)
        return x + self.own.out(found.transpose(1, 2).flatten(2))

    def rest(self, x: Tensor, text: Tensor) -> Tensor:
        """What follows: the text, then two linear layers."""
        x = x + self.other(self.norms[1](x), text)
        return x + self.down(functional.gelu(self.up(self.norms[2](x))))


@pair(
    "eager-decode",
    "A translator with cross attention makes its words eagerly.",
    "A CUDA graph of one word is replayed.",
)
def unseen_translated_words(faulty: bool) -> Step:
    """Two kinds of attention a layer, each of a few launches."""
    width, length = sized(512, 64), 64
    layers = nn.ModuleList(Word(width) for _ in range(sized(4, 1))).to(DEVICE, HALF).eval()
    words = nn.Embedding(sized(8000, 32), width).to(DEVICE, HALF)
    text = noise(4, sized(48, 4), width)
    caches = noise(len(layers), 2, 4, width // 64, length, 64)
    place, last = torch.zeros(1, dtype=torch.long, device=DEVICE), labels(32, 4, 1)
    places = torch.arange(length, device=DEVICE)

    def word() -> None:
        x = words(last)
        mask = (places <= place)[None, None, None]
        for layer, cache in zip(layers, caches, strict=True):
            cache.index_copy_(3, place, layer.halves(x))
            x = layer.rest(layer.mixed(x, cache, mask), text)
        last.copy_((x @ words.weight.T).argmax(-1))
        place.add_(1)

    with torch.no_grad():
        run = word if faulty else graphed(word)

    def step() -> None:
        place.zero_()
        with torch.no_grad():
            for _ in range(6):
                run()

    return step


@pair(
    "sampling-cost",
    "Top-p as in a well-known library: all 152 thousand words are sorted, and the mask is scattered back.",
    "Top-k of 50 comes first.",
)
def unseen_scattered_top_p(faulty: bool) -> Step:
    """Choosing a word takes longer than making it."""
    rows, width, count = sized(48, 2), sized(1024, 32), sized(152_064, 128)
    model = tower(width, 2 * width, width, count).eval()
    x = noise(rows, width)

    def chosen(scores: Tensor) -> Tensor:
        words = None
        if not faulty:
            scores, words = scores.topk(50)
        ordered, places = torch.sort(scores.float() / 0.7, descending=False)
        outside = ordered.softmax(-1).cumsum(-1) <= 0.1
        mask = outside.scatter(1, places, outside)
        drawn = torch.multinomial((scores.float() / 0.7).masked_fill(mask, -math.inf).softmax(-1), 1)
        return drawn if words is None else words.gather(1, drawn)

    def step() -> None:
        with torch.no_grad():
            for _ in range(2):
                chosen(model(x))

    return step


@pair(
    "implicit-syncs",
    "Beam search: a graph makes the best candidates, .tolist() takes them to Python, which picks the beams.",
    "The beams are picked inside the graph.",
)
def unseen_beams_on_host(faulty: bool) -> Step:
    """Two waits a word, and two copies back."""
    rows, beams, width, count = sized(16, 2), 4, sized(1024, 16), sized(8000, 32)
    cells = nn.ModuleList(nn.GRUCell(width, width) for _ in range(2)).to(DEVICE, HALF)
    words = nn.Embedding(count, width).to(DEVICE, HALF)
    states = noise(2, rows * beams, width)
    totals, last = noise(rows, beams, dtype=torch.float32), labels(count, rows * beams)
    parents = torch.arange(rows * beams, device=DEVICE)
    first = beams * torch.arange(rows, device=DEVICE)[:, None]
    best = torch.zeros(rows, beams, dtype=torch.long, device=DEVICE)

    def word() -> None:
        x = words(last)
        for number, cell in enumerate(cells):
            x = cell(x, states[number][parents])
            states[number].copy_(x)
        chances = (x @ words.weight.T).float().log_softmax(-1).view(rows, beams, count)
        found = (totals[..., None] + chances).flatten(1).topk(beams)
        totals.copy_(found.values)
        best.copy_(found.indices)
        if not faulty:
            parents.copy_((best // count + first).flatten())
            last.copy_((best % count).flatten())

    with torch.no_grad():
        run = graphed(word)

    def pick() -> None:
        chosen = best.tolist()
        from_ = [beams * row + one // count for row, some in enumerate(chosen) for one in some]
        parents.copy_(torch.tensor(from_, device=DEVICE))
        last.copy_(torch.tensor([one % count for some in chosen for one in some], device=DEVICE))

    def step() -> None:
        totals.zero_()
        with torch.no_grad():
            for _ in range(sized(12, 2)):
                run()
                if faulty:
                    pick()

    return step
