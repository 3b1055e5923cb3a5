from __future__ import annotations

import pytest
from tests.findings.drawn import MS, assert_bounded, busy_pace, drawn

from stepscope.analyses.step_classes import StepClass
from stepscope.analyses.step_ops import StepOp
from stepscope.findings.rules.full_sorts import full_sorts
from stepscope.tables import Table

SORT = {"name": "aten::sort", "per_step": 1.0, "device_ns": 40 * MS, "user_frame": "ranks.py(7): metric"}
INFERENCE = drawn(StepClass, {"backward_passes": 0})


def sorts(**changed: object) -> Table[StepOp]:
    """Ten steps with a sort each, of 4 ms."""
    return drawn(StepOp, SORT | changed)


def test_nothing_is_certain_and_all_may_go() -> None:
    advice = assert_bounded(full_sorts(busy_pace(), sorts(), INFERENCE), busy_pace())
    assert advice.saving.device_ns == pytest.approx((0, 4 * MS))
    assert "topk" in advice.fix
    assert "ranking" in advice.because
    assert [place.line for place in advice.locations] == [7]


def test_training_is_not_told_of_metrics() -> None:
    training = drawn(StepClass, {"backward_passes": 1, "optimizer": True})
    advice = assert_bounded(full_sorts(busy_pace(), sorts(), training), busy_pace())
    assert "ranking" not in advice.because


def test_sorts_of_other_operators_are_theirs() -> None:
    assert full_sorts(busy_pace(), sorts(within="aten::unique_dim"), INFERENCE) is None
    assert full_sorts(busy_pace(), sorts(name="aten::topk"), INFERENCE) is None
    assert full_sorts(busy_pace(), sorts(device_ns=4 * MS), INFERENCE) is None


def test_a_sort_inside_argsort_counts_once() -> None:
    both = drawn(StepOp, SORT | {"name": "aten::argsort"}, SORT | {"within": "aten::argsort"})
    advice = assert_bounded(full_sorts(busy_pace(), both, INFERENCE), busy_pace())
    assert advice.saving.device_ns == pytest.approx((0, 4 * MS))
