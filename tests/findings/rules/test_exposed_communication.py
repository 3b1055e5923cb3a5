from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import MS, assert_bounded, busy_pace, drawn, mean_step

from stepscope.analyses.collective_kinds import CollectiveKind
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


def ran(kind: str = "all-reduce", exposed_ns: int = 10 * MS, **more: Any) -> dict[str, Any]:
    """Four collectives in each of ten steps."""
    given = {"kind": kind, "backend": "device", "exposed_ns": exposed_ns, "calls": 40, "total_ns": 20 * MS}
    return {**given, **more}


def kinds(*rows: dict[str, Any]) -> Table[CollectiveKind]:
    return drawn(CollectiveKind, *rows)


def test_it_fires_and_promises_what_is_exposed_at_the_most() -> None:
    step = busy_pace()
    found = exposed_communication(step, steps(1 * MS), families(20 * MS), PATH, kinds(ran()), ops(REDUCED))
    advice = assert_bounded(found, step)
    assert advice.saving.device_ns == (0.0, 1.0 * MS)
    assert advice.saving.waited_ns == (0.0, 0.0)
    assert advice.evidence["on_critical_path_ns"] == 0.5 * MS
    assert "upper bound" in advice.because
    assert "all-reduce" in advice.because


def test_collectives_of_the_host_are_waits() -> None:
    step = mean_step()
    advice = assert_bounded(
        exposed_communication(step, steps(6 * MS), families(0), PATH, kinds(), ops()), step
    )
    assert advice.saving.waited_ns == (0.0, 6.0 * MS)
    assert advice.saving.device_ns == (0.0, 0.0)


def test_it_is_silent_where_little_is_exposed() -> None:
    args = (steps(int(0.4 * MS)), families(20 * MS), PATH, kinds(ran()), ops(REDUCED))
    assert exposed_communication(busy_pace(), *args) is None
    assert exposed_communication(busy_pace(), *args, least_share=0.03) is not None


def test_it_is_silent_without_communication() -> None:
    assert exposed_communication(mean_step(), steps(0), families(0), PATH, kinds(), ops()) is None
    assert (
        exposed_communication(mean_step(steps=0, step_ns=0.0), drawn(Step), families(0), PATH, kinds(), ops())
        is None
    )


TRAINS = {"name": "aten::mm", "phase": "backward"}
SENT = {"name": "c10d::allreduce_", "phase": "forward", "per_step": 64.0}


@pytest.mark.parametrize(
    "kind, rows, typed",
    [
        ("all-reduce", [REDUCED], "no_sync"),
        (
            "all-reduce",
            [REDUCED, {"name": "torch.distributed.ddp.reducer::copy_bucket_to_grad"}],
            "bucket_view",
        ),
        ("all-gather", [REDUCED], "set_modules_to_forward_prefetch"),
        ("reduce-scatter", [REDUCED], "set_requires_gradient_sync"),
        ("all-to-all", [REDUCED], "all_to_all_single"),
        ("all-to-all", [REDUCED, {"name": "fbgemm::permute_sparse_features"}], "TrainPipelineSparseDist("),
        ("send-receive", [REDUCED], "ScheduleInterleaved1F1B"),
        ("broadcast", [REDUCED], "broadcast_buffers=False"),
        ("unknown", [REDUCED], "all_gather_into_tensor"),
        ("all-reduce", [TRAINS, SENT], "_micro_pipeline_tp"),
        ("all-reduce", [TRAINS, {**SENT, "per_step": 1.0}], "dist.all_reduce"),
        ("all-reduce", [SENT], "--tensor-parallel-size"),
        ("all-reduce", [], "async_op=True"),
    ],
)
def test_the_fix_follows_what_communicates(kind: str, rows: list[dict[str, Any]], typed: str) -> None:
    table = kinds(ran(kind), ran("barrier", exposed_ns=9 * MS))
    advice = exposed_communication(busy_pace(), steps(1 * MS), families(20 * MS), PATH, table, ops(*rows))
    assert advice is not None
    assert typed in advice.fix
    assert "bucket_cap_mb=100" not in advice.fix


def test_kinds_are_told_by_what_is_exposed() -> None:
    table = kinds(ran("all-reduce", 4 * MS, total_ns=900 * MS), ran("all-to-all", 12 * MS))
    advice = exposed_communication(busy_pace(), steps(1 * MS), families(20 * MS), PATH, table, ops(REDUCED))
    assert advice is not None
    assert advice.evidence["collective"] == "all-to-all"
    assert "(all-to-all 750 µs, all-reduce 250 µs)" in advice.because


def buckets(calls: int, megabytes: float, dtype: str = "bf16") -> str:
    """The fix for so many buckets in a step, with so many bytes in all."""
    row = ran(calls=10 * calls, bytes=round(10 * megabytes * 1e6), dtype=dtype)
    advice = exposed_communication(
        busy_pace(), steps(1 * MS), families(20 * MS), PATH, kinds(row), ops(REDUCED)
    )
    assert advice is not None
    return advice.fix


def test_few_buckets_get_smaller_and_others_stay() -> None:
    assert "bucket_cap_mb=4)" in buckets(2, 23)
    assert "now 2 for 23 MB" in buckets(2, 23)
    assert "bucket_cap_mb=12)" in buckets(3, 100)
    assert "bucket_cap_mb" not in buckets(5, 100)
    assert "bucket_cap_mb" not in buckets(2, 3)
    assert "bf16_compress_hook" in buckets(5, 100, "fp32")
    assert "bf16_compress_hook" not in buckets(5, 100)


def test_the_rate_is_told_with_the_link() -> None:
    row = ran(bytes=40 * 290_000_000, total_ns=40 * 7_660_000, group_size=8, one_machine=True, link="NVLink",
              algorithm_gb_per_s=37.8, bus_gb_per_s=33.1, best_bus_gb_per_s=81.9, link_gb_per_s=300.0,
              link_share=0.11)  # fmt: skip
    advice = exposed_communication(
        busy_pace(), steps(1 * MS), families(20 * MS), PATH, kinds(row), ops(REDUCED)
    )
    assert advice is not None
    assert (
        "4 all-reduces of 290 MB a step among 8 ranks of one machine take 7.66 ms each: 33.1 GB/s bus "
        "bandwidth, 11.0 % of the 300 GB/s of NVLink. The fastest reaches 81.9 GB/s" in advice.because
    )
