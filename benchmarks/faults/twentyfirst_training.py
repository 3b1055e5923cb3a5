"""Training scripts for voices, sketches, texts and drawings, as their authors run them every night."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from benchmarks.faults.library_models import autocast, noise, tokens
from benchmarks.faults.models import DEVICE, HALF, ResNet, adamw, images, on_images, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional

# ---------------------------------------------------------------- a vocoder


@dataclass(frozen=True)
class MelScale:
    """One resolution of the mel loss."""

    n_fft: int
    n_mels: int
    rate: int = 22_050
    fmin: float = 0.0
    fmax: float = 11_025.0


MEL_SCALES = (
    MelScale(128, 10),
    MelScale(256, 20),
    MelScale(512, 40),
    MelScale(1024, 80),
    MelScale(2048, 160),
)


def mel_basis(scale: MelScale) -> np.ndarray:
    """Triangular filters of equal area, as librosa.filters.mel makes them."""
    bins = np.linspace(0.0, scale.rate / 2, 1 + scale.n_fft // 2)
    low, high = (2595.0 * np.log10(1.0 + f / 700.0) for f in (scale.fmin, scale.fmax))
    edges = 700.0 * (10.0 ** (np.linspace(low, high, scale.n_mels + 2) / 2595.0) - 1.0)
    widths = np.diff(edges)
    ramps = np.subtract.outer(edges, bins)
    weights = np.zeros((scale.n_mels, bins.size))
    for i in range(scale.n_mels):
        lower = -ramps[i] / widths[i]
        upper = ramps[i + 2] / widths[i + 1]
        weights[i] = np.maximum(0, np.minimum(lower, upper))
    return weights * (2.0 / (edges[2:] - edges[:-2]))[:, None]


class MelSpectrogram:
    """Log mel spectrograms with a cache of filters and windows."""

    def __init__(self, *, by_fmax: bool) -> None:
        self.by_fmax = by_fmax
        self.basis: dict[Any, Tensor] = {}
        self.window: dict[Any, Tensor] = {}

    def __call__(self, wave: Tensor, scale: MelScale) -> Tensor:
        """The spectrogram of a batch of waves."""
        key = f"{scale.n_fft}_{scale.n_mels}_{scale.fmax}_{wave.device}"
        if (scale.fmax if self.by_fmax else key) not in self.basis:
            self.basis[key] = torch.from_numpy(mel_basis(scale)).float().to(wave.device)
            self.window[key] = torch.hann_window(scale.n_fft).to(wave.device)
        spectrum = torch.stft(
            wave, scale.n_fft, scale.n_fft // 4, window=self.window[key], return_complex=True
        )
        power = torch.view_as_real(spectrum).pow(2).sum(-1).add(1e-9).sqrt()
        return torch.log(torch.clamp(self.basis[key] @ power, min=1e-5))


class ResidualStack(nn.Module):
    """Dilated convolutions of one width, each added to what came in."""

    def __init__(self, channels: int, kernel: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            nn.Conv1d(channels, channels, kernel, dilation=d, padding=(kernel - 1) * d // 2) for d in (1, 3)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Keeps the length."""
        for conv in self.convs:
            x = x + conv(functional.leaky_relu(x, 0.1))
        return x


