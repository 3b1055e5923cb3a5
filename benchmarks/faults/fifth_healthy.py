"""Programs that are as they should be."""

from __future__ import annotations

from typing import Any

import torch
from benchmarks.faults.models import DEVICE, HALF, adamw, gpt, graphed, pinned, sized
from benchmarks.faults.registry import Step, healthy
from torch import Tensor, nn
from torch.nn import functional


@healthy("A language model is pretrained: bf16, compiled, fused AdamW, batches copied ahead.")
def fifth_pretraining() -> Step:
    """The device multiplies matrices nearly all the time, and nothing waits for it."""
    vocabulary = sized(16_384, 1024)
    model: Any = gpt(12, 1024, words=vocabulary)
    optimizer = adamw(model)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1_000_000)

    def loss_of(ids: Tensor) -> Tensor:
        logits = model(ids[:, :-1])
        return functional.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())

    compiled = torch.compile(loss_of)
    corpus = pinned(torch.randint(0, vocabulary, (8, sized(24, 2), sized(1024, 16) + 1)))
    ahead = [corpus[0].to(DEVICE, non_blocking=True)]
    average = torch.zeros((), device=DEVICE)
    turn = iter(range(1_000_000_000))

    def train_step() -> None:
        ids = ahead.pop()
        number = next(turn)
        ahead.append(corpus[(number + 1) % len(corpus)].to(DEVICE, non_blocking=True))
        loss = compiled(ids)
        loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)
        average.lerp_(loss.detach(), 0.02)
        if number % 500 == 499:
            print(f"loss {average.item():.3f}")

    return train_step


@healthy("Photos are embedded by a compiled ViT of timm in bf16; bytes come and vectors go by pinned memory.")
def fifth_photo_embedder() -> Step:
    """Copies run beside the kernels, in a stream of their own."""
    import timm

    name = "vit_base_patch16_224" if DEVICE == "cuda" else "vit_tiny_patch16_224"
    model = timm.create_model(name, num_classes=0).to(DEVICE, HALF).eval()
    rows = sized(384, 2)
    photos = pinned(torch.randint(0, 256, (3, rows, 3, 224, 224), dtype=torch.uint8))
    vectors = pinned(torch.empty(rows, model.num_features, dtype=HALF))
    mean = torch.tensor([0.5, 0.5, 0.5], device=DEVICE).view(3, 1, 1)

    def embed(batch: Tensor) -> Tensor:
        prepared = ((batch.float() / 255.0 - mean) / 0.5).to(HALF)
        return functional.normalize(model(prepared), dim=-1)

    compiled = torch.compile(embed)
    side = torch.cuda.Stream() if DEVICE == "cuda" else None
    turn = iter(range(1_000_000_000))

    def fetch() -> Tensor:
        with torch.cuda.stream(side):
            return photos[next(turn) % len(photos)].to(DEVICE, non_blocking=True)

    ahead = [fetch()]

    @torch.inference_mode()
    def embed_batch() -> None:
        if side is not None:
            torch.cuda.current_stream().wait_stream(side)
        batch = ahead.pop()
        if side is not None:
            batch.record_stream(torch.cuda.current_stream())
        ahead.append(fetch())
        vectors.copy_(compiled(batch), non_blocking=True)

    return embed_batch


class DecoderLayer(nn.Module):
    """A layer of a decoder with room for all keys and values from the start."""

    keys: Tensor
    values: Tensor

    def __init__(self, width: int, heads: int, rows: int, longest: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)
        self.register_buffer("keys", torch.zeros(rows, heads, longest, width // heads))
        self.register_buffer("values", torch.zeros(rows, heads, longest, width // heads))

    def forward(self, x: Tensor, place: Tensor, seen: Tensor) -> Tensor:
        """One position more, for every row."""
        rows, _, width = x.shape
        parts = self.qkv(self.norms[0](x)).view(rows, 1, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        self.keys[:, :, place] = parts[1]
        self.values[:, :, place] = parts[2]
        mixed = functional.scaled_dot_product_attention(parts[0], self.keys, self.values, attn_mask=seen)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, 1, width))
        return x + self.down(functional.silu(self.up(self.norms[1](x))))


class Decoder(nn.Module):
    """A language model that writes, one word a call."""

    def __init__(self, words: int, width: int, layers: int, rows: int, longest: int) -> None:
        super().__init__()
        heads = max(1, width // 128)
        self.embedding = nn.Embedding(words, width)
        self.layers = nn.ModuleList(DecoderLayer(width, heads, rows, longest) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        self.longest = longest

    def forward(self, ids: Tensor, place: Tensor) -> Tensor:
        """The likeliest next word of every row."""
        seen = (torch.arange(self.longest, device=ids.device) <= place).view(1, 1, 1, -1)
        x = self.embedding(ids)
        for layer in self.layers:
            x = layer(x, place, seen)
        return self.head(self.norm(x)).argmax(-1)


@healthy("A decoder writes greedily with a static cache, compiled and replayed as a CUDA graph.")
def fifth_writer_replay() -> Step:
    """The device reads weights all the time; the host starts one graph a word."""
    rows, longest = sized(16, 2), sized(512, 16)
    with torch.device(DEVICE), torch.no_grad():
        model = Decoder(sized(32_000, 128), sized(4096, 128), sized(8, 1), rows, longest).to(HALF).eval()
        ids = torch.zeros(rows, 1, dtype=torch.long)
        place = torch.zeros(1, dtype=torch.long)
    model.requires_grad_(False)
    advance: Any = torch.compile(model)

    def word() -> None:
        ids.copy_(advance(ids, place))
        place.add_(1).remainder_(longest)

    for _ in range(3):
        word()
    replay = graphed(word)

    def write() -> None:
        for _ in range(sized(24, 2)):
            replay()

    return write
