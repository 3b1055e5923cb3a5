"""A training with the Trainer of transformers: the run folder is its argument, `fail` makes it fail once."""

from __future__ import annotations

import sys
import tempfile
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from stepscope.capture.frameworks.transformers import StepscopeCallback

out, *more = sys.argv[1:]


class Tokens(torch.utils.data.Dataset[Any]):  # type: ignore[misc]
    """Random tokens; one item of them may be broken."""

    reads = 0

    def __len__(self) -> int:
        return 1000

    def __getitem__(self, index: int) -> Any:
        Tokens.reads += 1
        if more == ["fail"] and Tokens.reads == 12 * 4 - 1:
            raise ValueError("a fault of the program")
        tokens = torch.randint(0, 50, (8,))
        return {"input_ids": tokens, "labels": tokens}


model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=8, n_embd=16, n_layer=1, n_head=2))
callback = StepscopeCallback(steps=3, skip=4, out=out)
arguments = TrainingArguments(
    output_dir=tempfile.mkdtemp(),
    max_steps=30,
    per_device_train_batch_size=2,
    gradient_accumulation_steps=2,
    use_cpu=True,
    report_to=[],
    save_strategy="no",
    disable_tqdm=True,
)
trainer = Trainer(model=model, args=arguments, train_dataset=Tokens(), callbacks=[callback])
try:
    trainer.train()
except ValueError as error:
    print("failed", error)
trainer.train()
print("trained", trainer.state.global_step, callback.profile.folder)
