"""Models that read texts: one sorts claims, one grades exams and one learns from bylaws."""

from __future__ import annotations

import random

import torch
from benchmarks.faults.library_models import adamw, autocast, bert, llama, tokenizer, tokens
from benchmarks.faults.models import DEVICE, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor


@pair(
    "padded-to-the-longest-the-model-allows",
    "Every batch is padded to 512 words, the most that the model allows, though no claim has more than 120:"
    " three quarters of all the work is done on padding.",
    "Pad to the longest text of the batch: padding=True (or DataCollatorWithPadding), not 'max_length'.",
)
def eighteenth_claim_sorter(faulty: bool) -> Step:
    """A BERT is fine-tuned to sort the claims that an insurer receives."""
    random.seed(0)
    rows, most, known = sized(64, 2), sized(512, 64), sized(2000, 200)
    model, prepare = bert(12, 768), tokenizer()
    optimizer = adamw(model)
    claims = []
    for _ in range(rows * 4):
        length = random.randint(sized(40, 4), sized(120, 16))
        claims.append(" ".join(f"word{random.randrange(known)}" for _ in range(length)))
    labels = torch.randint(0, 10, (len(claims),), device=DEVICE)
    turn = 0

    def step() -> Tensor:
        nonlocal turn
        first = turn % 4 * rows
        turn += 1
        batch = prepare(
            claims[first : first + rows],
            padding="max_length" if faulty else True,
            truncation=True,
            max_length=most,
            return_tensors="pt",
        )
        with autocast():
            loss = model(
                input_ids=batch["input_ids"].to(DEVICE),
                attention_mask=batch["attention_mask"].to(DEVICE),
                labels=labels[first : first + rows],
            ).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


@pair(
    "scores-of-all-words-at-all-places",
    "The answer is read from the last place alone, but the head makes the scores of all 128 thousand words at"
    " every place of every question.",
    "Ask for the last place only: model(ids, logits_to_keep=1).",
)
def eighteenth_exam_grader(faulty: bool) -> Step:
    """A language model answers the questions of an exam with several choices, to be compared with others."""
    rows, length, known = sized(32, 2), sized(512, 16), sized(128_000, 128)
    model = llama(8, 2048, words=128_000).eval()
    questions = [tokens(known, rows, length) for _ in range(2)]
    choices = torch.tensor([11, 12, 13, 14], device=DEVICE)
    answers = torch.randint(0, 4, (rows,), device=DEVICE)
    right = torch.zeros((), device=DEVICE)
    turn = 0

    @torch.inference_mode()
    def step() -> Tensor:
        nonlocal turn
        asked = questions[turn % 2]
        turn += 1
        if faulty:
            scores = model(asked, use_cache=False).logits[:, -1]
        else:
            scores = model(asked, use_cache=False, logits_to_keep=1).logits[:, -1]
        chosen = scores[:, choices].float().log_softmax(-1)
        right.add_((chosen.argmax(-1) == answers).sum())
        return chosen

    return step


@pair(
    "attention-set-to-eager",
    "The model is built with attn_implementation='eager', copied from a notebook that wanted to see the"
    " attention: the scores of all pairs of 2048 words are written out and read again many times.",
    "Leave the setting at its default, 'sdpa', which never writes the scores out.",
)
def eighteenth_bylaw_reader(faulty: bool) -> Step:
    """A language model goes on learning from the bylaws of towns."""
    rows, length = sized(4, 2), sized(2048, 16)
    model = llama(6, 1024, attention="eager" if faulty else "sdpa").train()
    optimizer = adamw(model)
    pages = [tokens(sized(8192, 128), rows, length) for _ in range(4)]
    seen = 0

    def step() -> Tensor:
        nonlocal seen
        page = pages[seen % 4]
        seen += 1
        loss = model(input_ids=page, labels=page, use_cache=False).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step
