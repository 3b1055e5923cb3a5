"""Models that learn from texts: one sorts clauses, one follows preferences and one reads code."""

from __future__ import annotations

import copy
import itertools
import random
from typing import Any

import torch
from benchmarks.faults.library_models import autocast, bert, llama
from benchmarks.faults.models import DEVICE, HALF, adamw, pinned, sized, words
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional

LOG_EVERY = 50


def clauses(count: int, longest: int) -> list[list[int]]:
    """Tokenized clauses of contracts: most are short, as clauses are."""
    rng = random.Random(15)
    known = sized(30_528, 256)
    usual = (longest // 12, longest // 3)
    return [[rng.randrange(2, known) for _ in range(rng.randint(*usual))] for _ in range(count)]


def collate(texts: list[list[int]], length: int) -> dict[str, Tensor]:
    """Texts of one batch in a tensor of this length, and which of its places are filled."""
    ids = torch.zeros(len(texts), length, dtype=torch.long)
    mask = torch.zeros(len(texts), length, dtype=torch.long)
    for row, text in enumerate(texts):
        ids[row, : len(text)] = torch.tensor(text)
        mask[row, : len(text)] = 1
    return {"input_ids": pinned(ids), "attention_mask": pinned(mask)}


@pair(
    "padding-to-the-limit",
    "Every batch is padded to the 512 places the model allows, while its longest clause has about 170.",
    "Pad each batch to its own longest text (padding=True, or DataCollatorWithPadding).",
)
def fifteenth_clause_sorter(faulty: bool) -> Step:
    """A BERT is tuned to sort the clauses of contracts into ten kinds."""
    rows, longest = sized(64, 2), sized(512, 48)
    with torch.device(DEVICE):
        model = bert(6, 1024).train()
    optimizer = adamw(model)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, total_iters=100)
    texts = clauses(8 * rows, longest)
    batches = []
    for start in range(0, len(texts), rows):
        some = texts[start : start + rows]
        batch = collate(some, longest if faulty else max(map(len, some)))
        batches.append(batch | {"labels": pinned(torch.randint(0, 10, (rows,)))})
    ahead, numbers = itertools.cycle(batches), itertools.count()
    losses: list[float] = []

    def step() -> Tensor:
        batch = {name: part.to(DEVICE, non_blocking=True) for name, part in next(ahead).items()}
        with autocast():
            loss = model(**batch).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if next(numbers) % LOG_EVERY == LOG_EVERY - 1:
            losses.append(loss.item())
        return loss.detach()

    return step


def likelihood(model: Any, ids: Tensor, answered: Tensor) -> Tensor:
    """How likely the model finds the answer in each row."""
    logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
    each = functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    return -(each.view(ids.shape[0], -1).float() * answered[:, 1:]).sum(-1)


@pair(
    "gradients-of-a-frozen-model",
    "The reference model of DPO runs with gradients on: its graph is kept and the backward pass goes through"
    " it too, for gradients that nobody uses.",
    "reference.requires_grad_(False), and its pass under torch.no_grad().",
)
def fifteenth_preference_tuner(faulty: bool) -> Step:
    """A chat model learns which of two answers people liked, against a copy of where it began (DPO)."""
    rows, length, beta = sized(16, 2), sized(512, 16), 0.1
    with torch.device(DEVICE):
        model = llama(6, 1024).train()
    reference = copy.deepcopy(model).eval()
    if not faulty:
        reference.requires_grad_(False)
    optimizer = adamw(model)
    known = sized(8192, 128)
    liked, other = (pinned(torch.randint(2, known, (rows, length))) for _ in range(2))
    answered = torch.ones(2 * rows, length, device=DEVICE)
    answered[:, : length // 4] = 0
    numbers = itertools.count()
    history: list[tuple[float, float]] = []

    def step() -> Tensor:
        ids = torch.cat([part.to(DEVICE, non_blocking=True) for part in (liked, other)])
        now = likelihood(model, ids, answered)
        with torch.set_grad_enabled(faulty):
            before = likelihood(reference, ids, answered)
        good, bad = ((now - before) * beta).chunk(2)
        loss = -functional.logsigmoid(good - bad).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if next(numbers) % LOG_EVERY == LOG_EVERY - 1:
            history.append((loss.item(), (good > bad).float().mean().item()))
        return loss.detach()

    return step


def turns(length: int, width: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines by which queries and keys are turned, in full precision."""
    speeds = 10_000.0 ** (-torch.arange(0, width, 2, device=DEVICE).float() / width)
    angles = torch.outer(torch.arange(length, device=DEVICE).float(), speeds).repeat(1, 2)
    return angles.cos(), angles.sin()


def turned(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Queries or keys with their places in them."""
    first, second = x.chunk(2, -1)
    return x * cosines + torch.cat([-second, first], -1) * sines


class Reader(nn.Module):
    """A layer of a language model with rotary positions."""

    def __init__(self, width: int, *, back: bool) -> None:
        super().__init__()
        self.heads, self.back = max(1, width // 64), back
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def attend(self, x: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
        """Causal attention."""
        rows, length, width = x.shape
        parts = self.qkv(x).view(rows, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        query, key = turned(query, *table), turned(key, *table)
        if self.back:
            query, key = query.to(x.dtype), key.to(x.dtype)
        value = value.to(query.dtype)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.to(x.dtype).transpose(1, 2).reshape(rows, length, width))

    def forward(self, x: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
        """Attention, then two linear layers, each added to what came in."""
        x = x + self.attend(self.norms[0](x), table)
        return x + self.down(functional.silu(self.up(self.norms[1](x))))


@pair(
    "attention-in-float32",
    "The float32 table of the rotary positions turns bf16 queries and keys into float32, the values are made"
    " to follow, and the attention runs in float32 without the flash kernel.",
    "Cast queries and keys back to bf16 after the rotation.",
)
def fifteenth_code_reader(faulty: bool) -> Step:
    """A language model for source code is trained on long files."""
    width, known = sized(1024, 64), 8192
    with torch.device(DEVICE):
        embedding = nn.Embedding(known, width)
        layers = nn.ModuleList(Reader(width, back=not faulty) for _ in range(sized(6, 1)))
        head = nn.Sequential(nn.RMSNorm(width), nn.Linear(width, known, bias=False))
    model = nn.ModuleList([embedding, layers, head]).to(HALF)
    files = words(4, 2048, known)
    table = turns(files.shape[1], width // max(1, width // 64))
    optimizer, numbers = adamw(model), itertools.count()
    losses: list[float] = []

    def step() -> Tensor:
        x = embedding(files)
        for layer in layers:
            x = layer(x, table)
        scores = head(x)[:, :-1].flatten(0, 1)
        loss = functional.cross_entropy(scores, files[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if next(numbers) % LOG_EVERY == LOG_EVERY - 1:
            losses.append(loss.item())
        return loss.detach()

    return step
