"""Services that answer requests: a search by meaning and a sorter of messages on a language model."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import torch
from benchmarks.faults.library_models import halved, llama, noise, tokens
from benchmarks.faults.models import DEVICE, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional

# ---------------------------------------------------------------- a search by meaning


@dataclass
class Latencies:
    """How long the last requests took."""

    seconds: list[float] = field(default_factory=list)

    def add(self, seconds: float) -> None:
        """Keeps the last thousand."""
        self.seconds.append(seconds)
        del self.seconds[:-1000]


def cos_sim(a: Tensor, b: Tensor) -> Tensor:
    """The cosine of every row of a with every row of b, as sentence_transformers.util has it."""
    a_norm = functional.normalize(a, p=2, dim=1)
    b_norm = functional.normalize(b, p=2, dim=1)
    return torch.mm(a_norm, b_norm.transpose(0, 1))


def dot_score(a: Tensor, b: Tensor) -> Tensor:
    """The product of every row of a with every row of b."""
    return torch.mm(a, b.transpose(0, 1))


class SearchService:
    """Finds the passages that are nearest in meaning to a question."""

    def __init__(self, encoder: nn.Module, passages: Tensor, *, top: int, unit: bool) -> None:
        self.encoder = encoder
        self.top = top
        self.unit = unit
        self.passages = functional.normalize(passages, p=2, dim=1) if unit else passages
        self.latencies = Latencies()

    def encode(self, ids: Tensor, mask: Tensor) -> Tensor:
        """The mean of the token states of each question."""
        states = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state.float()
        weight = mask[..., None].float()
        return (states * weight).sum(1) / weight.sum(1).clamp(min=1e-9)

    @torch.inference_mode()
    def search(self, ids: Tensor, mask: Tensor) -> list[list[dict[str, Any]]]:
        """The best passages of every question."""
        started = time.perf_counter()
        questions = self.encode(ids.to(DEVICE), mask.to(DEVICE))
        if self.unit:
            scores = dot_score(functional.normalize(questions, p=2, dim=1), self.passages)
        else:
            scores = cos_sim(questions, self.passages)
        best = torch.topk(scores, self.top, dim=1)
        found = [
            [{"corpus_id": place, "score": score} for place, score in zip(places, values, strict=True)]
            for places, values in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]
        self.latencies.add(time.perf_counter() - started)
        return found


@pair(
    "corpus-normalized-for-every-query",
    "cos_sim(questions, passages) divides all two million stored vectors by their lengths for every request.",
    "The stored vectors are normalized once when the service starts, and a request is a product.",
)
def policy_lookup(faulty: bool) -> Step:
    """Employees ask what the rules of the house say."""
    from transformers import BertConfig, BertModel

    width, rows, length = sized(384, 64), sized(16, 2), sized(48, 8)
    config = BertConfig(
        vocab_size=sized(30_528, 256),
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=sized(6, 1),
        num_attention_heads=sized(12, 2),
    )
    encoder = halved(BertModel(config, add_pooling_layer=False)).eval()
    passages = 3.0 * noise(sized(2_000_000, 100), width, dtype=torch.float32)
    service = SearchService(encoder, passages, top=10, unit=not faulty)
    del passages
    ids = torch.randint(0, config.vocab_size, (rows, length))
    mask = torch.ones_like(ids)

    def step() -> None:
        service.search(ids, mask)

    return step


# ---------------------------------------------------------------- a language model that sorts messages

INTENTS = 12


class IntentRouter:
    """Puts examples before every message and reads the scores of the labels' first tokens."""

    def __init__(self, model: nn.Module, examples: Tensor, rows: int) -> None:
        self.model = model
        self.examples = examples
        self.rows = rows
        self.labels = torch.arange(INTENTS, device=DEVICE) + 20

    @torch.inference_mode()
    def __call__(self, messages: Tensor) -> list[int]:
        """The intent of each message."""
        prompts = torch.cat([self.examples.expand(self.rows, -1), messages], 1)
        scores = self.model(input_ids=prompts, use_cache=False, logits_to_keep=1).logits[:, -1]
        return scores[:, self.labels].argmax(-1).tolist()


class KeptIntentRouter(IntentRouter):
    """The same, with the keys and values of the examples kept between requests."""

    def __init__(self, model: nn.Module, examples: Tensor, rows: int) -> None:
        from transformers import DynamicCache

        super().__init__(model, examples, rows)
        self.cache = DynamicCache()
        with torch.inference_mode():
            prompts = examples.expand(rows, -1)
            model(input_ids=prompts, past_key_values=self.cache, use_cache=True, logits_to_keep=1)

    @torch.inference_mode()
    def __call__(self, messages: Tensor) -> list[int]:
        """The intent of each message."""
        found = self.model(input_ids=messages, past_key_values=self.cache, use_cache=True, logits_to_keep=1)
        self.cache.crop(-messages.shape[1])
        return found.logits[:, -1][:, self.labels].argmax(-1).tolist()


@pair(
    "shared-prompt-prefix-recomputed",
    "Every message is sent with the same few-shot examples before it, and the model reads them anew.",
    "The keys and values of the examples are computed once and kept; a request runs its own tokens alone.",
)
def intent_router(faulty: bool) -> Step:
    """A language model tells what the writers of messages want."""
    rows, examples, length = sized(16, 2), sized(640, 24), sized(96, 8)
    model = llama(16, 2048).eval().requires_grad_(False)
    shown = tokens(sized(8192, 128), 1, examples)
    router = (IntentRouter if faulty else KeptIntentRouter)(model, shown, rows)
    inbox = [torch.randint(0, sized(8192, 128), (rows, length)) for _ in range(8)]
    counts = [0] * INTENTS
    turn = 0

    def step() -> None:
        nonlocal turn
        messages = inbox[turn % len(inbox)].to(DEVICE)
        turn += 1
        for intent in router(messages):
            counts[intent] += 1

    return step
