"""Language models and encoders that learn, on transformers, lightning and torch's own attention."""

from __future__ import annotations

import random
from collections import defaultdict
from typing import Any

import torch
from benchmarks.faults.library_models import autocast, bert, llama, noise, tokens
from benchmarks.faults.models import DEVICE, HALF, adamw, pinned, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional

LAYER_DECAY = 0.9


def layer_of(name: str, layers: int) -> int:
    """How far from the head a weight lies: 0 for the head itself."""
    parts = name.split(".")
    if "layer" in parts:
        return layers - int(parts[parts.index("layer") + 1])
    return layers + 1 if "embeddings" in parts else 0


def groups_by_layer(model: nn.Module, layers: int, *, one_each: bool) -> list[dict[str, Any]]:
    """Groups of weights whose rates fall with the depth; biases and norms do not decay."""
    found: dict[Any, dict[str, Any]] = {}
    members: dict[Any, list[nn.Parameter]] = defaultdict(list)
    for name, weight in model.named_parameters():
        rate = 5e-5 * LAYER_DECAY ** layer_of(name, layers)
        decay = 0.01 if weight.ndim > 1 else 0.0
        key: Any = name if one_each else (rate, decay)
        members[key].append(weight)
        found[key] = {"lr": rate, "weight_decay": decay}
    return [{"params": members[key], **options} for key, options in found.items()]


@pair(
    "an-optimizer-group-for-every-weight",
    "Layer-wise rates are given by a group for each weight: two hundred groups, each updated by itself.",
    "Weights of the same rate and decay are in one group.",
)
def twelfth_toxicity_filter(faulty: bool) -> Step:
    """A small encoder is tuned to find rude remarks."""
    rows, length = sized(64, 2), sized(64, 16)
    model = bert(12, 384, attn_implementation="sdpa")
    layers = model.config.num_hidden_layers
    optimizer = torch.optim.AdamW(groups_by_layer(model, layers, one_each=faulty), fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda turn: min(1.0, (turn + 1) / 500))
    ids, labels = tokens(200, rows, length), tokens(10, rows)

    def step() -> Tensor:
        with autocast():
            loss: Tensor = model(input_ids=ids, labels=labels).loss
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


@pair(
    "scores-of-the-prompt-thrown-away",
    "The policy's scores over 128 thousand words are computed at all positions; those of the prompt are cut.",
    "logits_to_keep: the head runs at the positions of the answer alone.",
)
def twelfth_answer_grader(faulty: bool) -> Step:
    """A policy learns from graded answers to long prompts, as in GRPO."""
    rows, asked, answer = sized(12, 2), sized(896, 12), sized(128, 4)
    with torch.device(DEVICE):
        model = llama(6, 1024, words=128_000).train()
    ids = tokens(128, rows, asked + answer)
    answers = ids[:, asked:]
    gains = noise(rows, 1, dtype=torch.float32)
    optimizer = adamw(model)

    def chances() -> Tensor:
        if faulty:
            scores = model(input_ids=ids, use_cache=False).logits[:, asked - 1 : -1]
        else:
            scores = model(input_ids=ids, use_cache=False, logits_to_keep=answer + 1).logits[:, :-1]
        flat = functional.cross_entropy(scores.flatten(0, 1).float(), answers.flatten(), reduction="none")
        return -flat.view(rows, answer)

    def step() -> Tensor:
        now = chances()
        ratio = torch.exp(now - now.detach())
        loss = -torch.minimum(ratio * gains, ratio.clamp(0.8, 1.2) * gains).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


FIELDS = 24


