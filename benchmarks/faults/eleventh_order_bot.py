"""A bot that takes orders: a Llama of transformers writes until it has said a closing phrase."""

from __future__ import annotations

from typing import Any

import torch
from benchmarks.faults.library_models import WORDS, llama, tokenizer, tokens
from benchmarks.faults.models import sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor

CLOSING = "word7 word11"


@pair(
    "texts-decoded-after-every-word",
    "The stopping criterion decodes the whole of every text after each word and looks at its end.",
    "It compares the last ids with those of the phrase, on the device.",
    light_steps=2,
)
def eleventh_order_bot(faulty: bool) -> Step:
    """Answers to a batch of conversations are written."""
    from transformers import StoppingCriteria, StoppingCriteriaList

    coder = tokenizer()
    rows, length, count = sized(24, 2), sized(640, 8), sized(24, 3)
    model = llama(6, 1024, words=WORDS + 2).eval()
    prompt = tokens(sized(WORDS, 100), rows, length) + 2
    closing = torch.tensor(coder(CLOSING)["input_ids"], device=prompt.device)

    class SaidInText(StoppingCriteria):
        """Whether each text ends with the phrase."""

        def __call__(self, input_ids: Tensor, *_: Any, **__: Any) -> Tensor:
            texts = coder.batch_decode(input_ids, skip_special_tokens=True)
            return torch.tensor([text.endswith(CLOSING) for text in texts], device=input_ids.device)

    class SaidInIds(StoppingCriteria):
        """Whether each text ends with the phrase."""

        def __call__(self, input_ids: Tensor, *_: Any, **__: Any) -> Tensor:
            return (input_ids[:, -closing.numel() :] == closing).all(-1)

    criteria = StoppingCriteriaList([SaidInText() if faulty else SaidInIds()])

    def step() -> Tensor:
        written: Tensor = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=count,
            do_sample=False,
            stopping_criteria=criteria,
        )
        return written

    return step
