"""Tickets are judged by a language model that is asked whether they are urgent."""

from __future__ import annotations

import torch
from benchmarks.faults.library_models import llama, tokens
from benchmarks.faults.models import sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor

YES, NO = 17, 23


@pair(
    "scores-of-all-positions-for-the-last",
    "The head scores 128 thousand words at every position, of which only the last position is read.",
    "model(..., logits_to_keep=1).",
)
def eleventh_ticket_triage(faulty: bool) -> Step:
    """How urgent each of a batch of tickets is."""
    model = llama(8, 1024, words=128_256).eval()
    tickets = tokens(sized(100_000, 100), sized(32, 2), sized(512, 16))
    options = {} if faulty else {"logits_to_keep": 1}

    @torch.inference_mode()
    def step() -> Tensor:
        logits = model(input_ids=tickets, use_cache=False, **options).logits
        answers = logits[:, -1, [YES, NO]].float()
        return answers.softmax(-1)[:, 0]

    return step
