"""Programs with nothing to mend, or with a pattern that looks bad and costs next to nothing."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from benchmarks.faults.library_models import autocast, noise
from benchmarks.faults.models import DEVICE, HALF, adamw, on_images, pinned, sized
from benchmarks.faults.registry import Step, healthy, pair
from torch import Tensor, nn
from torch.nn import functional

LOG_EVERY = 50


class Eyes(nn.Module):
    """A vision transformer that makes a vector of a picture, on which two views of it should agree."""

    def __init__(self, layers: int, width: int, patch: int, places: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.places = nn.Parameter(torch.zeros(1, places, width))
        layer = nn.TransformerEncoderLayer(
            width, max(1, width // 64), 4 * width, dropout=0.0, activation="gelu", batch_first=True,
            norm_first=True,
        )  # fmt: skip
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 256)

    def forward(self, pictures: Tensor) -> Tensor:
        """A vector of length one for each picture."""
        x = self.patches(pictures).flatten(2).transpose(1, 2) + self.places
        return functional.normalize(self.head(self.layers(x).mean(1)), dim=-1)


@pair(
    "two-calls-in-place-of-one",
    "The two views of a picture go through the model in two calls, but each call fills the device: one call"
    " with both does the same work in the same time.",
    "One call of the model with both views.",
    kind="fair",
)
def sixteenth_two_views(faulty: bool) -> Step:
    """A vision transformer learns without labels that two views of a picture are the same (SimCLR)."""
    rows, side, patch = sized(64, 2), sized(224, 32), 16
    with torch.device(DEVICE):
        model = Eyes(sized(8, 1), sized(1024, 64), patch, (side // patch) ** 2).train()
    optimizer = adamw(model)
    views = [noise(rows, 3, side, side, dtype=torch.float32) for _ in range(2)]
    same, numbers = torch.arange(rows, device=DEVICE), itertools.count()
    losses: list[float] = []

    def step() -> Tensor:
        with autocast():
            if faulty:
                left, right = (model(view) for view in views)
            else:
                left, right = model(torch.cat(views)).chunk(2)
            likeness = left @ right.T / 0.1
            loss = functional.cross_entropy(likeness.float(), same)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if next(numbers) % LOG_EVERY == LOG_EVERY - 1:
            losses.append(loss.item())
        return loss.detach()

    return step


def card_painter() -> Any:
    """A painter in the style of Stable Diffusion."""
    from diffusers import UNet2DConditionModel

    model = UNet2DConditionModel(
        sample_size=sized(64, 8),
        in_channels=4,
        out_channels=4,
        layers_per_block=1,
        block_out_channels=(sized(256, 32), sized(512, 32)),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=sized(512, 32),
        attention_head_dim=8,
    )
    return on_images(model, dtype=torch.float32).train()


@pair(
    "words-encoded-in-every-round",
    "The words of the same cards are encoded by a frozen model in every step, but the encoder is so small"
    " beside the painter that keeping its vectors gains next to nothing.",
    "Encode the words of all cards once, before training.",
    kind="fair",
)
def sixteenth_card_painter(faulty: bool) -> Step:
    """A diffusion model learns to paint greeting cards after their words."""
    model, rows = card_painter(), sized(24, 1)
    width = sized(512, 32)
    layer = nn.TransformerEncoderLayer(
        width, max(1, width // 64), 4 * width, dropout=0.0, batch_first=True, norm_first=True
    )
    listener = nn.Sequential(
        nn.Embedding(1000, width), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    )
    listener = listener.to(DEVICE, HALF).eval().requires_grad_(False)
    ids = torch.randint(0, 1000, (rows, sized(32, 8)), device=DEVICE)
    with torch.no_grad():
        kept = listener(ids)
    cards = noise(rows, 4, sized(64, 8), sized(64, 8), dtype=torch.float32)
    optimizer, numbers = adamw(model), itertools.count()
    losses: list[float] = []

    def step() -> Tensor:
        with torch.no_grad():
            heard = listener(ids) if faulty else kept
        added = torch.randn_like(cards)
        moments = torch.randint(0, 1000, (rows,), device=DEVICE)
        share = (torch.pi / 2 * moments / 1000).view(-1, 1, 1, 1)
        with autocast():
            blurred = share.cos() * cards + share.sin() * added
            guess = model(blurred, moments, encoder_hidden_states=heard).sample
        loss = functional.mse_loss(guess.float(), added)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if next(numbers) % LOG_EVERY == LOG_EVERY - 1:
            losses.append(loss.item())
        return loss.detach()

    return step


class Denoiser(nn.Module):
    """A layer of a diffusion transformer: the time scales and shifts what goes in."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = max(1, width // 64)
        self.norms = nn.ModuleList(nn.LayerNorm(width, elementwise_affine=False) for _ in range(2))
        self.time = nn.Linear(width, 6 * width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """Attention, then two linear layers, each added as far as the time tells."""
        rows, length, width = x.shape
        scale, shift, gate, scale2, shift2, gate2 = self.time(time)[:, None].chunk(6, -1)
        parts = self.qkv(self.norms[0](x) * (1 + scale) + shift)
        query, key, value = parts.view(rows, length, 3, self.heads, width // self.heads).permute(
            2, 0, 3, 1, 4
        )
        mixed = functional.scaled_dot_product_attention(query, key, value)
        x = x + gate * self.out(mixed.transpose(1, 2).reshape(rows, length, width))
        y = self.norms[1](x) * (1 + scale2) + shift2
        return x + gate2 * self.down(functional.gelu(self.up(y), approximate="tanh"))


class Dreamer(nn.Module):
    """A diffusion transformer on latents that were made before."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(16, width), nn.Linear(width, 16)
        self.hours = nn.Linear(1, width)
        self.layers = nn.ModuleList(Denoiser(width) for _ in range(layers))

    def forward(self, latents: Tensor, time: Tensor) -> Tensor:
        """The direction from noise to picture."""
        x, hour = self.enter(latents), functional.silu(self.hours(time[:, None]))
        for layer in self.layers:
            x = layer(x, hour)
        return self.leave(x)


@healthy(
    "A diffusion transformer learns from latents kept in pinned memory, compiled and in mixed precision."
)
def sixteenth_dream_painter() -> Step:
    """Flow matching on latents, which were made before training."""
    rows = sized(32, 2)
    with torch.device(DEVICE):
        model = Dreamer(sized(6, 1), sized(1024, 64)).train()
    run = torch.compile(model) if DEVICE == "cuda" else model
    optimizer = adamw(model)
    latents = [pinned(torch.randn(rows, sized(512, 16), 16)) for _ in range(8)]
    ahead, numbers = itertools.cycle(latents), itertools.count()
    losses: list[Tensor] = []

    def step() -> Tensor:
        picture = next(ahead).to(DEVICE, non_blocking=True)
        added, time = torch.randn_like(picture), torch.rand(rows, device=DEVICE)
        share = time[:, None, None]
        with autocast():
            guess = run(torch.lerp(added, picture, share), time)
        loss = functional.mse_loss(guess.float(), picture - added)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if next(numbers) % LOG_EVERY == LOG_EVERY - 1:
            losses.append(loss.detach())
        return loss.detach()

    return step


@healthy("A vision transformer of timm sorts photos from pinned memory in bf16, compiled, in large batches.")
def sixteenth_photo_index() -> Step:
    """Photos come as bytes, are copied while the device computes, and are normalised there."""
    import timm

    options: dict[str, Any] = {} if DEVICE == "cuda" else {"depth": 1, "embed_dim": 64, "num_heads": 1}
    rows, side = sized(256, 2), sized(224, 32)
    model: Any = timm.create_model("vit_base_patch16_224", num_classes=1000, img_size=side, **options)
    model = model.to(DEVICE, HALF).eval()
    run = torch.compile(model) if DEVICE == "cuda" else model
    photos = [pinned(torch.randint(0, 256, (rows, 3, side, side), dtype=torch.uint8)) for _ in range(4)]
    ahead = itertools.cycle(photos)
    copies = torch.cuda.Stream() if DEVICE == "cuda" else None
    waiting = [next(ahead).to(DEVICE)]

    @torch.inference_mode()
    def step() -> Tensor:
        now = waiting.pop()
        if copies is None:
            waiting.append(next(ahead).to(DEVICE))
        else:
            torch.cuda.current_stream().wait_stream(copies)
            now.record_stream(torch.cuda.current_stream())
            with torch.cuda.stream(copies):
                waiting.append(next(ahead).to(DEVICE, non_blocking=True))
        return run((now.to(HALF) - 127.5) / 127.5).topk(5).indices

    return step
