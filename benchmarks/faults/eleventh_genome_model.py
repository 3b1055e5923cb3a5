"""A language model of genomes, over long stretches."""

from __future__ import annotations

import torch
from benchmarks.faults.library_models import tokens
from benchmarks.faults.models import DEVICE, HALF, adamw, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional

LETTERS = 64


class Mixer(nn.Module):
    """Attention to what came before."""

    def __init__(self, width: int, length: int, *, masked: bool) -> None:
        super().__init__()
        self.heads = max(1, width // 64)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.mask: Tensor | None
        self.register_buffer(
            "mask", torch.ones(length, length, dtype=torch.bool).tril() if masked else None, persistent=False
        )

    def forward(self, x: Tensor) -> Tensor:
        """As many positions as came in."""
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1)
        )
        mixed = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=self.mask, is_causal=self.mask is None
        )
        return self.out(mixed.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """Attention and two linear layers."""

    def __init__(self, width: int, length: int, *, masked: bool) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.mixer = Mixer(width, length, masked=masked)
        self.inner = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Adds to what came in."""
        x = x + self.mixer(self.norms[0](x))
        return x + self.inner(self.norms[1](x))


@pair(
    "causal-mask-as-a-tensor",
    "scaled_dot_product_attention() is given the causal mask as a tensor: no flash kernel, and the masked"
    " half is computed, too.",
    "is_causal=True.",
)
def eleventh_genome_model(faulty: bool) -> Step:
    """Letters of a genome are told from those before them."""
    width, length = sized(1024, 64), sized(4096, 16)
    model = nn.Sequential(
        nn.Embedding(LETTERS, width),
        *[Layer(width, length, masked=faulty) for _ in range(sized(6, 1))],
        nn.RMSNorm(width),
        nn.Linear(width, LETTERS),
    ).to(DEVICE, HALF)
    optimizer = adamw(model)
    letters = tokens(LETTERS, sized(4, 2), length + 1)
    seen, wanted = letters[:, :-1], letters[:, 1:]

    def step() -> None:
        loss = functional.cross_entropy(model(seen).flatten(0, 1), wanted.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step
