"""Two programs that leave little to gain: an embedding job and a forecaster in training."""

from __future__ import annotations

from typing import Any

import torch
from benchmarks.faults.models import DEVICE, HALF, adamw, pinned, sized
from benchmarks.faults.registry import Step, healthy
from torch import Tensor, nn
from torch.nn import functional


@healthy(
    "A wide Llama of transformers embeds documents of one length in bf16 under inference_mode: large "
    "batches, pinned memory both ways, copies that do not block, the vectors collected at the end."
)
def twentyseventh_archive_indexer() -> Step:
    """The documents of an archive are embedded for search."""
    from transformers import LlamaConfig, LlamaModel

    rows, length, width = sized(16, 2), sized(1024, 16), sized(4096, 64)
    vocabulary = sized(32_000, 128)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=sized(11_008, 128),
        num_hidden_layers=sized(5, 1),
        num_attention_heads=sized(32, 2),
        num_key_value_heads=sized(8, 1),
        max_position_embeddings=4096,
        use_cache=False,
        attn_implementation="sdpa",
    )
    with torch.device(DEVICE):
        model = LlamaModel(config)
    model = model.to(DEVICE, HALF).eval()
    documents = [pinned(torch.randint(0, vocabulary, (rows, length))) for _ in range(4)]
    vectors = pinned(torch.empty(len(documents) * rows, width, dtype=HALF))
    turn = 0

    @torch.inference_mode()
    def step() -> None:
        nonlocal turn
        place = turn % len(documents)
        turn += 1
        ids = documents[place].to(DEVICE, non_blocking=True)
        last = model(input_ids=ids).last_hidden_state[:, -1]
        found = functional.normalize(last.float(), dim=-1).to(HALF)
        vectors[place * rows : (place + 1) * rows].copy_(found, non_blocking=True)

    return step


class LevelLayer(nn.Module):
    """Attention among the patches of a curve, then a feed-forward part."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(1, width // 64)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """The same shape."""
        rows, patches, width = x.shape
        parts = self.qkv(self.norms[0](x)).view(rows, patches, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)
        mixed = functional.scaled_dot_product_attention(query, key, value)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, patches, width))
        return x + self.down(functional.gelu(self.up(self.norms[1](x))))


class LevelForecaster(nn.Module):
    """Cuts a curve into patches and says how it goes on."""

    def __init__(self, context: int, ahead: int, width: int, layers: int) -> None:
        super().__init__()
        self.patch = 16
        self.inside = nn.Linear(self.patch, width)
        self.places = nn.Parameter(torch.zeros(1, context // self.patch, width))
        self.layers = nn.ModuleList(LevelLayer(width) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, ahead)

    def forward(self, past: Tensor) -> Tensor:
        """The levels that follow."""
        x = self.inside(past.unflatten(1, (-1, self.patch))) + self.places
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x).mean(1))


@healthy(
    "A patch transformer in bf16 whose layers are compiled one by one: the series lie on the device, windows "
    "are gathered there, AdamW is fused and the loss is read every 100 steps."
)
def twentyseventh_reservoir_levels() -> Step:
    """The water levels of reservoirs are forecast."""
    context, ahead, rows = sized(1024, 64), sized(96, 8), sized(1024, 4)
    stations, hours = sized(64, 2), sized(40_000, 400)
    with torch.device(DEVICE):
        model: Any = LevelForecaster(context, ahead, sized(768, 64), sized(6, 1)).to(HALF)
    if DEVICE == "cuda":
        for layer in model.layers:
            layer.compile()
    optimizer = adamw(model, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100_000)
    levels = torch.randn(stations * hours, device=DEVICE).to(HALF)
    window = torch.arange(context + ahead, device=DEVICE)
    running = torch.zeros((), device=DEVICE)
    shown: list[float] = []
    turn = 0

    def step() -> None:
        nonlocal turn
        station = torch.randint(0, stations, (rows, 1), device=DEVICE)
        start = torch.randint(0, hours - context - ahead, (rows, 1), device=DEVICE)
        curves = levels[station * hours + start + window]
        loss = functional.mse_loss(model(curves[:, :context]), curves[:, context:])
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        running.lerp_(loss.detach().float(), 0.02)
        turn += 1
        if turn % 100 == 0:
            shown.append(running.item())

    return step
