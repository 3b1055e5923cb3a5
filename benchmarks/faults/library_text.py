"""Programs on transformers: language models that learn and write."""

from __future__ import annotations

import random
import tempfile
from typing import Any

import torch
from benchmarks.faults.library_models import autocast, bert, halved, llama, tokenizer, tokens, training
from benchmarks.faults.models import DEVICE, adamw, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor


@pair(
    "attention-by-matrix-products",
    'A Llama is trained with attn_implementation="eager" over 2048 positions.',
    'attn_implementation="sdpa".',
)
def library_llama_eager_attention(faulty: bool) -> Step:
    """Scores of all pairs of positions are written, cast to fp32, and read again."""
    model = llama(4, 1024, attention="eager" if faulty else "sdpa")
    ids = tokens(128, 4, sized(2048, 16))
    return training(model, lambda: model(input_ids=ids, labels=ids).loss)


def written(model: Any, prompt: Tensor, count: int, **options: Any) -> Step:
    """A step that writes some words after a prompt."""
    model.eval()
    mask = torch.ones_like(prompt)

    def step() -> None:
        model.generate(
            prompt,
            attention_mask=mask,
            max_new_tokens=count,
            min_new_tokens=count,
            do_sample=False,
            **options,
        )

    return step


@pair(
    "keys-and-values-not-kept",
    "A Llama writes with generate(use_cache=False), left from training with checkpointing.",
    "use_cache=True.",
    light_steps=2,
)
def library_generate_without_cache(faulty: bool) -> Step:
    """The whole text goes through the model again for every word."""
    model = llama(3, 1024)
    return written(model, tokens(128, sized(32, 2), sized(1024, 8)), sized(8, 3), use_cache=not faulty)


@pair(
    "decoding-launched-from-python",
    "A small Llama writes with generate() and its default cache, which grows with every word.",
    'cache_implementation="static", for which generate() compiles the model.',
    light_steps=2,
)
def library_generate_growing_cache(faulty: bool) -> Step:
    """Short kernels, launched one by one; the cache is copied for every word."""
    from transformers import CompileConfig

    options: dict[str, Any] = {}
    if not faulty:
        compiled = CompileConfig(mode="reduce-overhead", fullgraph=False, dynamic=False)
        options = {"cache_implementation": "static", "compile_config": compiled}
    return written(llama(4, 1024), tokens(128, 1, sized(64, 8)), sized(16, 3), **options)


