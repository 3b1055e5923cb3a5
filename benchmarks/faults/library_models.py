"""What the programs on real libraries share: batches, small configurations and a step of training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from benchmarks.faults.models import DEVICE, HALF, adamw, sized
from benchmarks.faults.registry import Step
from torch import Tensor, nn


def noise(*shape: int, dtype: torch.dtype = HALF) -> Tensor:
    """A batch of normal numbers on the device."""
    return torch.randn(*shape, device=DEVICE, dtype=dtype)


def tokens(count: int, *shape: int) -> Tensor:
    """A batch of random ids on the device."""
    return torch.randint(0, count, shape, device=DEVICE)


def halved(model: nn.Module) -> Any:
    """The model on the device, in bf16 where there is one."""
    return model.to(DEVICE, HALF)


def autocast(*, enabled: bool = True) -> torch.autocast:
    """bf16 autocast, where there is a device."""
    return torch.autocast(DEVICE, torch.bfloat16, enabled=enabled and DEVICE == "cuda")


def training(
    model: nn.Module, loss_of: Callable[[], Tensor], optimizer: torch.optim.Optimizer | None = None
) -> Step:
    """A plain step of training."""
    chosen = optimizer or adamw(model)

    def step() -> None:
        loss_of().backward()
        chosen.step()
        chosen.zero_grad()

    return step


def llama(layers: int, width: int, *, words: int = 8192, **options: Any) -> Any:
    """A language model in the style of Llama, with random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    width = sized(width, 64)
    attention = options.pop("attention", "sdpa")
    config = LlamaConfig(
        vocab_size=sized(words, 128),
        hidden_size=width,
        intermediate_size=sized(options.pop("inner", 3 * width), 128),
        num_hidden_layers=sized(layers, 1),
        num_attention_heads=max(1, width // 64),
        num_key_value_heads=max(1, width // 256),
        max_position_embeddings=16384,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=None,
        attn_implementation=attention,
        **options,
    )
    return halved(LlamaForCausalLM(config))


def bert(layers: int, width: int, **options: Any) -> Any:
    """An encoder in the style of BERT that sorts texts into ten classes."""
    from transformers import BertConfig, BertForSequenceClassification

    width = sized(width, 64)
    config = BertConfig(
        vocab_size=sized(30_528, 256),
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=sized(layers, 1),
        num_attention_heads=max(1, width // 64),
        num_labels=10,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        **options,
    )
    return BertForSequenceClassification(config).to(DEVICE)


WORDS = 2000


def tokenizer() -> Any:
    """A fast tokenizer that knows two thousand made-up words."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    known = {"[PAD]": 0, "[UNK]": 1} | {f"word{number}": number + 2 for number in range(WORDS)}
    inner = Tokenizer(models.WordLevel(known, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="[PAD]", unk_token="[UNK]")
