"""Programs that no rule was tuned to: kernels that are slower, or more, than they need be."""

from __future__ import annotations

import math
from typing import Any

import torch
from benchmarks.faults.models import DEVICE, HALF, adamw, sized
from benchmarks.faults.registry import Step, pair
from benchmarks.faults.unseen_models import (
    Encoding,
    Heads,
    labels,
    mixers,
    noise,
    patches,
    tower,
    training,
    vit,
)
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint_sequential


@pair(
    "per-tensor-optimizer",
    "A vision transformer is updated by a loop over its parameters: momentum and step written out.",
    "SGD(momentum=0.9, fused=True).",
)
def unseen_manual_sgd(faulty: bool) -> Step:
    """Hundreds of short kernels, and no optimizer that a profiler would name."""
    model = vit(6, 384)
    pictures, classes = patches(32, 196)
    weights = list(model.parameters())
    momenta = [torch.zeros_like(weight) for weight in weights]
    optimizer = torch.optim.SGD(weights, lr=1e-4, momentum=0.9, fused=True)

    def update() -> None:
        with torch.no_grad():
            for weight, momentum in zip(weights, momenta, strict=True):
                momentum.mul_(0.9).add_(weight.grad)
                weight.sub_(1e-4 * momentum)

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(pictures), classes).backward()
        update() if faulty else optimizer.step()

    return step


@pair(
    "per-tensor-optimizer",
    "A student of self-distillation drags its teacher along: a moving mean, tensor by tensor.",
    "torch._foreach_lerp_ takes all tensors at once.",
)
def unseen_teacher_mean(faulty: bool) -> Step:
    """Two short kernels for each weight, after the optimizer."""
    student, teacher = vit(8, 256), vit(8, 256).eval()
    optimizer = adamw(student)
    pictures, _ = patches(16, 64)
    pairs = list(zip(teacher.parameters(), student.parameters(), strict=True))

    @torch.no_grad()
    def follow() -> None:
        if not faulty:
            torch._foreach_lerp_(*(list(weights) for weights in zip(*pairs, strict=True)), 0.004)
            return
        for mean, weight in pairs:
            mean.data.mul_(0.996).add_(0.004 * weight.data)

    def step() -> None:
        with torch.no_grad():
            wanted = teacher(pictures).softmax(-1)
        optimizer.zero_grad()
        functional.cross_entropy(student(pictures), wanted).backward()
        optimizer.step()
        follow()

    return step


