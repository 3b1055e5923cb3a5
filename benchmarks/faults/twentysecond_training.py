"""Training scripts: adapters, a new optimizer, speech, sensors and pictures."""

from __future__ import annotations

import math
import random
from typing import Any

import torch
from benchmarks.faults.library_models import autocast, llama, noise, tokens
from benchmarks.faults.models import DEVICE, adamw, gpt, next_word_loss, sized, words
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional


@pair(
    "adapters-in-fp32-without-autocast",
    "LoRA by peft on a model in bf16: get_peft_model() keeps the adapters in fp32, and as there is no"
    " autocast every adapted layer casts its input, multiplies in fp32 and casts the sum back.",
    "autocast_adapter_dtype=False: the adapters are in bf16 as the rest is.",
)
def fable_tuner(faulty: bool) -> Step:
    """A language model is tuned to tell fables."""
    from peft import LoraConfig, get_peft_model

    count = sized(8192, 128)
    config = LoraConfig(
        r=16,
        lora_alpha=32,
        lora_dropout=0.0,
        bias="none",
        task_type="CAUSAL_LM",
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
    )
    model: Any = get_peft_model(llama(6, 2048, words=8192), config, autocast_adapter_dtype=faulty)
    model.train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=2e-4, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100_000)
    ids = tokens(count, sized(12, 2), sized(1024, 16))

    def step() -> None:
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()

    return step


# ---------------------------------------------------------------- a new optimizer


def orthogonal(gradient: Tensor, dtype: torch.dtype, turns: int = 5) -> Tensor:
    """The nearest matrix with orthonormal rows, by the iteration of Newton and Schulz."""
    x = gradient.to(dtype)
    tall = x.shape[0] > x.shape[1]
    if tall:
        x = x.T
    x = x / (x.norm() + 1e-7)
    for _ in range(turns):
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x.T if tall else x


