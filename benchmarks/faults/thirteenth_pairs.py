"""Networks that learn without labels: views of a picture, hidden patches, posters and their blurbs."""

from __future__ import annotations

import torch
from benchmarks.faults.library_models import autocast, noise, tokens
from benchmarks.faults.models import DEVICE, adamw, images, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional


@pair(
    "all-pairs-compared-by-broadcasting",
    "Cosines of all pictures with all texts: cosine_similarity(pictures[:, None], texts[None], dim=-1).",
    "Both sides are normalised once; the cosines are one matrix product.",
)
def thirteenth_poster_matcher(faulty: bool) -> Step:
    """Thumbnails of posters and their blurbs learn to find each other."""
    import timm
    from transformers import CLIPTextConfig, CLIPTextModelWithProjection

    rows, length, width = sized(1536, 4), sized(16, 8), sized(512, 32)
    seeing = timm.create_model(
        "vit_small_patch16_224", img_size=sized(64, 32), num_classes=width, depth=sized(12, 1)
    ).to(DEVICE)
    config = CLIPTextConfig(
        vocab_size=sized(16_384, 128),
        hidden_size=sized(384, 32),
        intermediate_size=sized(1536, 64),
        num_hidden_layers=sized(6, 1),
        num_attention_heads=sized(6, 2),
        max_position_embeddings=length,
        projection_dim=width,
        bos_token_id=0,
        eos_token_id=2,
        attn_implementation="sdpa",
    )
    reading = CLIPTextModelWithProjection(config).to(DEVICE)
    sharpness = nn.Parameter(torch.tensor(2.66, device=DEVICE))
    both = nn.ModuleList([seeing, reading])
    both.register_parameter("sharpness", sharpness)
    optimizer = adamw(both, weight_decay=0.1)
    posters = noise(rows, 3, sized(64, 32), sized(64, 32), dtype=torch.float32)
    blurbs = tokens(sized(16_384, 128), rows, length)
    same = torch.arange(rows, device=DEVICE)

    def cosines(pictures: Tensor, texts: Tensor) -> Tensor:
        if faulty:
            return functional.cosine_similarity(pictures[:, None], texts[None], dim=-1)
        return functional.normalize(pictures, dim=-1) @ functional.normalize(texts, dim=-1).T

    def step() -> Tensor:
        with autocast():
            pictures = seeing(posters)
            texts = reading(input_ids=blurbs).text_embeds
        scores = sharpness.exp() * cosines(pictures.float(), texts.float())
        loss = (functional.cross_entropy(scores, same) + functional.cross_entropy(scores.T, same)) / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def two_views(pictures: Tensor) -> Tensor:
    """Two views of each picture, one after the other: flipped, and with other brightness and noise."""
    count = len(pictures)
    light = 0.6 + 0.8 * torch.rand(2 * count, 1, 1, 1, device=pictures.device)
    both = torch.cat([pictures, pictures.flip(-1)])
    return both * light + 0.1 * torch.randn_like(both)


@pair(
    "fp32-training",
    "SimCLR trains a ViT without autocast and with torch's default precision of fp32 products.",
    "torch.autocast to bf16 around the network.",
)
def thirteenth_crop_encoder(faulty: bool) -> Step:
    """A network learns from two views of every field seen from above."""
    import timm

    rows, width = sized(64, 2), 128
    encoder = timm.create_model(
        "vit_small_patch16_224", img_size=sized(224, 32), num_classes=0, depth=sized(12, 1)
    )
    inner = encoder.num_features
    head = nn.Sequential(nn.Linear(inner, 2048), nn.GELU(), nn.Linear(2048, width))
    model = nn.Sequential(encoder, head).to(DEVICE)
    optimizer = adamw(model, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda turn: min(1.0, (turn + 1) / 1000))
    fields = images(64, 224, dtype=torch.float32)
    partner = torch.arange(2 * rows, device=DEVICE).roll(rows)
    itself = torch.eye(2 * rows, dtype=torch.bool, device=DEVICE)

    def step() -> Tensor:
        views = two_views(fields)
        with autocast(enabled=not faulty):
            codes = model(views)
        codes = functional.normalize(codes.float(), dim=-1)
        scores = (codes @ codes.T / 0.2).masked_fill(itself, float("-inf"))
        loss = functional.cross_entropy(scores, partner)
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


