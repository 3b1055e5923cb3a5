"""Speech, rivers and portraits."""

from __future__ import annotations

import copy
import itertools
import random

import torch
from benchmarks.faults.library_models import autocast, noise
from benchmarks.faults.models import DEVICE, adamw, pinned, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

LETTERS = 32


class Typist(nn.Module):
    """wav2vec 2.0 with a head that writes letters."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import Wav2Vec2Config, Wav2Vec2Model

        width = sized(768, 32)
        config = Wav2Vec2Config(
            hidden_size=width,
            num_hidden_layers=sized(12, 1),
            num_attention_heads=sized(12, 2),
            intermediate_size=4 * width,
            conv_dim=(sized(512, 16),) * 7,
            num_conv_pos_embeddings=sized(128, 8),
            num_conv_pos_embedding_groups=sized(16, 2),
            feat_extract_norm="layer",
            do_stable_layer_norm=True,
            apply_spec_augment=False,
            layerdrop=0.0,
            attn_implementation="sdpa",
        )
        self.encoder = Wav2Vec2Model(config)
        self.encoder.freeze_feature_encoder()
        self.head = nn.Linear(width, LETTERS)

    def forward(self, sound: Tensor, heard: Tensor) -> Tensor:
        """Logarithms of the chances of the letters, time first."""
        states = self.encoder(sound, attention_mask=heard).last_hidden_state
        return functional.log_softmax(self.head(states).float(), -1).transpose(0, 1)


def moments(lengths: Tensor) -> Tensor:
    """How many states wav2vec's convolutions leave of clips of such lengths."""
    for kernel, stride in [(10, 5), *[(3, 2)] * 4, *[(2, 2)] * 2]:
        lengths = (lengths - kernel) // stride + 1
    return lengths


def recordings(count: int) -> list[tuple[Tensor, Tensor]]:
    """Clips of speech and their letters: most of them a few seconds long, some up to sixteen."""
    rng = random.Random(5)
    second = sized(16_000, 1000)
    found = []
    for _ in range(count):
        seconds = min(16.0, 1.5 + rng.expovariate(1 / 3.5))
        sound = torch.randn(int(seconds * second))
        found.append((sound, torch.randint(1, LETTERS, (max(1, int(seconds * sized(10, 1))),))))
    return found


