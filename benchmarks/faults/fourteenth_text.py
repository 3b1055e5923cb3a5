"""Services that read texts: they grade pages, judge claims, rank answers and sum up meetings."""

from __future__ import annotations

import random
from typing import Any

import torch
from benchmarks.faults.library_models import WORDS, halved, llama, tokenizer, tokens
from benchmarks.faults.models import DEVICE, pinned, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor


def sentence(rng: random.Random, count: int) -> str:
    """Some made-up words."""
    return " ".join(f"word{rng.randrange(WORDS)}" for _ in range(count))


def on_device(batch: Any) -> dict[str, Tensor]:
    """What a tokenizer gave, on the device, without waiting for the copies."""
    return {name: pinned(value).to(DEVICE, non_blocking=True) for name, value in batch.items()}


@pair(
    "activation-written-out",
    'A GPT-2 that grades pages keeps the default activation_function="gelu_new": eight kernels.',
    'activation_function="gelu_pytorch_tanh", the same formula in one kernel.',
)
def fourteenth_page_grader(faulty: bool) -> Step:
    """A classifier reads crawled pages and says how good each one is, for a corpus to be trained on."""
    from transformers import GPT2Config, GPT2ForSequenceClassification

    width, rows, length = sized(768, 64), sized(64, 2), sized(512, 16)
    config = GPT2Config(
        vocab_size=sized(50_257, 128),
        n_positions=length,
        n_embd=width,
        n_layer=sized(8, 1),
        n_head=max(1, width // 64),
        num_labels=6,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=1,
        use_cache=False,
        attn_implementation="sdpa",
        activation_function="gelu_new" if faulty else "gelu_pytorch_tanh",
    )
    model = halved(GPT2ForSequenceClassification(config)).eval()
    pages = pinned(torch.randint(2, sized(50_257, 128), (rows, length)))
    grades = torch.zeros(6, device=DEVICE)

    @torch.inference_mode()
    def step() -> Tensor:
        ids = pages.to(DEVICE, non_blocking=True)
        scores = model(input_ids=ids).logits.float().softmax(-1)
        grades.add_(scores.sum(0))
        return scores

    return step


@pair(
    "scores-of-all-positions",
    "A judge compares two words after the prompt, but the head scores 128,256 words at every place.",
    "model(..., logits_to_keep=1).",
)
def fourteenth_claim_judge(faulty: bool) -> Step:
    """A language model is asked whether claims follow from documents: yes or no."""
    yes, no = 5, 6
    with torch.device(DEVICE):  # the table of words is made where it is used
        model = llama(4, 2048, words=128_256, tie_word_embeddings=True).eval()
    claims = pinned(torch.randint(2, sized(128_256, 128), (sized(8, 2), sized(1024, 16))))
    truth = torch.randint(0, 2, (sized(8, 2),), device=DEVICE).bool()
    right = torch.zeros((), device=DEVICE)
    options = {} if faulty else {"logits_to_keep": 1}

    @torch.inference_mode()
    def step() -> Tensor:
        ids = claims.to(DEVICE, non_blocking=True)
        last = model(input_ids=ids, use_cache=False, **options).logits[:, -1]
        chance = last[:, yes : no + 1].float().softmax(-1)[:, 0]
        right.add_(((chance > 0.5) == truth).sum())
        return chance

    return step


def cross_encoder() -> Any:
    """An encoder that reads a question and an answer together and gives one score."""
    from transformers import BertConfig, BertForSequenceClassification

    width = sized(768, 64)
    config = BertConfig(
        vocab_size=WORDS + 2,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=sized(8, 1),
        num_attention_heads=max(1, width // 64),
        num_labels=1,
        attn_implementation="sdpa",
    )
    return halved(BertForSequenceClassification(config)).eval()


@pair(
    "one-row-at-a-time",
    "A cross-encoder scores the 48 candidates of a question in a loop, each in a pass of its own.",
    "All pairs are tokenized together and go through the encoder as one batch.",
)
def fourteenth_answer_reranker(faulty: bool) -> Step:
    """The answers that a search found are put in order by an encoder that reads them with the question."""
    rng = random.Random(5)
    model, words = cross_encoder(), tokenizer()
    question = sentence(rng, sized(20, 4))
    answers = [sentence(rng, rng.randint(sized(90, 6), sized(100, 8))) for _ in range(sized(48, 4))]
    best = sized(10, 2)

    def score(some: list[str]) -> Tensor:
        batch = words([question] * len(some), some, padding=True, truncation=True, max_length=256)
        wanted = {name: torch.tensor(batch[name]) for name in ("input_ids", "attention_mask")}
        return model(**on_device(wanted)).logits.squeeze(-1)

    @torch.inference_mode()
    def step() -> list[str]:
        if faulty:
            scores = torch.cat([score([answer]) for answer in answers])
        else:
            scores = score(answers)
        return [answers[number] for number in scores.topk(best).indices.tolist()]

    return step


def topic_model() -> Any:
    """An encoder that says what a part of a meeting is about."""
    from transformers import BertConfig, BertForSequenceClassification

    width = sized(1024, 64)
    config = BertConfig(
        vocab_size=WORDS + 2,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=sized(6, 1),
        num_attention_heads=max(1, width // 64),
        num_labels=12,
        attn_implementation="sdpa",
    )
    return BertForSequenceClassification(config).to(torch.bfloat16 if DEVICE == "cuda" else torch.float32)


@pair(
    "weights-moved-for-every-request",
    "Each of two models is moved to the device for its part of a request and back to the CPU afterwards,"
    " on a device that has room for both.",
    "Both models stay on the device.",
    light_steps=2,
)
def fourteenth_meeting_notes(faulty: bool) -> Step:
    """A service sorts the parts of a meeting by topic and writes the first words of a summary."""
    sorter, writer = topic_model().eval(), llama(4, 1024).eval()
    if faulty:
        writer.to("cpu")
    else:
        sorter.to(DEVICE)
    turns = pinned(torch.randint(2, WORDS, (sized(64, 2), sized(128, 16))))
    prompt = tokens(sized(2000, 128), sized(4, 1), sized(512, 8))
    mask = torch.ones_like(prompt)
    count = sized(8, 2)

    @torch.no_grad()
    def step() -> tuple[list[int], Tensor]:
        if faulty:
            sorter.to(DEVICE)
        topics = sorter(input_ids=turns.to(DEVICE, non_blocking=True)).logits.argmax(-1)
        if faulty:
            sorter.to("cpu")
            writer.to(DEVICE)
        notes = writer.generate(
            prompt, attention_mask=mask, max_new_tokens=count, min_new_tokens=count, do_sample=False
        )
        if faulty:
            writer.to("cpu")
        return topics.tolist(), notes.cpu()

    return step
