from __future__ import annotations

from typing import Any

from tests.findings.drawn import MS, assert_bounded, busy_pace, drawn, fix_for

from stepscope.analyses.iterations import Iteration
from stepscope.analyses.step_classes import StepClass
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice
from stepscope.findings.program import Framework
from stepscope.findings.rules.sampling_cost import sampling_cost

SORT = {
    "name": "aten::sort",
    "calls": 10,
    "per_step": 1.0,
    "device_ns": 20 * MS,
    "user_frame": "gen.py(9): draw",
}
DRAW = {"name": "aten::multinomial", "calls": 10, "device_ns": 2 * MS}


def judged(*rows: dict[str, Any], training: bool = False, name: str = "", **thresholds: Any) -> Advice | None:
    """Ten steps of 10 ms."""
    return sampling_cost(
        busy_pace(),
        drawn(Iteration, {"name": name}),
        drawn(StepClass, {"backward_passes": int(training)}),
        drawn(StepOp, *rows),
        **thresholds,
    )


def test_it_fires_with_half_of_the_sort_and_what_follows() -> None:
    advice = assert_bounded(judged(SORT, DRAW), busy_pace())
    assert advice.saving.device_ns == (1.2 * MS, 2.2 * MS)
    assert str(advice.locations[0]) == "gen.py:9 draw"
    assert "torch.topk" in advice.fix


def test_what_is_inside_counts_once() -> None:
    inside = [
        {"name": "aten::exponential_", "within": "aten::multinomial", "calls": 10, "device_ns": 2 * MS},
        {"name": "aten::gather", "within": "aten::sort", "calls": 10, "device_ns": 9 * MS},
    ]
    advice = judged(SORT, DRAW, *inside)
    assert advice is not None
    assert advice.saving.device_ns[1] == 2.2 * MS
    assert advice.evidence["draws_per_step"] == 1


def test_layers_that_use_the_same_operators_do_not_count() -> None:
    experts = {"name": "aten::softmax", "calls": 300, "device_ns": 30 * MS}
    assert judged(DRAW, experts) is None


def test_the_best_few_are_no_cost() -> None:
    best = {"name": "aten::topk", "calls": 10, "device_ns": 30 * MS}
    inside = {"name": "aten::sort", "within": "aten::topk", "calls": 10, "device_ns": 20 * MS}
    assert judged(DRAW, best, inside) is None


def test_without_a_sort_nothing_is_sure() -> None:
    advice = judged({**DRAW, "device_ns": 20 * MS})
    assert advice is not None
    assert advice.saving.device_ns == (0.0, 2.0 * MS)


def test_the_fix_follows_the_engine() -> None:
    advice = judged(SORT, DRAW)
    assert "--sampling-backend" in fix_for(advice, Framework.SGLANG)
    assert "FLASHINFER" in fix_for(advice, Framework.VLLM)


def test_it_is_silent_without_draws_and_in_training() -> None:
    assert judged(SORT) is None
    assert judged(SORT, DRAW, training=True) is None


def test_it_is_silent_where_it_is_cheap() -> None:
    assert judged(DRAW) is None
    assert judged(DRAW, least_share=0.01) is not None
