"""Programs that torch.compile cannot help as much as it could."""

from __future__ import annotations

import itertools

import torch
from benchmarks.faults.models import DEVICE, HALF, gpt, sized, words
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional


@pair(
    "graph-breaks",
    "A compiled GPT looks at the size of its activations with .item() in every layer.",
    "They are clamped without a look, and the whole model is one graph.",
)
def graph_breaks(faulty: bool) -> Step:
    """Compiled code that goes back to Python in every layer."""
    model = gpt(6, 512).eval()
    tokens = words(4, 128)

    def forward(tokens: Tensor) -> Tensor:
        x = model.embedding(tokens)
        for layer in model.layers:
            x = layer(x)
            if faulty:
                if x.abs().max().item() > 100:
                    x = x.clamp(-100, 100)
            else:
                x = x.clamp(-100, 100)
        return model.head(model.norm(x))

    run = torch.compile(forward, fullgraph=not faulty)

    def step() -> None:
        with torch.no_grad():
            run(tokens)

    return step


@pair(
    "recompilations",
    "Sentences of ever new lengths go through a model that is compiled for fixed shapes.",
    "They are padded to one length.",
    full=False,
)
def recompilations(faulty: bool) -> Step:
    """Every new length is compiled anew."""
    torch._dynamo.config.recompile_limit = 10_000  # noqa: SLF001 - there is no other name for it
    torch._dynamo.config.accumulated_recompile_limit = 10_000  # noqa: SLF001
    width, most = sized(512, 32), sized(512, 64)
    model = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width), nn.Linear(width, width))
    model = model.to(DEVICE, HALF)
    run = torch.compile(model, dynamic=False)
    lengths = itertools.cycle(range(16, most))
    sentences = torch.randn(8, most, width, device=DEVICE, dtype=HALF)

    def step() -> None:
        sentence = sentences[:, : next(lengths)]
        if not faulty:
            sentence = functional.pad(sentence, (0, 0, 0, most - sentence.shape[1]))
        with torch.no_grad():
            run(sentence)

    return step


@pair(
    "missed-graphs",
    "A small compiled GPT answers one short sentence; its kernels are launched one by one.",
    'torch.compile(mode="reduce-overhead").',
)
def missed_graphs(faulty: bool) -> Step:
    """Kernels that are shorter than their launches."""
    model = gpt(8, 384).eval()
    run = torch.compile(model) if faulty else torch.compile(model, mode="reduce-overhead")
    tokens = words(1, 64)

    def step() -> None:
        with torch.no_grad():
            run(tokens)

    return step
