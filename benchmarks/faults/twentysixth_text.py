"""Training of language models: adapters, rewards, packed documents and a plain corpus."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from benchmarks.faults.library_models import llama, tokens
from benchmarks.faults.models import DEVICE, HALF, adamw, gpt, next_word_loss, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

# ---------------------------------------------------------------- adapters


@dataclass(frozen=True)
class Recipe:
    """How an adapter is tuned."""

    rank: int = 16
    alpha: int = 32
    rate: float = 2e-4
    save_memory: bool = True


def with_adapters(base: Any, recipe: Recipe) -> Any:
    """The model with low-rank adapters on all of its projections."""
    from peft import LoraConfig, get_peft_model

    if recipe.save_memory:
        base.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        base.enable_input_require_grads()
    base.config.use_cache = False
    settings = LoraConfig(
        r=recipe.rank,
        lora_alpha=recipe.alpha,
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
        task_type="CAUSAL_LM",
    )
    return get_peft_model(base, settings, autocast_adapter_dtype=False).train()


def answers_only(ids: Tensor, asked: int) -> Tensor:
    """Labels that leave the question out."""
    labels = ids.clone()
    labels[:, :asked] = -100
    return labels


@pair(
    "checkpointing-with-memory-to-spare",
    "A 1B model is tuned by LoRA with gradient checkpointing on, though its activations fit many times over.",
    "The same recipe without checkpointing: the forward pass is run once.",
)
def twentysixth_claims_adjuster(faulty: bool) -> Step:
    """A language model is tuned to answer letters about insurance claims."""
    words = sized(32_000, 128)
    model = with_adapters(llama(16, 2048, words=words), Recipe(save_memory=faulty))
    tuned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(tuned, lr=2e-4, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda turn: min(1.0, (turn + 1) / 100))
    ids = tokens(words, sized(8, 2), sized(1024, 16))
    labels = answers_only(ids, sized(384, 4))
    shown = torch.zeros((), device=DEVICE)

    def step() -> None:
        loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        nn.utils.clip_grad_norm_(tuned, 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        shown.lerp_(loss.detach().float(), 0.05)

    return step


# ---------------------------------------------------------------- rewards


@dataclass
class Rollouts:
    """Questions with sampled solutions, their rewards and how likely they were when they were sampled."""

    ids: Tensor
    solution: int
    rewards: Tensor
    sampled: Tensor
    reference: Tensor


def rollouts(words: int, groups: int, each: int, asked: int, solution: int) -> Rollouts:
    """A batch of them, as an engine for inference returns it."""
    rows = groups * each
    sampled = -torch.rand(rows, solution, device=DEVICE) * 4
    rewards = torch.rand(groups, each, device=DEVICE).round()
    return Rollouts(tokens(words, rows, asked + solution), solution, rewards, sampled, sampled - 0.05)


def advantages_in_groups(rewards: Tensor) -> Tensor:
    """How much better a solution is than the others of the same question."""
    centred = rewards - rewards.mean(1, keepdim=True)
    return (centred / (rewards.std(1, keepdim=True) + 1e-4)).flatten()


def chosen_chances(scores: Tensor, ids: Tensor) -> Tensor:
    """Logarithms of the chances of the tokens that were chosen."""
    return scores.float().log_softmax(-1).gather(-1, ids[..., None])[..., 0]


def chances_by_slicing(model: Any, batch: Rollouts) -> Tensor:
    """Chances of the solutions' tokens."""
    scores = model(input_ids=batch.ids).logits
    return chosen_chances(scores[:, :-1], batch.ids[:, 1:])[:, -batch.solution :]


def chances_of_solutions(model: Any, batch: Rollouts) -> Tensor:
    """Chances of the solutions' tokens."""
    scores = model(input_ids=batch.ids, logits_to_keep=batch.solution + 1).logits
    return chosen_chances(scores[:, :-1], batch.ids[:, -batch.solution :])


def clipped_loss(now: Tensor, batch: Rollouts) -> Tensor:
    """The clipped objective of the policy, with a penalty for leaving the reference."""
    gained = advantages_in_groups(batch.rewards)[:, None]
    ratio = (now - batch.sampled).exp()
    kept = torch.minimum(ratio * gained, ratio.clamp(0.8, 1.2) * gained)
    gap = batch.reference - now
    return (0.04 * (gap.exp() - gap - 1) - kept).mean()


@pair(
    "logits-of-the-prompt-computed-and-dropped",
    "GRPO computes scores of all words at every prompt token, and uses those of the solution only.",
    "logits_to_keep: the head and the log-softmax see only the positions of the solution.",
)
def twentysixth_math_coach(faulty: bool) -> Step:
    """A language model is rewarded for solving school mathematics."""
    words = sized(128_000, 128)
    model = llama(12, 1024, words=words)
    model.config.use_cache = False
    optimizer = adamw(model)
    batch = rollouts(words, sized(2, 1), sized(4, 2), sized(1536, 12), sized(256, 4))
    chances: Callable[[Any, Rollouts], Tensor] = chances_by_slicing if faulty else chances_of_solutions

    def step() -> None:
        loss = clipped_loss(chances(model, batch), batch)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()

    return step


