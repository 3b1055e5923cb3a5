"""Programs that train, score and write text with transformers, each with one mistake."""

from __future__ import annotations

from typing import Any

import torch
from benchmarks.faults.library_models import llama, tokens, training
from benchmarks.faults.models import DEVICE, HALF, adamw, sized
from benchmarks.faults.registry import Step, pair
from benchmarks.faults.third_text import sentences, word_tokenizer
from torch import Tensor

IGNORED = -100
"""A label that the loss leaves out."""


# ---------------------------------------------------------------- instruction tuning


@pair(
    "head-and-loss-over-the-masked-prompt",
    "Tunes a Llama with 128 thousand words on answers; scores are made for the prompts, too, then ignored.",
    "Give only the last positions to the head (logits_to_keep), with their labels.",
)
def fourth_prompt_scores(faulty: bool) -> Step:
    """Seven eighths of the positions are prompt: their labels are -100, but their scores are computed."""
    model = llama(8, 1536, words=128_256, inner=4096).train()
    rows, length, answer = sized(8, 2), sized(1024, 16), sized(128, 4)
    ids = tokens(model.config.vocab_size, rows, length)
    labels = ids.clone()
    labels[:, :-answer] = IGNORED
    kept = answer + 1  # the last word of the prompt tells the first of the answer

    def loss() -> Tensor:
        if faulty:
            return model(input_ids=ids, labels=labels, use_cache=False).loss
        last = labels[:, -kept:]
        return model(input_ids=ids, labels=last, logits_to_keep=kept, use_cache=False).loss

    return training(model, loss, adamw(model))


# ---------------------------------------------------------------- multiple choice


def chances(scores: Tensor, words: Tensor) -> Tensor:
    """The logarithm of the chance of all these words together, row by row."""
    return scores.float().log_softmax(-1).gather(-1, words.unsqueeze(-1)).sum((1, 2))


@pair(
    "shared-context-computed-for-every-option",
    "Scores six answers to a question as six rows, each with the whole long context before it.",
    "Compute the context once, repeat its cache for every answer and run only the answers.",
)
def fourth_answer_options(faulty: bool) -> Step:
    """An evaluation by multiple choice: one step is one question with a context of 2048 words."""
    from transformers import DynamicCache

    model = llama(12, 2048, inner=5632).eval()
    options, length = sized(6, 3), sized(16, 4)
    context = tokens(model.config.vocab_size, 1, sized(2048, 24))
    answers = tokens(model.config.vocab_size, options, length)

    def whole_rows() -> Tensor:
        ids = torch.cat((context.expand(options, -1), answers), 1)
        scores = model(input_ids=ids, use_cache=False, logits_to_keep=length + 1).logits
        return chances(scores[:, :-1], answers)

    def context_once() -> Tensor:
        cache = DynamicCache(config=model.config)
        asked = model(input_ids=context, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
        cache.batch_repeat_interleave(options)
        told = model(input_ids=answers[:, :-1], past_key_values=cache, use_cache=True).logits
        return chances(torch.cat((asked.expand(options, -1, -1), told), 1), answers)

    @torch.inference_mode()
    def step() -> list[float]:
        found = whole_rows() if faulty else context_once()
        return found.tolist()

    return step


# ---------------------------------------------------------------- embeddings


@pair(
    "all-hidden-states-turned-into-python-lists",
    "A feature-extraction pipeline returns the states of all words as nested lists; only the first is used.",
    "Ask the pipeline for tensors (return_tensors=True) and turn only the first state into a list.",
)
def fourth_feature_lists(faulty: bool) -> Step:
    """Vectors of 32 texts for a search index, made with the pipeline as its page shows it."""
    from transformers import BertConfig, BertModel, pipeline

    tokenizer, words = word_tokenizer(sized(20_000, 200))
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=sized(768, 32),
        num_hidden_layers=sized(12, 1),
        num_attention_heads=sized(12, 2),
        intermediate_size=sized(3072, 64),
    )
    model = BertModel(config, add_pooling_layer=False).to(DEVICE, HALF).eval()
    rows, length = sized(32, 4), sized(32, 6)
    extract: Any = pipeline(
        "feature-extraction", model=model, tokenizer=tokenizer, device=DEVICE, batch_size=rows
    )
    texts = sentences(words, rows, length, length)

    def step() -> list[list[float]]:
        if faulty:
            return [states[0][0] for states in extract(texts)]
        return [states[0, 0].tolist() for states in extract(texts, return_tensors=True)]

    return step


# ---------------------------------------------------------------- repeated words


def penalty_row_by_row(penalty: float) -> Any:
    """A processor of scores that looks at the words of each row in Python."""
    from transformers import LogitsProcessor

    class RowPenalty(LogitsProcessor):
        """Lowers the scores of the words that a row has already."""

        def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
            for row in range(len(input_ids)):
                seen = list(set(input_ids[row].tolist()))
                known = scores[row, seen]
                scores[row, seen] = torch.where(known < 0, known * penalty, known / penalty)
            return scores

    return RowPenalty()


@pair(
    "repetition-penalty-row-by-row-in-python",
    "Writes with a penalty on repeated words that takes the words of each row to Python, token by token.",
    "Gather, change and scatter the scores of all rows on the device (repetition_penalty=1.2).",
    light_steps=2,
)
def fourth_row_penalty(faulty: bool) -> Step:
    """Sixteen answers at once; one step writes eight tokens."""
    from transformers import LogitsProcessorList, RepetitionPenaltyLogitsProcessor

    model = llama(8, 1024).eval()
    ids = tokens(model.config.vocab_size, sized(16, 2), sized(96, 8))
    mask = torch.ones_like(ids)
    penalty = penalty_row_by_row(1.2) if faulty else RepetitionPenaltyLogitsProcessor(1.2)
    processors = LogitsProcessorList([penalty])

    def step() -> Tensor:
        written: Tensor = model.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=sized(8, 3),
            do_sample=False,
            logits_processor=processors,
        )
        return written

    return step


# ---------------------------------------------------------------- translation


@pair(
    "encoder-run-again-for-every-token",
    "A loop of greedy decoding gives the source text to a T5 with every token: its encoder runs each time.",
    "Run the encoder once and hand its states to every call (encoder_outputs).",
    light_steps=2,
)
def fourth_source_again(faulty: bool) -> Step:
    """A translator with a loop of its own; keys and values are kept, one step writes eight tokens."""
    from transformers import T5Config, T5ForConditionalGeneration

    width = sized(768, 32)
    config = T5Config(
        vocab_size=sized(32_128, 128),
        d_model=width,
        d_kv=sized(64, 16),
        d_ff=4 * width,
        num_layers=sized(8, 1),
        num_decoder_layers=sized(4, 1),
        num_heads=sized(12, 2),
        decoder_start_token_id=0,
    )
    model = T5ForConditionalGeneration(config).to(DEVICE, HALF).eval()
    ids = tokens(config.vocab_size, sized(24, 2), sized(256, 8))
    start = torch.zeros(len(ids), 1, dtype=torch.long, device=DEVICE)

    @torch.inference_mode()
    def step() -> Tensor:
        written, cache = [start], None
        source: dict[str, Any] = {"input_ids": ids}
        if not faulty:
            source = {"encoder_outputs": model.encoder(input_ids=ids)}
        for _ in range(sized(8, 3)):
            told = model(**source, decoder_input_ids=written[-1], past_key_values=cache, use_cache=True)
            written.append(told.logits[:, -1:].argmax(-1))
            cache = told.past_key_values
        return torch.cat(written, 1)

    return step
