"""Programs that are well tuned as they are: a language model that learns and a painter of tiles."""

from __future__ import annotations

from typing import Any

import torch
from benchmarks.faults.library_models import noise, tokens
from benchmarks.faults.models import DEVICE, HALF, adamw, sized
from benchmarks.faults.registry import Step, healthy
from torch import Tensor, nn
from torch.nn import functional

BACKEND = "inductor" if DEVICE == "cuda" else "eager"


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions."""
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat([-right, left], -1) * sin


class ProverbLayer(nn.Module):
    """A decoder layer with rotary positions and a gated part."""

    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.heads = heads
        self.before = nn.RMSNorm(width)
        self.between = nn.RMSNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate_up = nn.Linear(width, 2 * inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Attention, then the gated part."""
        rows, length, width = x.shape
        parts = self.qkv(self.before(x)).view(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        query, key = turned(parts[0], cos, sin), turned(parts[1], cos, sin)
        mixed = functional.scaled_dot_product_attention(query, key, parts[2], is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, width))
        gate, up = self.gate_up(self.between(x)).chunk(2, -1)
        return x + self.down(functional.silu(gate) * up)


class ProverbModel(nn.Module):
    """A language model that returns its loss."""

    cos: Tensor
    sin: Tensor

    def __init__(self, layers: int, width: int, heads: int, words: int, length: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.layers = nn.ModuleList(ProverbLayer(width, heads, 3 * width) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        size = width // heads
        angles = torch.arange(length)[:, None] / 10_000 ** (torch.arange(0, size, 2) / size)
        both = torch.cat([angles, angles], -1)
        self.register_buffer("cos", both.cos(), persistent=False)
        self.register_buffer("sin", both.sin(), persistent=False)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        """How badly the next words are told."""
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        scores = self.head(self.norm(x))
        return functional.cross_entropy(scores.flatten(0, 1).float(), labels.flatten())


@healthy("A compiled language model is trained in bf16 with a fused optimizer and a loss kept on the device.")
def twentysixth_proverb_pretraining() -> Step:
    """A language model is pretrained on proverbs and fables."""
    words, length, width = sized(32_768, 128), sized(2048, 16), sized(2048, 64)
    with torch.device(DEVICE):
        plain = ProverbModel(sized(8, 1), width, max(1, width // 128), words, length).to(HALF)
    model: Any = torch.compile(plain, backend=BACKEND)
    optimizer = adamw(plain, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 200_000)
    ids = tokens(words, sized(8, 2), length + 1)
    given, wanted = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
    running = torch.zeros((), device=DEVICE)

    def step() -> None:
        loss = model(given, wanted)
        loss.backward()
        nn.utils.clip_grad_norm_(plain.parameters(), 1.0, foreach=True)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        running.lerp_(loss.detach(), 0.02)

    return step


class TileLayer(nn.Module):
    """A layer of a diffusion transformer, steered by the time and the motif."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width, elementwise_affine=False) for _ in range(2))
        self.steer = nn.Linear(width, 6 * width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor, told: Tensor) -> Tensor:
        """Attention between all patches, then two linear layers."""
        rows, length, width = x.shape
        shift, scale, gate, shift_2, scale_2, gate_2 = self.steer(told)[:, None].chunk(6, -1)
        y = self.norms[0](x) * (1 + scale) + shift
        parts = self.qkv(y).view(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(parts[0], parts[1], parts[2])
        x = x + gate * self.out(mixed.transpose(1, 2).reshape(rows, length, width))
        y = self.norms[1](x) * (1 + scale_2) + shift_2
        return x + gate_2 * self.down(functional.gelu(self.up(y), approximate="tanh"))


class TilePainter(nn.Module):
    """Says in which direction noise should be moved."""

    place: nn.Parameter

    def __init__(self, layers: int, width: int, patches: int, channels: int, motifs: int) -> None:
        super().__init__()
        self.first = nn.Linear(channels, width)
        self.place = nn.Parameter(torch.randn(1, patches, width) * 0.02)
        self.time = nn.Sequential(nn.Linear(1, width), nn.SiLU(), nn.Linear(width, width))
        self.motif = nn.Embedding(motifs + 1, width)
        self.layers = nn.ModuleList(TileLayer(width, max(1, width // 64)) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.last = nn.Linear(width, channels)

    def forward(self, latents: Tensor, time: Tensor, motif: Tensor) -> Tensor:
        """A direction for every patch, guided away from no motif."""
        told = functional.silu(self.time(time) + self.motif(motif))
        x = self.first(latents.repeat(2, 1, 1)) + self.place
        for layer in self.layers:
            x = layer(x, told)
        wanted, free = self.last(self.norm(x)).chunk(2)
        return latents + 0.25 * (free + 4.0 * (wanted - free))


@healthy(
    "A compiled diffusion transformer samples in bf16, guided and free at once, with times on the device."
)
def twentysixth_tile_studio() -> Step:
    """Motifs for ceramic tiles are painted."""
    rows, patches, channels, motifs = sized(16, 2), sized(1024, 16), 16, sized(500, 5)
    with torch.device(DEVICE):
        plain = TilePainter(sized(12, 1), sized(1536, 64), patches, channels, motifs).to(HALF).eval()
    model: Any = torch.compile(plain, backend=BACKEND)
    start = noise(rows, patches, channels)
    times = torch.linspace(1, 0, 5, device=DEVICE, dtype=HALF)[:-1].view(-1, 1, 1).repeat(1, 2 * rows, 1)
    motif = torch.cat([tokens(motifs, rows), torch.full((rows,), motifs, device=DEVICE)])

    @torch.inference_mode()
    def step() -> Tensor:
        latents = start
        for time in times.unbind(0):
            latents = model(latents, time, motif)
        return latents

    return step