def joined(clips: list[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    """A batch: clips and letters padded to the longest."""
    sounds, texts = zip(*clips, strict=True)
    sound = pad_sequence(list(sounds), batch_first=True)
    lengths = torch.tensor([len(one) for one in sounds])
    return {
        "sound": pinned(sound),
        "heard": pinned((torch.arange(sound.shape[1]) < lengths[:, None]).long()),
        "letters": pinned(pad_sequence(list(texts), batch_first=True)),
        "lengths": lengths,
        "letter_lengths": torch.tensor([len(one) for one in texts]),
    }


@pair(
    "clips-of-all-lengths-in-a-batch",
    "wav2vec 2.0 is tuned on batches of clips drawn at random: 2 s and 16 s together, padded to the longest.",
    "Clips of like lengths are put into a batch.",
)
def thirteenth_voice_typist(faulty: bool) -> Step:
    """A network writes down what is said."""
    rows = sized(16, 2)
    clips = recordings(4 * rows)
    if not faulty:
        clips.sort(key=lambda clip: len(clip[0]))
    batches = [joined(clips[first : first + rows]) for first in range(0, len(clips), rows)]
    random.Random(2).shuffle(batches)
    turn = itertools.cycle(batches)
    model = Typist().to(DEVICE).train()
    optimizer = torch.optim.AdamW(
        [value for value in model.parameters() if value.requires_grad], lr=3e-5, fused=True
    )

    def step() -> Tensor:
        batch = next(turn)
        sound, heard, letters = (
            batch[name].to(DEVICE, non_blocking=True) for name in ("sound", "heard", "letters")
        )
        with autocast():
            chances = model(sound, heard)
        counts = moments(batch["lengths"])
        loss = functional.ctc_loss(chances, letters, counts, batch["letter_lengths"], zero_infinity=True)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


class ByHours(nn.Module):
    """Two recurrent layers, hour by hour."""

    def __init__(self, inside: int, width: int) -> None:
        super().__init__()
        self.first = nn.LSTMCell(inside, width)
        self.second = nn.LSTMCell(width, width)

    def forward(self, series: Tensor) -> Tensor:
        """The state after the last hour."""
        low = high = None
        for hour in range(series.shape[1]):
            low = self.first(series[:, hour], low)
            high = self.second(low[0], high)
        assert high is not None
        return high[0]


class AllHours(nn.Module):
    """The same layers, as one call."""

    def __init__(self, inside: int, width: int) -> None:
        super().__init__()
        self.layers = nn.LSTM(inside, width, num_layers=2, batch_first=True)

    def forward(self, series: Tensor) -> Tensor:
        """The state after the last hour."""
        states: Tensor = self.layers(series)[0]
        return states[:, -1]


@pair(
    "recurrent-layer-stepped-in-python",
    "Two nn.LSTMCell are called hour by hour in a Python loop over a week.",
    "nn.LSTM over all hours at once.",
)
def thirteenth_river_forecaster(faulty: bool) -> Step:
    """A network forecasts the level of rivers a day ahead."""
    rows, hours, gauges, width = sized(512, 4), sized(168, 8), 32, sized(512, 16)
    body = ByHours(gauges, width) if faulty else AllHours(gauges, width)
    model = nn.Sequential(body, nn.LayerNorm(width), nn.Linear(width, 24 * 3)).to(DEVICE)
    optimizer = adamw(model)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20_000)
    levels = noise(rows, hours, gauges, dtype=torch.float32)
    ahead = noise(rows, 24, 1, dtype=torch.float32)
    shares = torch.tensor([0.1, 0.5, 0.9], device=DEVICE)

    def step() -> Tensor:
        with autocast():
            guess = model(levels)
        missed = ahead - guess.float().view(rows, 24, 3)
        loss = torch.maximum(shares * missed, (shares - 1) * missed).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        return loss.detach()

    return step


class PortraitLayer(nn.Module):
    """One layer of a diffusion transformer; the time shifts and scales what goes through."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width))
        self.guide = nn.Linear(width, 6 * width)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """Attention and two linear layers, as the time wants them."""
        rows, length, width = x.shape
        add, scale, gate, add_2, scale_2, gate_2 = self.guide(functional.silu(time))[:, None].chunk(6, -1)
        parts = self.qkv(self.norm(x) * (1 + scale) + add)
        query, key, value = parts.view(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value)
        x = x + gate * self.out(mixed.transpose(1, 2).reshape(rows, length, width))
        return x + gate_2 * self.mlp(self.norm(x) * (1 + scale_2) + add_2)


class PortraitModel(nn.Module):
    """A diffusion transformer over patches of latents."""

    def __init__(self, width: int, layers: int, count: int) -> None:
        super().__init__()
        self.enter = nn.Linear(16, width)
        self.places = nn.Parameter(0.02 * torch.randn(1, count, width))
        self.time = nn.Sequential(nn.Linear(64, width), nn.SiLU(), nn.Linear(width, width))
        self.layers = nn.ModuleList(PortraitLayer(width, max(1, width // 64)) for _ in range(layers))
        self.leave = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 16))

    def forward(self, x: Tensor, phase: Tensor) -> Tensor:
        """The direction from noise to portrait."""
        x, time = self.enter(x) + self.places, self.time(phase)
        for layer in self.layers:
            x = layer(x, time)
        return self.leave(x)


def averaged_on_host(average: nn.Module, model: nn.Module, share: float) -> None:
    """Moves the average, which lies on the CPU to save memory, a little towards the model."""
    for kept, now in zip(average.parameters(), model.parameters(), strict=True):
        kept.lerp_(now.detach().to(kept.device), share)


@pair(
    "averaged-weights-kept-on-the-cpu",
    "A diffusion transformer's moving average is kept on the CPU: all weights are copied there every step.",
    "It is kept on the device and moved by torch._foreach_lerp_.",
)
def thirteenth_portrait_maker(faulty: bool) -> Step:
    """A diffusion transformer learns to make portraits."""
    rows, count = sized(128, 2), sized(256, 16)
    model = PortraitModel(sized(512, 64), sized(8, 1), count).to(DEVICE)
    average = copy.deepcopy(model).requires_grad_(False)
    average.to("cpu" if faulty else DEVICE)
    both = list(average.parameters()), list(model.parameters())
    optimizer = adamw(model, weight_decay=0.0)
    latents = noise(rows, count, 16, dtype=torch.float32)
    speeds = torch.exp(-torch.arange(32, device=DEVICE) / 4)

    def step() -> Tensor:
        added = torch.randn_like(latents)
        moment = torch.sigmoid(torch.randn(rows, 1, device=DEVICE))
        mixed = (1 - moment[..., None]) * latents + moment[..., None] * added
        phase = 1000 * moment * speeds
        with autocast():
            guess = model(mixed, torch.cat([phase.sin(), phase.cos()], -1))
        loss = functional.mse_loss(guess.float(), added - latents)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            if faulty:
                averaged_on_host(average, model, 1e-3)
            else:
                torch._foreach_lerp_(*both, 1e-3)
        return loss.detach()

    return step
