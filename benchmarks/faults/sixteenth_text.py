"""Language models in training: one writes songs, one is tuned to a style and one reads laws."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import torch
from benchmarks.faults.models import DEVICE, HALF, adamw, gpt, pinned, sized, words
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional

LOG_EVERY = 50


@pair(
    "vocabulary-of-an-odd-size",
    "The vocabulary has the 50257 words of the tokenizer, an odd number, so the products of the output layer"
    " (forward and both of the backward pass) are on rows that start at odd addresses.",
    "Round the vocabulary up to a multiple of 64: vocab_size=50304 (pad_to_multiple_of=64).",
)
def sixteenth_song_writer(faulty: bool) -> Step:
    """A GPT-2 of six layers learns to write songs, from random weights."""
    from transformers import GPT2Config, GPT2LMHeadModel

    known = sized(50257, 211)
    config = GPT2Config(
        vocab_size=known if faulty else (known + 63) // 64 * 64,
        n_positions=sized(1024, 32),
        n_embd=sized(768, 64),
        n_layer=sized(6, 1),
        n_head=sized(12, 2),
        activation_function="gelu_pytorch_tanh",
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
        attn_implementation="sdpa",
    )
    model: Any = GPT2LMHeadModel(config).to(DEVICE, HALF).train()
    optimizer = adamw(model, weight_decay=0.1)
    songs = [pinned(torch.randint(0, known, (sized(16, 2), sized(1024, 32)))) for _ in range(4)]
    ahead, numbers = itertools.cycle(songs), itertools.count()
    losses: list[float] = []

    def step() -> Tensor:
        ids = next(ahead).to(DEVICE, non_blocking=True)
        logits = model(input_ids=ids, use_cache=False).logits
        after = functional.pad(ids[:, 1:], (0, 1), value=-100)
        loss = functional.cross_entropy(logits.flatten(0, 1), after.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if next(numbers) % LOG_EVERY == LOG_EVERY - 1:
            losses.append(loss.item())
        return loss.detach()

    return step


class Adapted(nn.Module):
    """A frozen linear layer with a trained adapter of low rank beside it."""

    def __init__(self, inside: int, outside: int, *, rank: int, multiplied: bool) -> None:
        super().__init__()
        self.base = nn.Linear(inside, outside, bias=False).requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, inside) / inside**0.5)
        self.up = nn.Parameter(torch.zeros(outside, rank))
        self.scale = 2.0
        self.multiplied = multiplied

    def forward(self, x: Tensor) -> Tensor:
        """The layer with its adapter."""
        if self.multiplied:
            return functional.linear(x, self.base.weight + self.scale * (self.up @ self.down))
        small = functional.linear(x, self.down) * self.scale
        return self.base(x) + functional.linear(small, self.up)


class Layer(nn.Module):
    """A layer of a language model whose linear layers have adapters."""

    def __init__(self, width: int, *, multiplied: bool) -> None:
        super().__init__()
        self.heads = max(1, width // 128)
        self.norms = nn.ModuleList(nn.RMSNorm(width).requires_grad_(False) for _ in range(2))
        sizes = {"qkv": (1, 3), "out": (1, 1), "wide": (1, 4), "back": (4, 1)}
        self.parts = nn.ModuleDict(
            {
                name: Adapted(width * inside, width * outside, rank=16, multiplied=multiplied)
                for name, (inside, outside) in sizes.items()
            }
        )

    def forward(self, x: Tensor) -> Tensor:
        """Causal attention, then two linear layers, each added to what came in."""
        rows, length, width = x.shape
        parts = self.parts["qkv"](self.norms[0](x)).view(rows, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.parts["out"](mixed.transpose(1, 2).reshape(rows, length, width))
        return x + self.parts["back"](functional.silu(self.parts["wide"](self.norms[1](x))))


@pair(
    "adapter-multiplied-out",
    "Every adapted layer multiplies its two thin matrices out and adds them to the frozen weight in each"
    " pass, so the backward pass makes a gradient of the size of the whole weight.",
    "Run the input through the thin matrices: base(x) + (x @ down.T) @ up.T * scale.",
)
def sixteenth_style_tuner(faulty: bool) -> Step:
    """A language model is tuned to the style of a house by adapters of low rank written by hand."""
    width, known = sized(2048, 128), sized(8192, 128)
    with torch.device(DEVICE):
        embedding = nn.Embedding(known, width).requires_grad_(False)
        layers = nn.ModuleList(Layer(width, multiplied=faulty) for _ in range(sized(8, 1)))
        head = nn.Linear(width, known, bias=False).requires_grad_(False)
    model = nn.ModuleList([embedding, layers, head]).to(HALF)
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=True)
    letters, numbers = words(4, 1024, known), itertools.count()
    losses: list[float] = []

    def step() -> Tensor:
        x = embedding(letters)
        for layer in layers:
            x = layer(x)
        scores = head(x)[:, :-1].flatten(0, 1)
        loss = functional.cross_entropy(scores, letters[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if next(numbers) % LOG_EVERY == LOG_EVERY - 1:
            losses.append(loss.item())
        return loss.detach()

    return step


def orthogonal(matrix: Tensor, turns: int = 5) -> Tensor:
    """The nearest matrix with all stretches near one, by Newton's and Schulz's iteration."""
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / (x.norm() + 1e-7)
    for _ in range(turns):
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x.T if tall else x


class Muon(torch.optim.Optimizer):
    """Momentum whose matrices are made orthogonal."""

    def __init__(self, weights: Iterable[Tensor], lr: float, dtype: torch.dtype) -> None:
        super().__init__(list(weights), {"lr": lr, "momentum": 0.95})
        self.dtype = dtype

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # noqa: ARG002
        """Moves every matrix."""
        for group in self.param_groups:
            for weight in group["params"]:
                state = self.state[weight]
                if not state:
                    state["mean"] = torch.zeros_like(weight)
                state["mean"].lerp_(weight.grad, 1 - group["momentum"])
                ahead = weight.grad.lerp(state["mean"], group["momentum"])
                stretch = max(1.0, weight.shape[0] / weight.shape[1]) ** 0.5
                weight.add_(orthogonal(ahead.to(self.dtype)).to(weight.dtype), alpha=-group["lr"] * stretch)


@pair(
    "orthogonalisation-in-float32",
    "Muon's five turns of Newton and Schulz run on float32 copies of the updates, which are large products of"
    " matrices without tensor cores; they take longer than the model does.",
    "Run the turns in bf16, for which they are made: orthogonal(update.bfloat16()).",
)
def sixteenth_law_reader(faulty: bool) -> Step:
    """A language model learns laws with Muon for its matrices and AdamW for the rest."""
    model = gpt(6, 1024, words=sized(8192, 128))
    matrices = [weight for weight in model.layers.parameters() if weight.ndim == 2]
    chosen = {id(weight) for weight in matrices}
    others = [weight for weight in model.parameters() if id(weight) not in chosen]
    optimizers = [
        Muon(matrices, 0.01, torch.float32 if faulty else HALF),
        torch.optim.AdamW(others, lr=1e-4, fused=True),
    ]
    laws, numbers = words(8, 1024, sized(8192, 128)), itertools.count()
    losses: list[float] = []

    def step() -> Tensor:
        loss = functional.cross_entropy(model(laws)[:, :-1].flatten(0, 1), laws[:, 1:].flatten())
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        if next(numbers) % LOG_EVERY == LOG_EVERY - 1:
            losses.append(loss.item())
        return loss.detach()

    return step