class Layer(nn.Module):
    """One layer of an encoder, around torch's own attention module."""

    def __init__(self, width: int, heads: int, *, weights: bool) -> None:
        super().__init__()
        self.weights = weights
        self.before = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.between = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Attention, then two linear layers, each added to what came in."""
        y = self.before(x)
        if self.weights:
            mixed, _ = self.attention(y, y, y)
        else:
            mixed, _ = self.attention(y, y, y, need_weights=False)
        x = x + mixed
        return x + self.mlp(self.between(x))


class MaskedAutoencoder(nn.Module):
    """Sees half of the patches and paints the others."""

    def __init__(self, side: int, patch: int, width: int, *, weights: bool) -> None:
        super().__init__()
        self.patch = patch
        self.count = (side // patch) ** 2
        inner = width // 2
        self.embed = nn.Linear(3 * patch * patch, width)
        self.places = nn.Parameter(0.02 * torch.randn(1, self.count, width))
        self.inner_places = nn.Parameter(0.02 * torch.randn(1, self.count, inner))
        self.hole = nn.Parameter(torch.zeros(1, 1, inner))
        heads = max(1, width // 64)
        self.encoder = nn.Sequential(*(Layer(width, heads, weights=weights) for _ in range(sized(12, 1))))
        self.bridge = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, inner))
        inner_heads = max(1, inner // 64)
        self.decoder = nn.Sequential(
            *(Layer(inner, inner_heads, weights=weights) for _ in range(sized(2, 1)))
        )
        self.paint = nn.Sequential(nn.LayerNorm(inner), nn.Linear(inner, 3 * patch * patch))

    def forward(self, pictures: Tensor) -> Tensor:
        """How badly the hidden patches are painted."""
        patches = functional.unfold(pictures, self.patch, stride=self.patch).transpose(1, 2)
        rows, count = len(patches), self.count
        order = torch.rand(rows, count, device=patches.device).argsort(1)
        back = order.argsort(1)
        seen = order[:, : count // 2, None]
        x = self.embed(patches) + self.places
        x = self.encoder(x.gather(1, seen.expand(-1, -1, x.shape[-1])))
        x = self.bridge(x)
        holes = self.hole.to(x.dtype).expand(rows, count - x.shape[1], -1)
        x = torch.cat([x, holes], 1).gather(1, back[..., None].expand(-1, -1, x.shape[-1]))
        painted = self.paint(self.decoder(x + self.inner_places))
        wrong = (painted.float() - patches.float()).square().mean(-1)
        hidden = (back >= count // 2).to(wrong.dtype)
        return (wrong * hidden).sum() / hidden.sum()


@pair(
    "attention-weights-asked-for-and-dropped",
    "A masked autoencoder calls nn.MultiheadAttention with its default need_weights=True and drops them.",
    "need_weights=False, with which the fused kernel is used.",
)
def thirteenth_galaxy_masker(faulty: bool) -> Step:
    """A network learns galaxies by painting the patches it is not shown."""
    side, patch = sized(256, 32), 8
    model = MaskedAutoencoder(side, patch, sized(384, 64), weights=faulty).to(DEVICE)
    optimizer = adamw(model, weight_decay=0.05, betas=(0.9, 0.95))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda turn: min(1.0, (turn + 1) / 1000))
    pictures = noise(sized(64, 2), 3, side, side, dtype=torch.float32)

    def step() -> Tensor:
        with autocast():
            loss = model(pictures)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        return loss.detach()

    return step
