"""Programs that write text token by token, two with a mistake and one that is well tuned."""

from __future__ import annotations

from typing import Any

import torch
from benchmarks.faults.models import DEVICE, HALF, graphed, sized
from benchmarks.faults.registry import Step, healthy, pair
from benchmarks.faults.third_text import sentences, word_tokenizer
from torch import Tensor, nn
from torch.nn import functional

TOKENS_PER_STEP = 8


# ---------------------------------------------------------------- stop words


def stopper(tokenizer: Any, stops: list[str], *, by_text: bool) -> Any:
    """Tells generate which rows have written a stop word: from the whole text, or from the last token."""
    from transformers import StoppingCriteria

    class StopInText(StoppingCriteria):
        """Decodes what has been written so far and looks for the words."""

        def __init__(self, start: int) -> None:
            self.start = start

        def __call__(self, input_ids: Tensor, _scores: Tensor, **_: Any) -> Tensor:
            written = [text.split()[self.start :] for text in tokenizer.batch_decode(input_ids)]
            found = [any(stop in words for stop in stops) for words in written]
            return torch.tensor(found, device=input_ids.device)

    class StopAtToken(StoppingCriteria):
        """Compares the tokens written so far with the words' own."""

        def __init__(self, start: int) -> None:
            self.start = start
            self.ids = torch.tensor(tokenizer.convert_tokens_to_ids(stops), device=DEVICE)

        def __call__(self, input_ids: Tensor, _scores: Tensor, **_: Any) -> Tensor:
            return torch.isin(input_ids[:, self.start :], self.ids).any(-1)

    return StopInText if by_text else StopAtToken


@pair(
    "whole-text-decoded-for-every-token",
    "Generates with a stopping rule that decodes the prompt and the answer to text again after every token.",
    "Compare the new token ids with the ids of the stop words on the device.",
)
def third_stop_words(faulty: bool) -> Step:
    """Answers to a batch of prompts with GPT-2 and stop words; one step writes sixteen tokens."""
    from transformers import GPT2Config, GPT2LMHeadModel, StoppingCriteriaList

    tokenizer, words = word_tokenizer(sized(20000, 200))
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_embd=sized(1024, 32),
        n_layer=sized(12, 1),
        n_head=sized(16, 2),
        n_positions=1024,
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=0,
    )
    model = GPT2LMHeadModel(config).to(DEVICE, HALF).eval()
    length = sized(256, 12)
    texts = sentences(words, sized(16, 2), length, length)
    batch = tokenizer(texts, padding=True, return_tensors="pt").to(DEVICE)
    make = stopper(tokenizer, words[:3], by_text=faulty)
    rules = StoppingCriteriaList([make(batch["input_ids"].shape[1])])

    def step() -> Tensor:
        return model.generate(
            input_ids=batch["input_ids"],
            attention_mask=batch["attention_mask"],
            max_new_tokens=sized(16, 3),
            do_sample=False,
            stopping_criteria=rules,
        )

    return step


# ---------------------------------------------------------------- grouped heads


class GroupedLayer(nn.Module):
    """A layer of a decoder whose query heads share keys and values, with a cache of fixed size."""

    def __init__(self, width: int, inner: int, rows: int, room: int, *, repeated: bool) -> None:
        super().__init__()
        self.size = sized(128, 16)
        self.heads = width // self.size
        self.shared = self.heads // 4
        self.repeated = repeated
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.qkv = nn.Linear(width, (self.heads + 2 * self.shared) * self.size, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate_up = nn.Linear(width, 2 * inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)
        for name in ("keys", "values"):
            self.register_buffer(name, torch.randn(rows, self.shared, room, self.size))

    def attend(self, x: Tensor, place: int) -> Tensor:
        """Attention of the newest token to all that are in the cache."""
        rows = len(x)
        parts = self.qkv(x).view(rows, 1, -1, self.size).transpose(1, 2)
        query, key, value = parts.split([self.heads, self.shared, self.shared], dim=1)
        self.keys[:, :, place : place + 1] = key
        self.values[:, :, place : place + 1] = value
        keys, values = self.keys[:, :, : place + 1], self.values[:, :, : place + 1]
        if self.repeated:
            keys, values = repeat_kv(keys, 4), repeat_kv(values, 4)
            mixed = functional.scaled_dot_product_attention(query, keys, values)
        else:
            mixed = functional.scaled_dot_product_attention(query, keys, values, enable_gqa=True)
        return self.out(mixed.transpose(1, 2).reshape(rows, 1, -1))

    def forward(self, x: Tensor, place: int) -> Tensor:
        """One token of every row through the layer."""
        x = x + self.attend(self.norms[0](x), place)
        gate, up = self.gate_up(self.norms[1](x)).chunk(2, dim=-1)
        return x + self.down(functional.silu(gate) * up)


def repeat_kv(states: Tensor, times: int) -> Tensor:
    """The keys or values once for every query head, as many model files do it."""
    rows, heads, length, size = states.shape
    wide = states[:, :, None].expand(rows, heads, times, length, size)
    return wide.reshape(rows, heads * times, length, size)


class GroupedDecoder(nn.Module):
    """A language model of such layers."""

    def __init__(self, layers: int, width: int, inner: int, rows: int, room: int, *, repeated: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(sized(32000, 128), width)
        self.layers = nn.ModuleList(
            GroupedLayer(width, inner, rows, room, repeated=repeated) for _ in range(layers)
        )
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, sized(32000, 128), bias=False)

    def forward(self, token: Tensor, place: int) -> Tensor:
        """The next token of every row."""
        x = self.embedding(token)
        for layer in self.layers:
            x = layer(x, place)
        return self.head(self.norm(x)).argmax(-1)


def grouped_writer(*, rows: int, context: int, repeated: bool) -> Step:
    """A step that writes a few tokens after a context that is in the cache already."""
    rows, context = sized(rows, 2), sized(context, 12)
    with torch.device(DEVICE):
        model = GroupedDecoder(
            sized(12, 1),
            sized(4096, 64),
            sized(11008, 128),
            rows,
            context + TOKENS_PER_STEP,
            repeated=repeated,
        )
    model = model.to(HALF).eval()
    first = torch.zeros(rows, 1, dtype=torch.long, device=DEVICE)

    @torch.no_grad()
    def step() -> Tensor:
        token = first
        for turn in range(TOKENS_PER_STEP):
            token = model(token, context + turn)
        return token

    return step


@pair(
    "shared-heads-copied-before-attention",
    "Decodes with grouped-query attention and copies the cached keys and values for every query head first.",
    "Let the attention kernel share the heads (enable_gqa=True).",
)
def third_repeated_heads(faulty: bool) -> Step:
    """A decoder with repeat_kv as it is in many model files; one step writes eight tokens."""
    return grouped_writer(rows=8, context=1024, repeated=faulty)


@healthy("Decodes with grouped heads, a cache of fixed size and a CUDA graph of eight tokens.")
def third_graphed_decoder() -> Step:
    """The time is that of reading the weights."""
    return graphed(grouped_writer(rows=4, context=512, repeated=False))