class Vocoder(nn.Module):
    """A generator in the style of HiFi-GAN: 256 samples for every frame."""

    def __init__(self, mels: int, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv1d(mels, channels, 7, padding=3)
        self.ups, self.stacks = nn.ModuleList(), nn.ModuleList()
        for turn, rate in enumerate((8, 8, 4)):
            now = channels >> turn
            self.ups.append(nn.ConvTranspose1d(now, now // 2, 2 * rate, rate, padding=rate // 2))
            self.stacks.append(nn.ModuleList(ResidualStack(now // 2, kernel) for kernel in (3, 7)))
        self.last = nn.Conv1d(channels >> 3, 1, 7, padding=3)

    def forward(self, mel: Tensor) -> Tensor:
        """A batch of waves."""
        x = self.first(mel)
        for up, stacks in zip(self.ups, self.stacks, strict=True):
            x = up(functional.leaky_relu(x, 0.1))
            x = sum(stack(x) for stack in stacks) / len(stacks)
        return torch.tanh(self.last(functional.leaky_relu(x))).squeeze(1)


@pair(
    "constant-rebuilt-on-the-host-every-step",
    "The cache of mel filters is asked for fmax but filled under another key, as in HiFi-GAN's own "
    "meldataset.py: numpy makes the filters anew, and copies them, for every spectrogram.",
    "The cache is asked by the key it is filled under.",
)
def choir_vocoder(faulty: bool) -> Step:
    """A vocoder for singing learns from mel spectrograms at five resolutions."""
    model = Vocoder(80, sized(512, 32)).to(DEVICE)
    optimizer = adamw(model, betas=(0.8, 0.99))
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99999)
    spectrogram = MelSpectrogram(by_fmax=faulty)
    frames = 32
    mel = noise(sized(16, 1), 80, frames, dtype=torch.float32)
    wave = noise(sized(16, 1), frames * 256, dtype=torch.float32).tanh()
    mean_loss = torch.zeros((), device=DEVICE)

    def step() -> None:
        made = model(mel)
        loss = torch.zeros((), device=DEVICE)
        for scale in MEL_SCALES:
            loss = loss + functional.l1_loss(spectrogram(made, scale), spectrogram(wave, scale))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        mean_loss.lerp_(loss.detach(), 0.05)

    return step


# ---------------------------------------------------------------- contrastive pictures


class SimClr(nn.Module):
    """A convnet and a projection, with the loss of the paper."""

    def __init__(self, hidden: int, temperature: float, *, elementwise: bool) -> None:
        super().__init__()
        self.convnet = ResNet(sized(64, 8), 1, 4 * hidden)
        self.projection = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4 * hidden, hidden))
        self.temperature = temperature
        self.elementwise = elementwise

    def similarities(self, feats: Tensor) -> Tensor:
        """The cosine of every pair."""
        if self.elementwise:
            return functional.cosine_similarity(feats[:, None, :], feats[None, :, :], dim=-1)
        unit = functional.normalize(feats.float(), dim=-1)
        with torch.autocast(feats.device.type, enabled=False):
            return unit @ unit.T

    def forward(self, views: Tensor) -> Tensor:
        """InfoNCE: the first half of the batch holds one view of each picture, the second the other."""
        feats = self.projection(self.convnet(views))
        count = feats.shape[0]
        cosines = self.similarities(feats) / self.temperature
        cosines = cosines.masked_fill(torch.eye(count, dtype=torch.bool, device=feats.device), -9e15)
        partner = torch.arange(count, device=feats.device).roll(count // 2)
        return functional.cross_entropy(cosines, partner)


@pair(
    "pairwise-similarity-by-broadcasting",
    "The cosines of all pairs come from cosine_similarity(feats[:, None], feats[None]), which writes out "
    "N x N x D numbers several times.",
    "The features are normalized once and multiplied with their transpose.",
)
def sketch_twins(faulty: bool) -> Step:
    """Sketches are embedded without labels, by SimCLR."""
    model = on_images(SimClr(128, 0.07, elementwise=faulty), dtype=torch.float32)
    optimizer = adamw(model, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100_000)
    views = images(2048, 64, dtype=torch.float32)

    def step() -> None:
        with autocast():
            loss = model(views)
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()

    return step


# ---------------------------------------------------------------- a text classifier


class TopicModel(nn.Module):
    """A pretrained encoder, the mean of its tokens and a small head."""

    def __init__(self, backbone: nn.Module, width: int, topics: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = nn.Sequential(
            nn.Linear(width, width), nn.GELU(), nn.Dropout(0.1), nn.Linear(width, topics)
        )

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Scores of the topics."""
        states = self.backbone(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        weight = attention_mask[..., None].to(states.dtype)
        return self.head((states * weight).sum(1) / weight.sum(1))


@pair(
    "backward-through-a-frozen-backbone",
    "Only the head is handed to the optimizer, but the encoder's weights still ask for gradients: the whole "
    "backward pass through BERT runs for nothing.",
    "backbone.requires_grad_(False): the backward pass ends at the head.",
)
def tender_triage(faulty: bool) -> Step:
    """Public tenders are sorted into topics by a new head on BERT."""
    from accelerate import Accelerator
    from transformers import BertConfig, BertModel

    width, rows, length, topics = sized(768, 64), sized(64, 2), sized(384, 16), 24
    config = BertConfig(
        vocab_size=sized(30_528, 256),
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=sized(12, 1),
        num_attention_heads=width // 64,
    )
    model = TopicModel(BertModel(config, add_pooling_layer=False), width, topics)
    if not faulty:
        model.backbone.requires_grad_(False)
    accelerator = Accelerator(mixed_precision="bf16" if DEVICE == "cuda" else "no", cpu=DEVICE == "cpu")
    optimizer = torch.optim.AdamW(model.head.parameters(), lr=1e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda turn: min(1.0, (turn + 1) / 200))
    model, optimizer, schedule = accelerator.prepare(model, optimizer, schedule)
    model.train()
    ids, topic = tokens(config.vocab_size, rows, length), tokens(topics, rows)
    mask = torch.ones_like(ids)

    def step() -> None:
        loss = functional.cross_entropy(model(ids, mask), topic)
        accelerator.backward(loss)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()

    return step


# ---------------------------------------------------------------- diffusion


class DiffusionBlock(nn.Module):
    """A layer that looks at the picture and at the words, moved by the time."""

    def __init__(self, width: int, heads: int, text: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width, elementwise_affine=False) for _ in range(3))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.query, self.pair = nn.Linear(width, width), nn.Linear(text, 2 * width)
        self.back = nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.shift = nn.Linear(width, 2 * width)

    def split(self, x: Tensor) -> Tensor:
        """Heads before positions."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, x: Tensor, words: Tensor, time: Tensor) -> Tensor:
        """Keeps the size."""
        scale, shift = self.shift(time)[:, None].chunk(2, -1)
        query, key, value = self.qkv(self.norms[0](x) * (1 + scale) + shift).chunk(3, -1)
        mixed = functional.scaled_dot_product_attention(self.split(query), self.split(key), self.split(value))
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        key, value = self.pair(words).chunk(2, -1)
        query = self.split(self.query(self.norms[1](x)))
        mixed = functional.scaled_dot_product_attention(query, self.split(key), self.split(value))
        x = x + self.back(mixed.transpose(1, 2).flatten(2))
        return x + self.feed(self.norms[2](x))


@pair(
    "frozen-encoder-run-every-step",
    "All pictures share one instance prompt, and yet the frozen T5 encodes it for the batch in every step.",
    "The prompt is encoded once before training and its states are kept.",
)
def mascot_painter(faulty: bool) -> Step:
    """A diffusion transformer is taught one mascot from a few pictures."""
    from transformers import T5Config, T5EncoderModel

    width, text, rows, length = sized(768, 64), sized(1024, 64), sized(16, 2), sized(256, 8)
    config = T5Config(
        vocab_size=sized(8192, 64),
        d_model=text,
        d_kv=64,
        d_ff=sized(2816, 64),
        num_layers=sized(24, 1),
        num_heads=text // 64,
        feed_forward_proj="gated-gelu",
    )
    with torch.device(DEVICE):
        blocks = nn.ModuleList(DiffusionBlock(width, width // 64, text) for _ in range(sized(8, 1)))
        model = nn.ModuleDict(
            {"inside": nn.Linear(16, width), "blocks": blocks, "outside": nn.Linear(width, 16)}
        )
        text_encoder = T5EncoderModel(config)
    model.to(HALF)
    text_encoder.to(HALF).requires_grad_(False).eval()
    optimizer = adamw(model)
    prompt = tokens(config.vocab_size, 1, length).expand(rows, -1).contiguous()
    latents = noise(rows, sized(256, 16), 16)
    frequencies = torch.logspace(0, 3, width // 2, device=DEVICE)

    @torch.no_grad()
    def encode_prompt(ids: Tensor) -> Tensor:
        return text_encoder(input_ids=ids).last_hidden_state

    kept = None if faulty else encode_prompt(prompt)

    def step() -> None:
        words = encode_prompt(prompt) if kept is None else kept
        time, drawn = torch.rand(rows, 1, device=DEVICE), torch.randn_like(latents)
        angles = time * frequencies
        moment = torch.cat([angles.sin(), angles.cos()], -1).to(HALF)
        x = model["inside"](torch.lerp(latents, drawn, time[..., None].to(HALF)))
        for block in blocks:
            x = block(x, words, moment)
        loss = functional.mse_loss(model["outside"](x).float(), (drawn - latents).float())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step