class FieldTagger(nn.Module):
    """An encoder of words and their boxes that names the field each word belongs to."""

    def __init__(self, width: int, layers: int, known: int) -> None:
        super().__init__()
        self.words = nn.Embedding(known, width)
        self.boxes = nn.Linear(4, width)
        layer = nn.TransformerEncoderLayer(
            width, max(1, width // 64), 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, FIELDS)

    def forward(self, ids: Tensor, boxes: Tensor) -> Tensor:
        """Scores of the fields for every word."""
        return self.head(self.body(self.words(ids) + self.boxes(boxes)))


Page = list[dict[str, Any]]


def scanned_pages(count: int, length: int, known: int) -> list[Page]:
    """Pages as a reader of scans gives them: words with their boxes in points."""
    rng = random.Random(5)
    return [
        [
            {
                "word": rng.randrange(known),
                "box": [rng.uniform(0, 612), rng.uniform(0, 792), rng.uniform(0, 612), rng.uniform(0, 792)],
                "field": rng.randrange(FIELDS),
            }
            for _ in range(length)
        ]
        for _ in range(count)
    ]


def gathered(pages: list[Page]) -> list[Tensor]:
    """A batch of pages on the device; the host does not wait for it."""
    ids = torch.tensor([[word["word"] for word in page] for page in pages])
    boxes = torch.tensor(
        [[[edge / 792 for edge in word["box"]] for word in page] for page in pages], dtype=torch.float32
    )
    fields = torch.tensor([[word["field"] for word in page] for page in pages])
    return [pinned(column).to(DEVICE, non_blocking=True) for column in (ids, boxes, fields)]


@pair(
    "waiting-for-the-norm-of-the-gradients",
    "Fabric's clip_gradients() is left at error_if_nonfinite=True: the host waits for the norm before it can"
    " gather the next batch.",
    "error_if_nonfinite=False; the next batch is gathered while the device works.",
)
def twelfth_invoice_reader(faulty: bool) -> Step:
    """A tagger of invoices is trained with Lightning Fabric on pages gathered by the main process."""
    from lightning.fabric import Fabric

    rows, length, known = sized(64, 2), sized(256, 16), sized(20_000, 100)
    fabric = Fabric(
        accelerator="cuda" if DEVICE == "cuda" else "cpu",
        devices=1,
        precision="bf16-mixed" if DEVICE == "cuda" else "32-true",
    )
    tagger = FieldTagger(sized(1024, 64), sized(6, 1), known).to(DEVICE)
    model, optimizer = fabric.setup(tagger, adamw(tagger))
    pages = scanned_pages(4 * rows, length, known)
    rng = random.Random(7)

    def step() -> Tensor:
        ids, boxes, fields = gathered(rng.sample(pages, rows))
        scores = model(ids, boxes)
        loss = functional.cross_entropy(scores.flatten(0, 1).float(), fields.flatten())
        fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, max_norm=1.0, error_if_nonfinite=faulty)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


class PackedAttention(nn.Module):
    """Attention in which every document of a pack sees itself alone."""

    def __init__(self, width: int, heads: int, attend: Any) -> None:
        super().__init__()
        self.heads = heads
        self.attend = attend
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.inner = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, mask: Any) -> Tensor:
        """One layer over a pack."""
        rows, length, width = x.shape
        parts = self.qkv(self.norms[0](x)).view(rows, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = self.attend(query, key, value, block_mask=mask)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, width))
        return x + self.inner(self.norms[1](x))


@pair(
    "flex-attention-not-compiled",
    "flex_attention() is called without torch.compile: the scores of all pairs are written out.",
    "torch.compile(flex_attention): one fused kernel that skips the blocks of other documents.",
)
def twelfth_long_reader(faulty: bool) -> Step:
    """Packs of documents are embedded; each document sees its own past alone."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    rows, length, width = sized(4, 1), sized(2048, 128), sized(2048, 64)
    attend = flex_attention if faulty or DEVICE == "cpu" else torch.compile(flex_attention, dynamic=False)
    with torch.device(DEVICE):
        layers = nn.ModuleList(
            PackedAttention(width, max(1, width // 128), attend) for _ in range(sized(6, 1))
        ).to(HALF)
    document = torch.arange(length, device=DEVICE) // max(1, length // 5)
    packs = noise(rows, length, width)

    def own_past(_: Tensor, __: Tensor, here: Tensor, there: Tensor) -> Tensor:
        return (document[here] == document[there]) & (here >= there)

    mask = create_block_mask(own_past, None, None, length, length, device=DEVICE)

    def step() -> Tensor:
        x = packs
        with torch.no_grad():
            for layer in layers:
                x = layer(x, mask)
        return functional.normalize(x.float().mean(1), dim=-1)

    return step
