from __future__ import annotations

from typing import Any

from tests.findings.drawn import MS, assert_bounded, drawn, mean_step

from stepscope.analyses.collective_kinds import CollectiveKind
from stepscope.analyses.kernel_families import KernelFamily
from stepscope.analyses.step_ops import StepOp
from stepscope.analyses.steps import Step
from stepscope.findings import Advice
from stepscope.findings._communication import ACCUMULATES
from stepscope.findings.rules.small_buckets import small_buckets

US = 1_000


def judged(
    calls: int = 200,
    mean_ns: int = 40 * US,
    starved_ns: int = 8 * MS,
    exposed_ns: int = int(0.5 * MS),
    n_bytes: int | None = None,
    **row: Any,
) -> Advice | None:
    """Ten steps with so many all-reduces in all; thresholds are told from columns by their names."""
    thresholds = {
        name: row.pop(name) for name in ("least_calls", "most_median_ns", "least_share") if name in row
    }
    given = {"phase": "backward", "within": ACCUMULATES, **row}
    return small_buckets(
        mean_step(),
        drawn(Step, *[{"dur_ns": 10 * MS, "communication_ns": exposed_ns}] * 10),
        drawn(KernelFamily, {"family": "communication", "total_ns": calls * mean_ns}),
        drawn(
            CollectiveKind,
            {
                "kind": "all-reduce",
                "backend": "device",
                "calls": calls,
                "total_ns": calls * mean_ns,
                "median_ns": mean_ns,
                "exposed_ns": 10 * exposed_ns,
                "bytes": n_bytes * calls if n_bytes else None,
            },
        ),
        drawn(
            StepOp,
            {"name": "aten::mm", "phase": "backward"},
            {
                "name": "c10d::allreduce_",
                "calls": calls,
                "per_step": calls / 10,
                "device_ns": calls * mean_ns,
                "starved_ns": starved_ns,
                **given,
            },
        ),
        **thresholds,
    )


def test_it_fires_with_launches_and_what_is_exposed() -> None:
    advice = assert_bounded(judged(), mean_step())
    # 0.8 ms late a step, with its part of the latency (5 ms late, 4 ms of it without latency).
    assert advice.saving.starved_ns == (0.5 * MS, 0.95 * MS)
    assert advice.saving.device_ns == (0.0, 0.475 * MS)
    assert "bucket_cap_mb=25)" in advice.fix


def test_all_reduces_by_hand_have_another_fix_and_a_place() -> None:
    advice = judged(within=None, user_frame="train.py(40): sync")
    assert advice is not None
    assert "torch.cat" in advice.fix
    assert str(advice.locations[0]) == "train.py:40 sync"
    assert advice.locations[0].note == "20 all-reduces a step"


def test_it_is_silent_for_few_or_large_buckets() -> None:
    assert judged(calls=100) is None
    assert judged(calls=100, least_calls=8) is not None
    assert judged(mean_ns=200 * US) is None
    assert judged(mean_ns=200 * US, most_median_ns=300 * US) is not None


def test_it_is_silent_where_they_cost_nothing() -> None:
    assert judged(starved_ns=0, exposed_ns=0) is None
    assert judged(starved_ns=MS, exposed_ns=0) is None
    assert judged(starved_ns=MS, exposed_ns=0, least_share=0.01) is not None


def test_sizes_decide_where_they_are_known() -> None:
    assert judged(mean_ns=200 * US, n_bytes=100_000) is not None  # they wait for peers
    assert judged(mean_ns=20 * US, n_bytes=2_000_000) is None  # a fast link


def test_buckets_grow_as_long_as_several_are_left() -> None:
    advice = judged(n_bytes=1_000_000)  # 20 MB in 20 pieces
    assert advice is not None
    assert "bucket_cap_mb=5)" in advice.fix


def test_a_host_that_sets_the_pace_pays_for_its_calls() -> None:
    advice = assert_bounded(judged(host_ns=20 * MS), mean_step())
    # 2 ms a step in the calls, 80 % of the critical path is the host's.
    assert advice.saving.starved_ns == (0.5 * MS, 1.6 * 0.95 * MS)


def test_it_is_silent_without_training() -> None:
    table = drawn(StepOp, {"name": "c10d::allreduce_", "calls": 200, "phase": "forward"})
    small = drawn(
        CollectiveKind, {"kind": "all-reduce", "backend": "device", "calls": 200, "exposed_ns": 90 * MS}
    )
    steps = drawn(Step, {"dur_ns": 10 * MS, "communication_ns": 9 * MS})
    families = drawn(KernelFamily, {"family": "communication", "total_ns": 90 * MS})
    assert small_buckets(mean_step(), steps, families, small, table) is None


def test_sums_of_layers_are_no_gradients() -> None:
    """Tensor parallelism: an all-reduce after every layer, in forward and backward."""
    assert judged(phase="forward", within=None) is None
