"""A small language model that learns from a larger one."""

from __future__ import annotations

import contextlib

import torch
from benchmarks.faults.library_models import llama, tokens
from benchmarks.faults.models import adamw, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor
from torch.nn import functional

TEMPERATURE = 2.0


def imitation(student: Tensor, teacher: Tensor) -> Tensor:
    """How far the student's guesses are from the teacher's."""
    return functional.kl_div(
        functional.log_softmax(student / TEMPERATURE, -1).flatten(0, 1),
        functional.softmax(teacher / TEMPERATURE, -1).flatten(0, 1),
        reduction="batchmean",
    )


@pair(
    "backward-through-the-teacher",
    "The teacher runs without torch.no_grad(): backward() goes through it, too, for gradients nobody uses.",
    "The teacher runs under torch.no_grad().",
)
def eleventh_pocket_model(faulty: bool) -> Step:
    """A Llama of three layers imitates one of ten."""
    teacher = llama(10, 1024).eval()
    student = llama(3, 1024)
    optimizer = adamw(student)
    text = tokens(sized(8192, 128), sized(32, 2), sized(512, 16))

    def step() -> None:
        with contextlib.nullcontext() if faulty else torch.no_grad():
            wanted = teacher(input_ids=text, use_cache=False).logits
        found = student(input_ids=text, labels=text, use_cache=False)
        loss = 0.5 * found.loss + 0.5 * imitation(found.logits, wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step
