"""Losses before and after a change: the program's own noise is learned first."""

from __future__ import annotations

import math

import pytest

from stepscope.trials.losses import compare_losses

SAME = (2.5, 2.25, 2.0, 1.75)


def shifted(share: float, first: int = 0) -> tuple[float, ...]:
    return tuple(loss * (1 + share) if at >= first else loss for at, loss in enumerate(SAME))


def test_equal_losses() -> None:
    found = compare_losses([SAME, SAME, SAME], [SAME, SAME, SAME])
    assert found.word == "equal"
    assert found.sentence == "Losses agree: the first 4 are equal."
    assert (found.compared, found.most_share, found.own_share) == (4, 0, 0)


def test_as_many_as_all_runs_have_are_compared() -> None:
    found = compare_losses([SAME, SAME], [SAME[:1], SAME])
    assert found.sentence == "Losses agree: the first one is equal."


def test_losses_that_differ_as_those_before_do() -> None:
    found = compare_losses([SAME, shifted(0.003, 1)], [shifted(0.004, 1), SAME])
    assert found.word == "alike"
    assert found.sentence == "Losses agree: the first 4 differ by up to 0.4 %, as two runs before do."


def test_rounding() -> None:
    found = compare_losses([SAME, SAME], [shifted(2e-6)] * 2)
    assert found.word == "rounded"
    assert found.sentence == "Losses agree: the first 4 differ by up to 0.0002 %, as rounding does."


def test_losses_that_differ_from_a_step_on() -> None:
    found = compare_losses([SAME, SAME], [SAME, shifted(0.05, 2)])
    assert found.word == "different"
    assert found.sentence == (
        "Losses differ: in step 3, 2 before and 2.1 after (4.8 %). Runs before are all equal."
    )


def test_more_than_the_noise_of_the_runs_before() -> None:
    found = compare_losses([SAME, shifted(0.002, 1)], [shifted(0.02, 1)] * 2)
    assert found.word == "different"
    assert found.sentence.endswith("Two runs before differ by up to 0.2 %.")


def test_a_first_loss_that_differs_a_little_is_no_rounding() -> None:
    assert compare_losses([SAME, SAME], [shifted(5e-5), SAME]).word == "different"


def test_no_number_is_no_loss() -> None:
    found = compare_losses([SAME], [(2.5, math.nan, math.nan, math.nan)])
    assert found.word == "different"
    assert "in step 2, 2.25 before and no number after." in found.sentence
    assert found.most_share is None


def test_losses_that_are_no_numbers_on_both_sides_are_equal() -> None:
    assert compare_losses([(1.0, math.nan)], [(1.0, math.nan)]).word == "equal"


def test_without_a_seed_nothing_is_compared() -> None:
    found = compare_losses([SAME, shifted(0.03)], [SAME, SAME])
    assert found.word == "not comparable"
    assert found.sentence == (
        "Losses are not comparable: they differ from run to run, by 2.9 % in the first step. "
        "Set a seed in the program."
    )


def test_what_comes_after_runs_have_parted_is_not_compared() -> None:
    found = compare_losses([SAME, shifted(0.5, 3)], [shifted(0.9, 3), SAME])
    assert (found.word, found.compared) == ("equal", 3)


@pytest.mark.parametrize("before,after", [([], []), ([SAME], [()]), ([()], [SAME])])
def test_without_losses(before: list[tuple[float, ...]], after: list[tuple[float, ...]]) -> None:
    assert compare_losses(before, after).word == "none"