class Denoiser(nn.Module):
    """A small U-Net with attention at its bottom."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.Conv2d(width, 2 * width, 4, 2, 1)
        self.middle = nn.ModuleList(nn.Conv2d(2 * width, 2 * width, 3, padding=1) for _ in range(3))
        self.attention = Heads(2 * width, 32)
        self.up = nn.ConvTranspose2d(2 * width, width, 4, 2, 1)
        self.last = nn.Conv2d(2 * width, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """An image of the same size."""
        first = functional.silu(self.first(x))
        x = functional.silu(self.down(first))
        for layer in self.middle:
            x = x + functional.silu(layer(x))
        x = x + self.attention(x.flatten(2).transpose(1, 2)).transpose(1, 2).view_as(x)
        return self.last(torch.cat([functional.silu(self.up(x)), first], 1))


@pair(
    "full-precision-matmuls",
    "A diffusion U-Net is trained in fp32 with torch.backends.cudnn.allow_tf32 = False, left from a test.",
    "bf16 autocast.",
)
def unseen_denoiser_fp32(faulty: bool) -> Step:
    """Convolutions that no tensor core takes part in."""
    torch.backends.cudnn.allow_tf32 = not faulty
    model = Denoiser(sized(96, 32)).to(DEVICE, memory_format=torch.channels_last)
    optimizer = adamw(model)
    shape = sized(24, 2), 3, sized(64, 8), sized(64, 8)
    pictures, added = (noise(*shape, dtype=torch.float32) for _ in range(2))

    def loss_of() -> Tensor:
        with torch.autocast(DEVICE, torch.bfloat16, enabled=not faulty):
            guess = model(pictures.add(added).contiguous(memory_format=torch.channels_last))
        return functional.mse_loss(guess.float(), added)

    return training(loss_of, optimizer)


@pair(
    "dtype-conversions",
    "Means and deviations from a table are float64, and make the preparation of all sounds float64.",
    "They are float32.",
)
def unseen_double_sounds(faulty: bool) -> Step:
    """Twice the bytes, and slow logarithms."""
    rows, frames = sized(128, 2), sized(2000, 10)
    sounds = noise(rows, frames * 160, dtype=torch.float32)
    kind = torch.float64 if faulty else torch.float32
    mean, deviation = (torch.tensor([[value]] * rows, dtype=kind, device=DEVICE) for value in (0.1, 1.3))
    model = tower(160, sized(512, 16), sized(512, 16), sized(512, 16), 32)
    optimizer = adamw(model)

    def prepared() -> Tensor:
        x = (sounds - mean) / deviation
        x = x.sign() * torch.log1p(255 * x.abs()) / math.log(256)
        x = x - 0.97 * x.roll(1, -1)
        return x.to(HALF).view(rows, frames, 160)

    return training(lambda: model(prepared()).square().mean(), optimizer)


@pair(
    "tf32-matmuls",
    "A wide autoencoder is trained in fp32 with allow_tf32 = True.",
    "bf16 autocast.",
)
def unseen_autoencoder_tf32(faulty: bool) -> Step:
    """Products at half the rate that bf16 would have."""
    torch.backends.cuda.matmul.allow_tf32 = True
    width = sized(4096, 32)
    model = tower(width, width, width // 2, width, width, dtype=torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5, fused=True)
    batch = noise(sized(8192, 8), width, dtype=torch.float32)

    def loss_of() -> Tensor:
        with torch.autocast(DEVICE, torch.bfloat16, enabled=not faulty):
            return functional.mse_loss(model(batch), batch)

    return training(loss_of, optimizer)


class Weighted(nn.Module):
    """torch's own attention, asked for its weights or not."""

    def __init__(self, width: int, *, weights: bool) -> None:
        super().__init__()
        self.weights = weights
        self.inside = nn.MultiheadAttention(width, width // 64, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """Mixes the tokens."""
        return self.inside(x, x, x, need_weights=self.weights)[0]


@pair(
    "unfused-attention",
    "A vision transformer uses nn.MultiheadAttention, which returns its weights unless told otherwise.",
    "need_weights=False.",
)
def unseen_attention_weights(faulty: bool) -> Step:
    """Weights of all pairs of patches that nobody looks at."""
    model = vit(2, 768, attention=lambda width: Weighted(width, weights=faulty))
    pictures, classes = patches(32, 577)
    return training(lambda: functional.cross_entropy(model(pictures), classes), adamw(model))


class Biased(Heads):
    """Attention with a bias that grows with the distance (ALiBi)."""

    def __init__(self, width: int, length: int, *, by_hand: bool) -> None:
        super().__init__(width)
        self.by_hand = by_hand
        places = torch.arange(length)
        apart = (places[None] - places[:, None]).float()
        slopes = 2.0 ** -torch.arange(1, width // 64 + 1)
        bias = (apart * slopes[:, None, None]).masked_fill(apart > 0, -math.inf)
        self.register_buffer("bias", bias[None])

    def forward(self, x: Tensor, *_: Any, **__: Any) -> Tensor:
        """Mixes every position with those before it."""
        keys, values = self.pair(x).chunk(2, -1)
        query, key, value = self.split(self.query(x)), self.split(keys), self.split(values)
        if self.by_hand:
            scores = torch.matmul(query, key.transpose(-1, -2)) * self.size**-0.5 + self.bias
            weights = torch.exp(scores - scores.amax(-1, keepdim=True))
            mixed = torch.matmul(weights / weights.sum(-1, keepdim=True), value)
        else:
            mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=self.bias)
        return self.out(mixed.transpose(1, 2).flatten(2))


@pair(
    "unfused-attention",
    "A model of text adds its distance bias to the scores by hand, and writes the softmax out.",
    "scaled_dot_product_attention(attn_mask=bias).",
)
def unseen_alibi(faulty: bool) -> Step:
    """The scores of all pairs go through memory eight times."""
    length, width = sized(1024, 16), sized(768, 64)
    layers = [Encoding(width, Biased(width, length, by_hand=faulty)) for _ in range(2)]
    model = nn.Sequential(*layers).to(DEVICE, HALF)
    texts = noise(sized(8, 2), length, width)
    return training(lambda: model(texts).square().mean(), adamw(model))


@pair(
    "unfused-loss",
    "A student learns a teacher's chances of 32000 words: softmax and divergence in fp32, line by line.",
    "The same function is compiled.",
)
def unseen_distilled_words(faulty: bool) -> Step:
    """Two sets of logits, each through memory many times."""
    rows, width, count = sized(4096, 8), sized(512, 16), sized(32_000, 64)
    student, teacher = tower(width, width, count), tower(width, width, count).eval()
    batch = noise(rows, width)

    def loss_of(guess: Tensor, answer: Tensor) -> Tensor:
        known = (answer.float() / 2).log_softmax(-1)
        told = (guess.float() / 2).log_softmax(-1)
        return functional.kl_div(told, known, reduction="batchmean", log_target=True) * 4

    run = loss_of if faulty else torch.compile(loss_of)

    def whole() -> Tensor:
        with torch.no_grad():
            answer = teacher(batch)
        return run(student(batch), answer)

    return training(whole, adamw(student))


class WrittenNorm(nn.Module):
    """A layer norm, written out."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        """Each token with mean 0 and deviation 1, then scaled."""
        centred = x - x.mean(-1, keepdim=True)
        deviation = torch.sqrt((centred**2).mean(-1, keepdim=True) + 1e-5)
        return self.weight * (centred / deviation) + self.bias


def written_gelu(x: Tensor) -> Tensor:
    """The activation as papers give it."""
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


@pair(
    "elementwise-chains",
    "A vision transformer has its layer norm and its GELU written out, operation by operation.",
    "nn.LayerNorm and functional.gelu.",
)
def unseen_written_norms(faulty: bool) -> Step:
    """Some twenty passes over the activations of each layer."""
    parts: dict[str, Any] = {"norm": WrittenNorm, "act": written_gelu} if faulty else {}
    model = vit(4, 512, **parts)
    pictures, classes = patches(96, 196)
    return training(lambda: functional.cross_entropy(model(pictures), classes), adamw(model))


@pair(
    "layout-conversions",
    "A network that enlarges pictures is served in bf16 with its channels first.",
    "channels_last.",
)
def unseen_enlarging(faulty: bool) -> Step:
    """Every convolution turns its pictures there and back."""
    width, side = sized(64, 8), sized(128, 8)
    parts: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1)]
    for _ in range(sized(8, 2)):
        parts += [nn.Conv2d(width, width, 3, padding=1), nn.ReLU()]
    layout = torch.contiguous_format if faulty else torch.channels_last
    model = nn.Sequential(*parts, nn.Conv2d(width, 12, 3, padding=1), nn.PixelShuffle(2))
    model = model.to(DEVICE, HALF, memory_format=layout).eval()
    pictures = noise(sized(32, 2), 3, side, side).contiguous(memory_format=layout)

    def step() -> None:
        with torch.no_grad():
            model(pictures)

    return step


@pair(
    "scatter-heavy",
    "A radiance field looks its points up in a hash grid, level by level and corner by corner.",
    "One index_select takes all levels and corners.",
)
def unseen_hash_grid(faulty: bool) -> Step:
    """Dozens of look-ups, whose backward sorts and adds up each on its own."""
    levels, corners, entries, points = sized(6, 2), 8, sized(1 << 15, 64), sized(32_768, 16)
    table = noise(levels, entries, 2, dtype=torch.float32).requires_grad_()
    places, shares = (
        labels(entries, levels, corners, points),
        torch.rand(levels, corners, points, device=DEVICE),
    )
    model = tower(2 * levels, 64, 4, dtype=torch.float32)
    optimizer = torch.optim.SGD([table, *model.parameters()], lr=1e-3, fused=True)
    offsets = entries * torch.arange(levels, device=DEVICE)[:, None, None]
    flat = (places + offsets).flatten()

    def features() -> Tensor:
        if not faulty:
            found = table.flatten(0, 1).index_select(0, flat).view(levels, corners, points, 2)
            return torch.cat(list((found * shares[..., None]).sum(1)), 1)
        found = []
        for level in range(levels):
            mixed = torch.zeros(points, 2, device=DEVICE)
            for corner in range(corners):
                mixed = mixed + table[level][places[level, corner]] * shares[level, corner, :, None]
            found.append(mixed)
        return torch.cat(found, 1)

    return training(lambda: model(features()).square().mean(), optimizer)


@pair(
    "recomputation",
    "A mixer that fits many times into memory is trained by checkpoint_sequential, layer by layer.",
    "Its layers are called as they are.",
)
def unseen_checkpointed_mixer(faulty: bool) -> Step:
    """Reentrant checkpoints: backward runs forward again."""
    model = mixers(6, 256, 1024)
    first = nn.Linear(sized(256, 16), sized(1024, 32)).to(DEVICE, HALF)
    optimizer = torch.optim.AdamW([*first.parameters(), *model.parameters()], fused=True)
    batch = noise(sized(64, 2), sized(256, 8), first.in_features)

    def loss_of() -> Tensor:
        x = first(batch)
        x = checkpoint_sequential(model, len(model), x, use_reentrant=True) if faulty else model(x)
        return x.square().mean()

    return training(loss_of, optimizer)