class Muon(torch.optim.Optimizer):
    """Momentum whose steps are made orthogonal."""

    def __init__(
        self, matrices: list[Tensor], lr: float, *, dtype: torch.dtype, momentum: float = 0.95
    ) -> None:
        super().__init__(matrices, {"lr": lr, "momentum": momentum})
        self.dtype = dtype

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Changes all matrices."""
        assert closure is None
        for group in self.param_groups:
            for matrix in group["params"]:
                state = self.state[matrix]
                if "pace" not in state:
                    state["pace"] = torch.zeros_like(matrix)
                pace = state["pace"].lerp_(matrix.grad, 1 - group["momentum"])
                ahead = matrix.grad.lerp(pace, group["momentum"])
                change = orthogonal(ahead, self.dtype)
                scale = math.sqrt(max(1.0, matrix.shape[0] / matrix.shape[1]))
                matrix.add_(change.to(matrix.dtype), alpha=-group["lr"] * scale)


@pair(
    "orthogonal-steps-in-fp32",
    "Muon takes its Newton-Schulz iterations in fp32, with products that may not even use TF32.",
    "In bf16, as its authors do.",
)
def libretto_trainer(faulty: bool) -> Step:
    """A language model learns the texts of operas."""
    model = gpt(6, 1024, words=8192)
    matrices = [parameter for parameter in model.layers.parameters() if parameter.ndim == 2]
    inner = {id(parameter) for parameter in matrices}
    others = [parameter for parameter in model.parameters() if id(parameter) not in inner]
    optimizers = [
        Muon(matrices, 0.002, dtype=torch.float32 if faulty else torch.bfloat16),
        torch.optim.AdamW(others, lr=3e-4, fused=True),
    ]
    batch = words(24, 1024, sized(8192, 1024))

    def step() -> None:
        next_word_loss(model, batch).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()

    return step


# ---------------------------------------------------------------- speech

LETTERS = "abcdefghijklmnopqrstuvwxyz '-.,?"


def spelled(ids: Tensor) -> list[str]:
    """The texts of a batch of letters."""
    return ["".join(LETTERS[number % len(LETTERS)] for number in row) for row in ids.tolist()]


@pair(
    "error-rate-of-texts-every-step",
    "Whisper is trained with the CharErrorRate of torchmetrics updated at every step, whose edit distances"
    " are reckoned cell by cell in Python.",
    "The rate is updated at every fiftieth step, when it is logged.",
)
def dialect_scribe(faulty: bool) -> Step:
    """Interviews in dialects are written down."""
    from torchmetrics.text import CharErrorRate
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    rows, frames, length, width = sized(16, 2), sized(1500, 40), sized(64, 8), sized(512, 32)
    config = WhisperConfig(
        vocab_size=sized(2048, 64),
        d_model=width,
        encoder_layers=sized(8, 1),
        decoder_layers=sized(6, 1),
        encoder_attention_heads=sized(8, 2),
        decoder_attention_heads=sized(8, 2),
        encoder_ffn_dim=4 * width,
        decoder_ffn_dim=4 * width,
        max_source_positions=frames,
        max_target_positions=128,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        suppress_tokens=[],
        begin_suppress_tokens=[],
        attn_implementation="sdpa",
    )
    model = WhisperForConditionalGeneration(config).to(DEVICE)
    model.train()
    optimizer = adamw(model)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda turn: min(1.0, (turn + 1) / 500))
    rate = CharErrorRate()
    sounds = noise(rows, 80, 2 * frames, dtype=torch.float32)
    labels = torch.randint(3, 35, (rows, length), device=DEVICE)
    texts = spelled(labels)
    every = 1 if faulty else 50
    done = 0

    def step() -> None:
        nonlocal done
        with autocast():
            output = model(input_features=sounds, labels=labels)
        output.loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        done += 1
        if done % every == 0:
            rate.update(spelled(output.logits.detach().argmax(-1)), texts)

    return step


# ---------------------------------------------------------------- pictures


def jiggled_each(pictures: Tensor) -> Tensor:
    """Turns, shifts, flips and lights every picture in its own way."""
    changed = []
    for picture in pictures:
        angle = math.radians(random.uniform(-20, 20))
        size = random.uniform(0.8, 1.2)
        across, down = random.uniform(-0.1, 0.1), random.uniform(-0.1, 0.1)
        theta = torch.tensor(
            [
                [size * math.cos(angle), -size * math.sin(angle), across],
                [size * math.sin(angle), size * math.cos(angle), down],
            ],
            device=pictures.device,
        )
        grid = functional.affine_grid(theta[None], [1, *picture.shape], align_corners=False)
        turned = functional.grid_sample(picture[None], grid, padding_mode="reflection", align_corners=False)
        if random.random() < 0.5:
            turned = turned.flip(-1)
        lit = turned[0] * random.uniform(0.8, 1.2) + random.uniform(-0.1, 0.1)
        changed.append(lit.clamp(-3, 3))
    return torch.stack(changed)


def jiggled_together(pictures: Tensor) -> Tensor:
    """The same for all pictures at once."""
    rows = pictures.shape[0]
    drawn = torch.rand(7, rows, device=pictures.device)
    angle, size = (drawn[0] - 0.5) * math.radians(40), 0.8 + 0.4 * drawn[1]
    flip = 1 - 2 * (drawn[2] < 0.5).float()
    cosine, sine, moved = size * angle.cos(), size * angle.sin(), 0.2 * drawn[3:5] - 0.1
    theta = torch.stack([flip * cosine, -sine, moved[0], flip * sine, cosine, moved[1]], -1).view(rows, 2, 3)
    grid = functional.affine_grid(theta, list(pictures.shape), align_corners=False)
    pictures = functional.grid_sample(pictures, grid, padding_mode="reflection", align_corners=False)
    gain, shift = (drawn[5:7].view(2, rows, 1, 1, 1) - 0.5).unbind(0)
    return (pictures * (1 + 0.4 * gain) + 0.2 * shift).clamp(-3, 3)


@pair(
    "pictures-augmented-one-by-one",
    "On the device each picture of a batch is turned, flipped and lit by itself, with a matrix that is"
    " copied from the host.",
    "One affine_grid and one grid_sample for the batch, with numbers drawn on the device.",
)
def butterfly_atlas(faulty: bool) -> Step:
    """Butterflies are named."""
    from transformers import ConvNextConfig, ConvNextForImageClassification

    rows, side = sized(96, 2), sized(192, 32)
    config = ConvNextConfig(
        hidden_sizes=[sized(width, 16) for width in (96, 192, 384, 768)],
        depths=[3, 3, 6, 3] if DEVICE == "cuda" else [1, 1, 1, 1],
        num_labels=sized(200, 10),
        drop_path_rate=0.0,
    )
    model = ConvNextForImageClassification(config).to(DEVICE, memory_format=torch.channels_last)
    model.train()
    optimizer = adamw(model, weight_decay=0.05)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    pictures, labels = noise(rows, 3, side, side, dtype=torch.float32), tokens(sized(200, 10), rows)
    augmented = jiggled_each if faulty else jiggled_together
    running = torch.zeros((), device=DEVICE)

    def step() -> None:
        batch = augmented(pictures).contiguous(memory_format=torch.channels_last)
        with autocast():
            loss = criterion(model(pixel_values=batch).logits.float(), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        running.lerp_(loss.detach(), 0.05)

    return step
