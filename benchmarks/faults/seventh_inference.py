"""Services: one that tells whether a passage answers a question, and one that turns texts into vectors."""

from __future__ import annotations

from typing import Any

import torch
from benchmarks.faults.library_models import autocast, halved, tokens
from benchmarks.faults.models import DEVICE, HALF, sized
from benchmarks.faults.registry import Step, pair
from torch.nn import functional


@pair(
    "scores-of-words-nobody-reads",
    "A reranker as on its model card: model(**batch).logits[:, -1, :], the head runs over all positions.",
    "logits_to_keep=1.",
)
def seventh_passage_judge(faulty: bool) -> Step:
    """A Qwen says yes or no to each passage."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=sized(151_936, 128),
        hidden_size=sized(1024, 64),
        intermediate_size=sized(3072, 128),
        num_hidden_layers=sized(8, 1),
        num_attention_heads=sized(16, 2),
        num_key_value_heads=sized(8, 1),
        head_dim=sized(128, 32),
        tie_word_embeddings=True,
        use_cache=False,
        attn_implementation="sdpa",
    )
    with torch.device(DEVICE):
        model = halved(Qwen3ForCausalLM(config)).eval()
    batch = {"input_ids": tokens(128, sized(16, 2), sized(512, 16))}
    yes, no = 9, 5
    options: dict[str, Any] = {} if faulty else {"logits_to_keep": 1}

    @torch.inference_mode()
    def step() -> list[float]:
        scores = model(**batch, **options).logits[:, -1, :]
        both = torch.stack([scores[:, no], scores[:, yes]], dim=1)
        found: list[float] = functional.log_softmax(both.float(), dim=1)[:, 1].exp().tolist()
        return found

    return step


@pair(
    "weights-cast-in-every-request",
    "A service keeps its weights in fp32 and runs every request under torch.autocast(bfloat16).",
    "The model is cast to bf16 once, without autocast.",
)
def seventh_vector_service(faulty: bool) -> Step:
    """A language model turns short questions into vectors."""
    from transformers import MistralConfig, MistralModel

    width = sized(4096, 64)
    config = MistralConfig(
        vocab_size=sized(32_000, 128),
        hidden_size=width,
        intermediate_size=sized(14_336, 128),
        num_hidden_layers=sized(10, 1),
        num_attention_heads=sized(32, 2),
        num_key_value_heads=sized(8, 1),
        sliding_window=None,
        use_cache=False,
        attn_implementation="sdpa",
    )
    with torch.device(DEVICE):
        model: Any = MistralModel(config)
    model = model.to(DEVICE, torch.float32 if faulty else HALF).eval()
    batch = {"input_ids": tokens(128, sized(8, 2), sized(40, 8))}

    @torch.inference_mode()
    def step() -> Any:
        with autocast(enabled=faulty):
            hidden = model(**batch).last_hidden_state
        return functional.normalize(hidden[:, -1].float(), dim=-1).cpu().numpy()

    return step
