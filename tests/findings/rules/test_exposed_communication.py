from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import MS, assert_bounded, busy_pace, drawn, mean_step

from stepscope.analyses.critical_path_sides import CriticalPathSides
from stepscope.analyses.kernel_families import KernelFamily
from stepscope.analyses.step_ops import StepOp
from stepscope.analyses.steps import Step
from stepscope.findings._communication import ACCUMULATES
from stepscope.findings.rules.exposed_communication import exposed_communication
from stepscope.tables import Table

PATH = drawn(CriticalPathSides, {"path_ns": 95 * MS, "device_ns": 95 * MS, "communication_ns": 5 * MS})
REDUCED = {"name": "c10d::allreduce_", "within": ACCUMULATES, "phase": "backward", "calls": 40}


def steps(communication_ns: int) -> Table[Step]:
    """Ten steps of 10 ms."""
    return drawn(Step, *[{"dur_ns": 10 * MS, "communication_ns": communication_ns}] * 10)


def families(total_ns: int) -> Table[KernelFamily]:
    return drawn(KernelFamily, {"family": "matmul", "total_ns": 60 * MS}, {
        "family": "communication", "total_ns": total_ns})  # fmt: skip


def ops(*rows: dict[str, Any]) -> Table[StepOp]:
    return drawn(StepOp, *rows)


def test_it_fires_and_promises_what_is_exposed_at_the_most() -> None:
    step = busy_pace()
    found = exposed_communication(step, steps(1 * MS), families(20 * MS), PATH, ops(REDUCED))
    advice = assert_bounded(found, step)
    assert advice.saving.device_ns == (0.0, 1.0 * MS)
    assert advice.saving.waited_ns == (0.0, 0.0)
    assert advice.evidence["on_critical_path_ns"] == 0.5 * MS
    assert "upper bound" in advice.because
    assert "all-reduce" in advice.because


def test_collectives_of_the_host_are_waits() -> None:
    step = mean_step()
    advice = assert_bounded(exposed_communication(step, steps(6 * MS), families(0), PATH, ops()), step)
    assert advice.saving.waited_ns == (0.0, 6.0 * MS)
    assert advice.saving.device_ns == (0.0, 0.0)


def test_it_is_silent_where_little_is_exposed() -> None:
    args = (steps(int(0.4 * MS)), families(20 * MS), PATH, ops(REDUCED))
    assert exposed_communication(busy_pace(), *args) is None
    assert exposed_communication(busy_pace(), *args, least_share=0.03) is not None


def test_it_is_silent_without_communication() -> None:
    assert exposed_communication(mean_step(), steps(0), families(0), PATH, ops()) is None
    assert (
        exposed_communication(mean_step(steps=0, step_ns=0.0), drawn(Step), families(0), PATH, ops()) is None
    )


@pytest.mark.parametrize(
    "rows, typed",
    [
        ([REDUCED], "bucket_cap_mb=100)"),
        (
            [REDUCED, {"name": "torch.distributed.ddp.reducer::copy_bucket_to_grad"}],
            "gradient_as_bucket_view",
        ),
        ([{"name": "c10d::_allgather_base_", "device_ns": 9}, REDUCED], "set_modules_to_forward_prefetch"),
        ([{"name": "c10d::_reduce_scatter_base_", "device_ns": 9}], "set_requires_gradient_sync"),
        ([{"name": "_c10d_functional::all_to_all_single", "device_ns": 9}], "all_to_all_single"),
        ([{"name": "c10d::allreduce_", "calls": 3}], "async_op=True"),
        ([], "async_op=True"),
    ],
)
def test_the_fix_follows_what_communicates(rows: list[dict[str, Any]], typed: str) -> None:
    advice = exposed_communication(busy_pace(), steps(1 * MS), families(20 * MS), PATH, ops(*rows))
    assert advice is not None
    assert typed in advice.fix