@pair(
    "mostly-padding",
    'Texts of 20 to 90 words are padded to 512 by DataCollatorWithPadding(padding="max_length").',
    "They are padded to the longest of their batch.",
)
def library_padded_to_max_length(faulty: bool) -> Step:
    """Nine of ten words that go through the encoder are padding."""
    from transformers import DataCollatorWithPadding

    rng = random.Random(1)
    longest, rows = sized(512, 32), sized(96, 4)
    texts = [
        {"input_ids": [rng.randrange(2, 200) for _ in range(rng.randint(longest // 25, longest // 6))]}
        for _ in range(rows)
    ]
    way: Any = "max_length" if faulty else "longest"
    collate = DataCollatorWithPadding(tokenizer(), padding=way, max_length=longest, pad_to_multiple_of=8)
    model = bert(6, 1024, attn_implementation="sdpa")
    labels = tokens(10, rows)

    def loss() -> Tensor:
        batch = {name: value.to(DEVICE, non_blocking=True) for name, value in collate(texts).items()}
        with autocast():
            found: Tensor = model(**batch, labels=labels).loss
        return found

    return training(model, loss)


@pair(
    "python-loop-over-experts",
    'A mixture of 32 experts is trained with experts_implementation="eager": a loop over the experts.',
    'experts_implementation="grouped_mm".',
    light_steps=2,
)
def library_experts_in_a_loop(faulty: bool) -> Step:
    """Each expert's rows are looked up with torch.where, then gathered, multiplied and added back."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    config = Qwen3MoeConfig(
        vocab_size=sized(8192, 128),
        hidden_size=sized(1024, 64),
        moe_intermediate_size=sized(512, 64),
        num_hidden_layers=sized(3, 1),
        num_attention_heads=sized(16, 2),
        num_key_value_heads=sized(4, 1),
        head_dim=sized(64, 32),
        num_experts=sized(32, 4),
        num_experts_per_tok=2,
        attn_implementation="sdpa",
        experts_implementation="eager" if faulty else "grouped_mm",
    )
    model = halved(Qwen3MoeForCausalLM(config))
    ids = tokens(128, 4, sized(1024, 16))
    return training(model, lambda: model(input_ids=ids, labels=ids).loss)


def trainer_of(model: Any, **options: Any) -> Any:
    """The Trainer of transformers, ready to be asked for steps one by one."""
    from transformers import Trainer, TrainingArguments

    folder = tempfile.mkdtemp()
    also = {name: options.pop(name) for name in list(options) if name in TRAINER_OPTIONS}
    arguments = TrainingArguments(
        folder,
        report_to=[],
        disable_tqdm=True,
        use_cpu=DEVICE == "cpu",
        optim="adamw_torch_fused",
        **options,
    )
    return Trainer(model, arguments, **also)


TRAINER_OPTIONS = ("compute_metrics", "preprocess_logits_for_metrics", "eval_dataset")


@pair(
    "fp32-training",
    "The Trainer trains an encoder with default TrainingArguments: everything is fp32.",
    "TrainingArguments(bf16=True).",
)
def library_trainer_in_fp32(faulty: bool) -> Step:
    """The products do not use the tensor cores."""
    model = bert(4, 1024, attn_implementation="sdpa")
    trainer = trainer_of(model, bf16=not faulty and DEVICE == "cuda", per_device_train_batch_size=32)
    trainer.create_optimizer_and_scheduler(1_000_000)
    trainer.current_gradient_accumulation_steps = 1
    run, optimizer = trainer.accelerator.prepare(model, trainer.optimizer)
    rows, length = sized(32, 2), sized(256, 16)
    batch = {"input_ids": tokens(200, rows, length), "labels": tokens(10, rows)}

    def step() -> None:
        trainer.training_step(run, dict(batch))
        trainer.accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        trainer.lr_scheduler.step()
        run.zero_grad()

    return step


@pair(
    "checkpointing-although-memory-is-free",
    "A T5 is trained with gradient_checkpointing_enable() on a device that is nearly empty.",
    "Without it.",
)
def library_t5_checkpointing(faulty: bool) -> Step:
    """The forward pass of every block is run twice."""
    from transformers import T5Config, T5ForConditionalGeneration

    width = sized(1024, 64)
    config = T5Config(
        vocab_size=sized(8192, 128),
        d_model=width,
        d_kv=64,
        d_ff=4 * width,
        num_layers=sized(4, 1),
        num_decoder_layers=sized(3, 1),
        num_heads=max(1, width // 64),
        feed_forward_proj="gated-gelu",
        dropout_rate=0.0,
        decoder_start_token_id=0,
        use_cache=False,
    )
    model = halved(T5ForConditionalGeneration(config)).train()
    if faulty:
        model.gradient_checkpointing_enable()
    rows, length = sized(32, 2), sized(512, 16)
    ids, labels = tokens(128, rows, length), tokens(128, rows, length // 2)
    return training(model, lambda: model(input_ids=ids, labels=labels).loss, adamw(model))


@pair(
    "logits-gathered-on-the-cpu",
    "trainer.evaluate() with compute_metrics: the scores of all words go to the CPU, where numpy looks"
    " for the best.",
    "preprocess_logits_for_metrics=argmax, on the device.",
)
def library_trainer_evaluate(faulty: bool) -> Step:
    """Thousands of scores a position are gathered, copied and joined for one number each."""
    from transformers import PrinterCallback

    model = llama(4, 1024, words=16_384)
    rows, length = sized(16, 2), sized(128, 16)
    ids = torch.randint(0, 128, (2 * rows, length))
    examples = [{"input_ids": row, "labels": row} for row in ids]

    def accuracy(found: Any) -> dict[str, float]:
        guesses = found.predictions.argmax(-1) if faulty else found.predictions
        return {"accuracy": float((guesses[:, :-1] == found.label_ids[:, 1:]).mean())}

    def best(scores: Tensor, _: Tensor) -> Tensor:
        return scores.argmax(-1)

    trainer = trainer_of(
        model,
        per_device_eval_batch_size=rows,
        eval_dataset=examples,
        compute_metrics=accuracy,
        preprocess_logits_for_metrics=None if faulty else best,
    )
    trainer.remove_callback(PrinterCallback)

    def step() -> None:
        trainer.evaluate()

    return step
