from __future__ import annotations

from typing import Any

from tests.findings.drawn import MS, assert_bounded, busy_pace, drawn, mean_step

from stepscope.analyses.idle_gaps import IdleGap
from stepscope.analyses.kernel_families import KernelFamily
from stepscope.analyses.kernels import Kernel
from stepscope.findings import Advice
from stepscope.findings.mean_step import MeanStep
from stepscope.findings.rules.short_kernels import short_kernels

PAUSES = (
    {"device": "0", "side": "device", "spent_in": "device scheduling", "idle_ns": 4 * MS, "gaps": 4000},
    {"device": "0", "side": "device", "spent_in": "graph latency", "idle_ns": 6 * MS, "gaps": 6000},
    {"device": "1", "side": "device", "spent_in": "graph latency", "idle_ns": 60 * MS, "gaps": 1},
    {"device": "0", "side": "host", "spent_in": "host op", "idle_ns": 1 * MS, "gaps": 1},
)
SHORT = {"name": "a", "calls": 10_000, "mean_ns": 4000.0, "exclusive_ns": 40 * MS, "total_ns": 40 * MS}
LONG = {"name": "b", "calls": 10, "mean_ns": 4_000_000.0, "exclusive_ns": 40 * MS, "total_ns": 40 * MS}


def found(
    *kernels: dict[str, Any],
    gaps: tuple[dict[str, Any], ...] = PAUSES,
    step: MeanStep | None = None,
    **thresholds: Any,
) -> Advice | None:
    families = drawn(KernelFamily, {"family": "matmul", "total_ns": sum(row["total_ns"] for row in kernels)})
    step = step or busy_pace()
    return short_kernels(step, drawn(IdleGap, *gaps), drawn(Kernel, *kernels), families, **thresholds)


def test_pauses_between_short_kernels() -> None:
    advice = assert_bounded(found(SHORT, LONG), busy_pace())
    assert advice.saving.waited_ns == (0.0, 1.0 * MS)
    assert advice.saving.starved_ns == advice.saving.device_ns == (0.0, 0.0)
    assert advice.evidence["short_kernels_per_step"] == 1000
    assert advice.evidence["short_kernels_ns"] == 4 * MS
    assert advice.evidence["pauses_per_step"] == 1000
    assert advice.certainty == "possible"


def test_it_is_silent_where_the_host_is_late() -> None:
    assert found(SHORT, step=mean_step(busy_ns=1.0 * MS, starved_ns=8.0 * MS)) is None


def test_it_is_silent_where_kernels_are_long_or_pauses_few() -> None:
    assert found(LONG) is None
    assert found(SHORT, LONG, short_ns=1000) is None
    assert found(SHORT, gaps=PAUSES[2:]) is None
    assert found(SHORT, least_share=0.2) is None
    assert found(SHORT, gaps=()) is None
