"""Language models that are trained and tuned: translation, music written as events, contracts."""

from __future__ import annotations

import torch
from benchmarks.faults.library_models import autocast, llama, tokens
from benchmarks.faults.models import DEVICE, HALF, adamw, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional

SMOOTHING = 0.1


def smoothed_by_hand(scores: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy with a part of the certainty spread over all words; places of -100 do not count."""
    words = scores.shape[-1]
    chances = functional.log_softmax(scores.float(), -1)
    certain = functional.one_hot(labels.clamp(min=0), words).float()
    wanted = certain * (1 - SMOOTHING) + SMOOTHING / words
    losses = -(wanted * chances).sum(-1)
    counts = (labels != -100).float()
    return (losses * counts).sum() / counts.sum()


@pair(
    "smoothed-targets-written-out",
    "A translator smooths its labels by hand: a one-hot vector over 58,000 words for every position.",
    "cross_entropy(..., label_smoothing=0.1, ignore_index=-100).",
)
def thirteenth_talk_translator(faulty: bool) -> Step:
    """A model of Marian's kind learns to translate talks."""
    from transformers import MarianConfig, MarianMTModel

    rows, length, count = sized(256, 2), sized(64, 8), sized(58_112, 128)
    config = MarianConfig(
        vocab_size=count,
        d_model=sized(512, 32),
        encoder_layers=sized(6, 1),
        decoder_layers=sized(2, 1),  # few, so that it writes quickly
        encoder_ffn_dim=sized(2048, 64),
        decoder_ffn_dim=sized(2048, 64),
        encoder_attention_heads=sized(8, 2),
        decoder_attention_heads=sized(8, 2),
        max_position_embeddings=512,
        dropout=0.1,
        pad_token_id=0,
        eos_token_id=1,
        decoder_start_token_id=0,
        use_cache=False,
        attn_implementation="sdpa",
    )
    model = MarianMTModel(config).to(DEVICE)
    optimizer = adamw(model, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda turn: min(1.0, (turn + 1) / 4000))
    spoken, written = tokens(count, rows, length), tokens(count, rows, length)
    before = functional.pad(written[:, :-1], (1, 0), value=0)
    labels = written.clone()
    labels[: rows // 4, -length // 8 :] = -100  # the shorter sentences end here

    def step() -> Tensor:
        with autocast():
            scores = model(input_ids=spoken, decoder_input_ids=before).logits
        if faulty:
            loss = smoothed_by_hand(scores.flatten(0, 1), labels.flatten())
        else:
            loss = functional.cross_entropy(
                scores.flatten(0, 1).float(), labels.flatten(), label_smoothing=SMOOTHING
            )
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


class Turned(nn.Module):
    """Turns queries and keys by an angle that grows with the position."""

    def __init__(self, size: int, length: int) -> None:
        super().__init__()
        speeds = 10_000.0 ** (-torch.arange(0, size, 2) / size)
        angles = torch.arange(length)[:, None] * speeds.repeat(2)[None]
        # exact angles matter over long pieces, so the tables are kept in fp32
        self.cosine: Tensor
        self.sine: Tensor
        self.register_buffer("cosine", angles.cos().to(DEVICE), persistent=False)
        self.register_buffer("sine", angles.sin().to(DEVICE), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """The turned heads."""
        first, second = x.chunk(2, -1)
        length = x.shape[-2]
        return x * self.cosine[:length] + torch.cat([-second, first], -1) * self.sine[:length]


class ComposerLayer(nn.Module):
    """One layer of the composer."""

    def __init__(self, width: int, heads: int, *, keep_type: bool) -> None:
        super().__init__()
        self.heads, self.keep_type = heads, keep_type
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor, turned: Turned) -> Tensor:
        """Attention, then two linear layers, each added to what came in."""
        rows, length, width = x.shape
        parts = self.qkv(self.norms[0](x)).view(rows, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        query, key = turned(query), turned(key)
        if self.keep_type:
            query, key = query.type_as(value), key.type_as(value)
        mixed = functional.scaled_dot_product_attention(query, key, value.type_as(query), is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, width).type_as(x))
        return x + self.down(functional.gelu(self.up(self.norms[1](x))))


class Composer(nn.Module):
    """Writes the next event of a piece."""

    def __init__(self, events: int, width: int, layers: int, length: int, *, keep_type: bool) -> None:
        super().__init__()
        heads = max(1, width // 64)
        self.embedding = nn.Embedding(events, width)
        self.layers = nn.ModuleList(ComposerLayer(width, heads, keep_type=keep_type) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, events, bias=False)
        self.to(DEVICE, HALF)
        self.turned = Turned(width // heads, length)  # after the cast, which would take its tables along

    def forward(self, piece: Tensor) -> Tensor:
        """Scores of the events at every position."""
        x = self.embedding(piece)
        for layer in self.layers:
            x = layer(x, self.turned)
        return self.head(self.norm(x))


@pair(
    "attention-in-fp32-by-promotion",
    "Rotary tables in fp32 make queries and keys of a bf16 model fp32, and so the whole attention.",
    "The turned queries and keys are cast back: query.type_as(value).",
)
def thirteenth_raga_composer(faulty: bool) -> Step:
    """A decoder learns music written as events."""
    events, rows, length = 512, sized(16, 2), sized(1024, 16)
    model = Composer(events, sized(1024, 64), sized(8, 1), length, keep_type=not faulty)
    optimizer = adamw(model, weight_decay=0.1, betas=(0.9, 0.95))
    piece = tokens(events, rows, length + 1)

    def step() -> Tensor:
        scores = model(piece[:, :-1])
        loss = functional.cross_entropy(scores.flatten(0, 1).float(), piece[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


@pair(
    "many-tiny-micro-batches",
    "LoRA tuning with per-device batch 2 and gradient accumulation over 8, on a device that is nearly empty.",
    "One batch of 16 without accumulation.",
)
def thirteenth_clause_tuner(faulty: bool) -> Step:
    """A Llama is tuned with LoRA to fill in clauses of contracts."""
    from peft import LoraConfig, get_peft_model

    rows, length = sized(16, 4), sized(512, 16)
    parts = rows // 2 if faulty else 1
    base = llama(6, 1536, words=32_000)
    base.config.use_cache = False
    chosen = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    config = LoraConfig(r=16, lora_alpha=32, target_modules=chosen, task_type="CAUSAL_LM")
    model = get_peft_model(base, config, autocast_adapter_dtype=False)
    model.train()
    trained = [value for value in model.parameters() if value.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=2e-4, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda turn: min(1.0, (turn + 1) / 100))
    clauses = tokens(sized(32_000, 128), rows, length)
    labels = clauses.clone()
    labels[:, : length // 4] = -100  # the question

    def step() -> Tensor:
        total = torch.zeros((), device=DEVICE)
        for some, wanted in zip(clauses.chunk(parts), labels.chunk(parts), strict=True):
            loss = model(input_ids=some, labels=wanted).loss / parts
            loss.backward()
            total += loss.detach()
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        return total

    return step
