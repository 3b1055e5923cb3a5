"""What `--set` means: variables of the environment, and arguments of the program."""

from __future__ import annotations

import pytest

from stepscope.errors import StepscopeError
from stepscope.trials.arguments import settings_of

WORDS = ["train.py", "--lr", "0.1", "--batch=8", "--compile", "-w", "4", "optim.name=sgd"]


@pytest.mark.parametrize(
    "given,expected",
    [
        ("--lr=0.2", ["train.py", "--lr", "0.2", "--batch=8", "--compile", "-w", "4", "optim.name=sgd"]),
        ("--batch=64", ["train.py", "--lr", "0.1", "--batch=64", "--compile", "-w", "4", "optim.name=sgd"]),
        ("-w=8", ["train.py", "--lr", "0.1", "--batch=8", "--compile", "-w", "8", "optim.name=sgd"]),
        ("--lr=-1", ["train.py", "--lr", "-1", "--batch=8", "--compile", "-w", "4", "optim.name=sgd"]),
        ("optim.name=adam", [*WORDS[:-1], "optim.name=adam"]),
        ("--compile", WORDS),
        ("--fused", [*WORDS, "--fused"]),
        ("--workers=2", [*WORDS, "--workers=2"]),
        ("-n=2", [*WORDS, "-n", "2"]),
        ("--compile=max", ["train.py", "--lr", "0.1", "--batch=8", "--compile", "max", *WORDS[5:]]),
    ],
)
def test_an_argument_is_replaced_or_added(given: str, expected: list[str]) -> None:
    assert settings_of([given], WORDS) == (expected, {})


def test_a_negative_value_is_replaced() -> None:
    assert settings_of(["--lr=3"], ["train.py", "--lr", "-1.5", "x"])[0] == ["train.py", "--lr", "3", "x"]


def test_anything_else_is_a_variable() -> None:
    words, variables = settings_of(["OMP_NUM_THREADS=4", "EMPTY=", "URL=a=b"], WORDS)
    assert words == WORDS
    assert variables == {"OMP_NUM_THREADS": "4", "EMPTY": "", "URL": "a=b"}


@pytest.mark.parametrize("given", ["OMP_NUM_THREADS", "=4"])
def test_a_variable_needs_a_value(given: str) -> None:
    with pytest.raises(StepscopeError, match="has no value"):
        settings_of([given], WORDS)