# ---------------------------------------------------------------- packed documents

Mixer = Callable[[Tensor, Tensor, Tensor], Tensor]


class DeedLayer(nn.Module):
    """A decoder layer that is told how positions may be mixed."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before = nn.RMSNorm(width)
        self.between = nn.RMSNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, mix: Mixer) -> Tensor:
        """Attention, then two linear layers."""
        rows, length, width = x.shape
        parts = self.qkv(self.before(x)).view(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = mix(parts[0], parts[1], parts[2])
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, width))
        return x + self.feed(self.between(x))


class DeedModel(nn.Module):
    """A language model of packed documents."""

    def __init__(self, layers: int, width: int, words: int, length: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.position = nn.Embedding(length, width)
        self.layers = nn.ModuleList(DeedLayer(width, max(1, width // 64)) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, ids: Tensor, places: Tensor, mix: Mixer) -> Tensor:
        """Scores of the next word."""
        x = self.embedding(ids) + self.position(places)
        for layer in self.layers:
            x = layer(x, mix)
        return self.head(self.norm(x))


def packed(rows: int, length: int, typical: int) -> tuple[Tensor, Tensor]:
    """For every position, the number of its document and its place in it."""
    torch.manual_seed(26)
    documents, places = [], []
    for _ in range(rows):
        sizes: list[int] = []
        while sum(sizes) < length:
            sizes.append(int(torch.randint(typical // 2, 2 * typical, ())))
        numbers = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))[:length]
        documents.append(numbers)
        places.append(torch.cat([torch.arange(size) for size in sizes])[:length])
    return torch.stack(documents).to(DEVICE), torch.stack(places).to(DEVICE)


def masked_mixer(documents: Tensor) -> Mixer:
    """Causal attention within documents."""
    length = documents.shape[1]
    same = documents[:, None, :, None] == documents[:, None, None, :]
    allowed = same & torch.ones(length, length, dtype=torch.bool, device=documents.device).tril()

    def mix(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(query, key, value, attn_mask=allowed)

    return mix


def blocked_mixer(documents: Tensor) -> Mixer:
    """Causal attention within documents."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def allowed(row: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (documents[row, query] == documents[row, key]) & (query >= key)

    rows, length = documents.shape
    blocks = create_block_mask(allowed, rows, None, length, length, device=DEVICE)
    compiled: Any = torch.compile(flex_attention)

    def mix(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        mixed: Tensor = compiled(query, key, value, block_mask=blocks)
        return mixed

    return mix


@pair(
    "dense-mask-for-packed-documents",
    "Short documents packed into rows of 8192 are kept apart by a dense mask, so all pairs are computed.",
    "flex_attention with a block mask of the documents skips the blocks between them.",
)
def twentysixth_notary_archive(faulty: bool) -> Step:
    """A language model is pretrained on notarial deeds."""
    words, length, width = sized(16_384, 128), sized(8192, 32), sized(1024, 64)
    with torch.device(DEVICE):
        model = DeedModel(sized(8, 1), width, words, length).to(HALF)
    optimizer = adamw(model)
    documents, places = packed(sized(2, 2), length, sized(500, 6))
    mix = masked_mixer(documents) if faulty or DEVICE == "cpu" else blocked_mixer(documents)
    ids = tokens(words, sized(2, 2), length)
    ends = places.roll(-1, 1) == 0
    labels = ids.roll(-1, 1).masked_fill(ends, -100)

    def step() -> None:
        scores = model(ids, places, mix)
        loss = functional.cross_entropy(scores.flatten(0, 1), labels.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


# ---------------------------------------------------------------- a plain corpus


class Leases(Dataset[Tensor]):
    """Pieces of leases, already in tokens."""

    def __init__(self, rows: int, length: int, words: int) -> None:
        self.ids = torch.randint(0, words, (rows, length))

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, place: int) -> Tensor:
        return self.ids[place]


def over_and_over(loader: DataLoader[Tensor]) -> Iterator[Tensor]:
    """The batches of epoch after epoch."""
    while True:
        yield from loader


@pair(
    "loader-without-workers",
    "Tokens in memory are batched by a DataLoader without workers or pinned memory.",
    "Four persistent workers and pinned memory; the device was never waiting for the batches.",
    kind="fair",
)
def twentysixth_lease_writer(faulty: bool) -> Step:
    """A language model learns to write leases."""
    words, rows, length = sized(16_384, 128), sized(8, 2), sized(1024, 16)
    model = gpt(12, 1536, words=words)
    optimizer = adamw(model)
    leases = Leases(sized(8192, 32), length, words)
    workers = 0 if faulty else sized(4, 1)
    loader = DataLoader(
        leases,
        batch_size=rows,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        persistent_workers=workers > 0,
        pin_memory=DEVICE == "cuda" and not faulty,
    )
    batches = over_and_over(loader)

    def step() -> None:
        ids = next(batches).to(DEVICE, non_blocking=True)
        loss = next_word_loss(model, ids)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step
