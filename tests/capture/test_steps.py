"""Where steps end, from the calls of a program."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.capture.steps import LONGEST_ROUND, Call, StepFinder, round_of


@pytest.mark.parametrize(
    "called, length",
    [
        ("AAAA", 1),
        ("AAA", None),
        ("ABAB", 2),
        ("ABABA", 2),
        ("AAABAAAB", 4),
        ("AAAAABAAAAAB", 6),
        ("ABCABD", None),
    ],
)
def test_rounds(called: str, length: int | None) -> None:
    assert round_of(called) == length


@given(st.lists(st.integers(0, 3), min_size=1, max_size=3), st.integers(3, 6))
def test_a_round_that_repeats_is_found(order: list[int], times: int) -> None:
    found = round_of(order * times * 4)
    assert found is not None
    assert len(order) % found == 0


def ends(finder: StepFinder, optimizers: Sequence[str]) -> list[int]:
    """After which of the updates a step ended."""
    return [at for at, key in enumerate(optimizers) if finder.optimizer(key, f"{key}.step")]


def test_one_optimizer_ends_every_step() -> None:
    finder = StepFinder()
    assert ends(finder, "A" * 10) == [3, 4, 5, 6, 7, 8, 9]
    assert (finder.call, finder.calls, finder.sentence()) == (
        Call.OPTIMIZER,
        1,
        "A step is one call of A.step.",
    )


def test_a_round_ends_with_its_last_optimizer_even_if_it_looked_like_one() -> None:
    finder = StepFinder()
    found = ends(finder, "AAAAAB" * 5)
    assert found[:2] == [3, 4]  # nothing else was seen yet
    assert found[-3:] == [17, 23, 29]
    assert finder.calls == 6
    assert finder.changes >= 2


def test_rounds_of_acting_and_learning() -> None:
    finder = StepFinder()
    ended = []
    for number in range(80):
        if number % 16 == 0:
            for _ in range(50):
                finder.forward("policy", "Policy", acting=True)
        finder.forward("policy", "Policy", acting=False)
        finder.backward()
        if finder.optimizer("A", "Adam.step"):
            ended.append(number)
    assert ended[-2:] == [63, 79]
    assert finder.sentence() == "A step is a round of 16 calls of Adam.step."
    assert finder.passes_per_step[Call.BACKWARD] == 16


def test_acting_before_every_update_is_part_of_the_step() -> None:
    finder = StepFinder()
    ended = 0
    for _ in range(20):
        finder.forward("policy", "Policy", acting=True)
        ended += finder.optimizer("A", "Adam.step")
    assert (ended, finder.calls) == (17, 1)


def test_a_check_before_training_is_no_round() -> None:
    finder = StepFinder()
    for _ in range(5):
        finder.forward("model", "Model", acting=True)
    found = ends(finder, "A" * (2 * LONGEST_ROUND))
    assert finder.calls == 1
    assert len(found) == 2 * LONGEST_ROUND - 3


def test_calls_of_the_module_that_is_called_most() -> None:
    finder = StepFinder()
    ended = 0
    for number in range(30):
        if number % 10 == 0:
            finder.forward("encoder", "Encoder", acting=False)
        ended += finder.forward("unet", "UNet", acting=False)
    assert finder.sentence() == "A step is one call of UNet."
    assert ended == 22


def test_forward_calls_wait_for_an_optimizer_that_exists() -> None:
    finder = StepFinder()
    finder.waits_for_optimizer = True
    assert not any(finder.forward("model", "Model", acting=False) for _ in range(50))
    assert not finder.is_found


def test_a_backward_pass_means_that_an_optimizer_may_come() -> None:
    finder = StepFinder()
    for _ in range(20):
        finder.forward("model", "Model", acting=False)
        finder.backward()
    assert not finder.is_found
    for _ in range(300):
        finder.forward("model", "Model", acting=False)
        finder.backward()
    assert finder.call is Call.FORWARD


def test_training_overrules_what_was_found_before() -> None:
    finder = StepFinder()
    for _ in range(20):
        finder.forward("model", "Model", acting=False)
    before = finder.changes
    assert finder.sentence() == "A step is one call of Model."
    assert ends(finder, "AAAAA") == [3, 4]
    assert finder.sentence() == "A step is one call of A.step."
    assert finder.changes > before


def test_step_overrules_everything() -> None:
    finder = StepFinder()
    ends(finder, "AAAAAA")
    assert finder.step()
    assert not finder.optimizer("A", "A.step")
    assert finder.sentence() == "A step ends with stepscope.step()."


@pytest.mark.parametrize("call", [Call.GRAPH, Call.BACKWARD])
def test_what_is_left_without_modules(call: Call) -> None:
    finder = StepFinder()
    told = {Call.GRAPH: finder.graph, Call.BACKWARD: finder.backward}[call]
    assert sum(told() for _ in range(300)) > 30
    assert finder.call is call
