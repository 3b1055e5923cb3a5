"""Models of other fields: one listens to engines and one warns of frost."""

from __future__ import annotations

import torch
from benchmarks.faults.library_models import adamw, autocast
from benchmarks.faults.models import DEVICE, HALF, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional


@pair(
    "recordings-kept-as-lists",
    "The recordings are lists of Python numbers, as a dataset gives them that was not told its format, and"
    " the collator turns each of hundreds of thousands of them into a tensor's element one by one.",
    "Keep the recordings as arrays or tensors (dataset.set_format('torch')) and stack them.",
)
def eighteenth_engine_listener(faulty: bool) -> Step:
    """A Wav2Vec2 learns to hear what is wrong with an engine."""
    from transformers import Wav2Vec2Config, Wav2Vec2ForSequenceClassification

    rows, length = sized(16, 2), sized(32_000, 2000)
    width = sized(768, 64)
    config = Wav2Vec2Config(
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=sized(8, 1),
        num_attention_heads=width // 64,
        conv_dim=(sized(512, 32),) * 7,
        num_conv_pos_embeddings=sized(128, 16),
        num_labels=8,
        classifier_proj_size=sized(256, 32),
        apply_spec_augment=False,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        activation_dropout=0.0,
        feat_proj_dropout=0.0,
        layerdrop=0.0,
    )
    model = Wav2Vec2ForSequenceClassification(config).to(DEVICE).train()
    model.freeze_feature_encoder()
    optimizer = adamw(model)
    dataset = []
    for number in range(2 * rows):
        sound = torch.randn(length).clamp(-3, 3) / 3
        dataset.append({"input_values": sound.tolist() if faulty else sound, "label": number % 8})

    def collated(examples: list[dict]) -> tuple[Tensor, Tensor]:
        sounds = [example["input_values"] for example in examples]
        values = torch.tensor(sounds) if faulty else torch.stack(sounds)
        return values, torch.tensor([example["label"] for example in examples])

    turn = 0

    def step() -> Tensor:
        nonlocal turn
        first = turn % 2 * rows
        turn += 1
        values, labels = collated(dataset[first : first + rows])
        with autocast():
            loss = model(input_values=values.to(DEVICE), labels=labels.to(DEVICE)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


class Frost(nn.Module):
    """The physics of a cold night in small moments, and a network that mends what the physics gets wrong."""

    def __init__(self, width: int, moments: int) -> None:
        super().__init__()
        self.moments = moments
        self.first = nn.Conv2d(4, width, 3, padding=1)
        self.middle = nn.Conv2d(width, width, 3, padding=1)
        self.last = nn.Conv2d(width, 4, 3, padding=1)

    def forward(self, air: Tensor, ground: Tensor, water: Tensor, wind: Tensor) -> Tensor:
        """How likely frost is at each place in the morning."""
        for _ in range(self.moments):
            kelvin = ground + 273.15
            out = 5.67e-8 * 0.97 * kelvin**4
            clouds = torch.sigmoid(4.0 * (water - 0.6))
            back = out * (0.7 + 0.25 * clouds)
            stirred = 1.2 * 1005.0 * 0.002 * wind * (air - ground)
            most = 6.11 * torch.exp(17.6 * air / (air + 243.1))
            dew = torch.relu(water * 12.0 - most) * 0.02
            ground = ground + 60.0 * (back - out + stirred) / 2.0e5 + 0.1 * dew
            air = air - 60.0 * stirred / 1.2e6
            water = (water - 0.01 * dew).clamp(min=0.0)
            wind = wind * (0.99 + 0.005 * torch.tanh(air - ground))
        seen = torch.stack([air, ground, water, wind], 1).to(HALF, memory_format=torch.channels_last)
        hidden = functional.silu(self.middle(functional.silu(self.first(seen))))
        mended = ground + self.last(hidden)[:, 1].float()
        return torch.sigmoid(-mended)


@pair(
    "compiled-model-thrown-away",
    "torch.compile returns the compiled model and leaves the given one as it is; what it returns is dropped,"
    " so the model runs uncompiled and writes each of its many small formulas out to memory.",
    "Keep what is returned: model = torch.compile(model), or call model.compile().",
)
def eighteenth_frost_warner(faulty: bool) -> Step:
    """A forecast of frost for many possible nights on a grid."""
    nights, side = sized(48, 2), sized(512, 32)
    model: nn.Module = Frost(sized(64, 8), sized(4, 2)).to(DEVICE, HALF, memory_format=torch.channels_last)
    model.eval()
    if faulty:
        torch.compile(model, disable=DEVICE == "cpu")
    else:
        model = torch.compile(model, disable=DEVICE == "cpu")
    air = torch.randn(nights, side, side, device=DEVICE) * 3 + 4
    ground = air - 2
    water = torch.rand(nights, side, side, device=DEVICE)
    wind = torch.rand(nights, side, side, device=DEVICE) * 4
    warned = torch.zeros(side, side, device=DEVICE)

    @torch.no_grad()
    def step() -> Tensor:
        likely = model(air, ground, water, wind)
        warned.copy_(likely.mean(0))
        return warned

    return step
