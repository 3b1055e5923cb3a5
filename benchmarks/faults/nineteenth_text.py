"""Language models: advice for tenants and ballads written as notes."""

from __future__ import annotations

import itertools

import torch
from benchmarks.faults.library_models import autocast, llama
from benchmarks.faults.models import DEVICE, pinned, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional


def conversations(batches: int, rows: int, length: int, words: int) -> list[dict[str, Tensor]]:
    """Tokens of questions and answers; the questions are not learnt."""
    made = torch.Generator().manual_seed(12)
    found = []
    for _ in range(batches):
        ids = torch.randint(2, words, (rows, length), generator=made)
        asked = torch.randint(length // 8, length // 3, (rows, 1), generator=made)
        labels = ids.masked_fill(torch.arange(length) < asked, -100)
        found.append({"input_ids": pinned(ids), "labels": pinned(labels)})
    return found


@pair(
    "gradient-checkpointing-with-memory-to-spare",
    "A small Llama is tuned by LoRA (peft) with gradient checkpointing, though memory is plentiful.",
    "Without gradient_checkpointing_enable(): the activations are kept.",
)
def nineteenth_tenant_adviser(faulty: bool) -> Step:
    """A language model learns to advise tenants."""
    from peft import LoraConfig, get_peft_model

    words, length, rows = sized(8192, 128), sized(2048, 16), sized(6, 2)
    base = llama(5, 2048)
    if faulty:
        base.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    base.config.use_cache = False
    chosen = LoraConfig(
        r=sized(16, 4),
        lora_alpha=32,
        lora_dropout=0.0,
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj"],
        task_type="CAUSAL_LM",
    )
    model = get_peft_model(base, chosen, autocast_adapter_dtype=False).train()
    learnt = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(learnt, lr=2e-4, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda turn: min(1.0, (turn + 1) / 100))
    queue = itertools.cycle(conversations(3, rows, length, words))
    running = torch.zeros((), device=DEVICE)

    def step() -> Tensor:
        batch = {name: part.to(DEVICE, non_blocking=True) for name, part in next(queue).items()}
        loss = model(**batch).loss
        loss.backward()
        nn.utils.clip_grad_norm_(learnt, 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        running.lerp_(loss.detach(), 0.02)
        return loss.detach()

    return step


class Listening(nn.Module):
    """Attention to the notes before."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Mixes every note with those before it."""
        rows, length, width = x.shape
        parts = self.qkv(x).view(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)
        mixed = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=mask is None
        )
        return self.out(mixed.transpose(1, 2).reshape(rows, length, width))


class Verse(nn.Module):
    """A layer of the composer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.before = nn.LayerNorm(width)
        self.listening = Listening(width, heads)
        self.between = nn.LayerNorm(width)
        self.thinking = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Attention, then two linear layers."""
        x = x + self.listening(self.before(x), mask)
        return x + self.thinking(self.between(x))


class Composer(nn.Module):
    """A transformer over the events of a score: notes, rests and lengths."""

    def __init__(self, events: int, width: int, layers: int, length: int, *, drawn_mask: bool) -> None:
        super().__init__()
        self.events = nn.Embedding(events, width)
        self.places = nn.Embedding(length, width)
        self.verses = nn.ModuleList(Verse(width, max(1, width // 64)) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, events, bias=False)
        mask = torch.ones(length, length, dtype=torch.bool).tril() if drawn_mask else None
        self.register_buffer("mask", mask, persistent=False)
        self.register_buffer("order", torch.arange(length), persistent=False)

    def forward(self, score: Tensor) -> Tensor:
        """Scores of the next event."""
        length = score.shape[1]
        x = self.events(score) + self.places(self.order[:length])
        mask = None if self.mask is None else self.mask[:length, :length]
        for verse in self.verses:
            x = verse(x, mask)
        return self.head(self.norm(x))


@pair(
    "causal-mask-given-as-a-tensor",
    "Long scores are learnt; scaled_dot_product_attention is given a lower triangle, which rules out flash.",
    "is_causal=True and no mask.",
)
def nineteenth_ballad_composer(faulty: bool) -> Step:
    """A model learns to write ballads, event by event."""
    events, length, rows = sized(1024, 64), sized(4096, 16), sized(4, 2)
    model = Composer(events, sized(512, 64), sized(8, 1), length, drawn_mask=faulty).to(DEVICE)
    decayed = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    others = [parameter for parameter in model.parameters() if parameter.ndim < 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.95), fused=True)
    made = torch.Generator().manual_seed(21)
    scores = [pinned(torch.randint(0, events, (rows, length + 1), generator=made)) for _ in range(3)]
    queue = itertools.cycle(scores)
    right = torch.zeros((), device=DEVICE)

    def step() -> Tensor:
        score = next(queue).to(DEVICE, non_blocking=True)
        with autocast():
            guessed = model(score[:, :-1])
            loss = functional.cross_entropy(guessed.flatten(0, 1), score[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        right.lerp_((guessed.detach().argmax(-1) == score[:, 1:]).float().mean(), 0.02)
        return loss.detach()

    return step
