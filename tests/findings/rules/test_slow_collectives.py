from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import MS, assert_bounded, busy_pace, drawn, facts

from stepscope.analyses.collective_kinds import CollectiveKind
from stepscope.analyses.kernel_families import KernelFamily
from stepscope.analyses.steps import Step
from stepscope.findings import Advice
from stepscope.findings.program import Vendor
from stepscope.findings.rules.slow_collectives import slow_collectives


def row(
    *, megabytes: float = 20.0, each_ms: float = 2.0, best_ms: float | None = None, **more: Any
) -> dict[str, Any]:
    """Ten all-reduces of eight ranks on NVLink of 450 GB/s, one in each of ten steps; all exposed."""
    best_ms = each_ms if best_ms is None else best_ms
    rate, best = megabytes / each_ms, megabytes / best_ms  # GB/s
    given = {
        "kind": "all-reduce", "backend": "device", "group_size": 8, "one_machine": True, "calls": 10,
        "bytes": round(10 * megabytes * 1e6), "total_ns": round(10 * each_ms * MS),
        "min_ns": round(best_ms * MS),
        "exposed_ns": round(10 * each_ms * MS), "algorithm_gb_per_s": rate, "bus_gb_per_s": 1.75 * rate,
        "best_bus_gb_per_s": 1.75 * best, "link": "NVLink", "link_gb_per_s": 450.0,
        "link_share": 1.75 * rate / 450,
    }  # fmt: skip
    return {**given, **more}


def judged(*rows: dict[str, Any], vendor: Vendor = Vendor.NVIDIA, **thresholds: Any) -> Advice | None:
    exposed = sum(one["exposed_ns"] for one in rows) // 10
    return slow_collectives(
        busy_pace(),
        facts(vendor=vendor),
        drawn(Step, *[{"dur_ns": 10 * MS, "communication_ns": exposed}] * 10),
        drawn(KernelFamily, {"family": "communication", "total_ns": 10 * exposed}),
        drawn(CollectiveKind, *rows),
        **thresholds,
    )


def test_it_fires_and_leaves_what_the_link_needs() -> None:
    # 20 MB in 2 ms: 17.5 GB/s of 450.
    advice = assert_bounded(judged(row()), busy_pace())
    assert advice.saving.device_ns == pytest.approx((0.0, 2 * MS * (1 - 17.5 / 450)))
    assert "A rank is late, or the fast path was not taken" in advice.because
    assert "1 all-reduce of 20.0 MB a step among 8 ranks of one machine takes 2.00 ms" in advice.because
    assert "17.5 GB/s bus bandwidth, 3.9 % of the 450 GB/s of NVLink" in advice.because
    assert "--nproc-per-node 8" in advice.fix


def test_the_commands_are_those_of_the_vendor() -> None:
    nvidia, amd = judged(row()), judged(row(), vendor=Vendor.AMD)
    assert nvidia
    assert amd
    assert "nvidia-smi" in nvidia.fix
    assert "nvidia" not in amd.fix
    assert "rocm-smi" in amd.fix


def test_it_is_silent_where_the_link_is_used() -> None:
    assert judged(row(megabytes=200.0, each_ms=2.0)) is None  # 175 GB/s
    assert judged(row(megabytes=50.0, each_ms=2.0)) is None  # 44 GB/s, a tenth


def test_one_fast_call_shows_that_the_link_works() -> None:
    assert judged(row(each_ms=4.0, best_ms=0.2)) is None


def test_it_is_silent_for_small_messages_and_latency() -> None:
    assert judged(row(megabytes=0.5, each_ms=2.0)) is None
    assert judged(row(megabytes=2.0, each_ms=0.5), least_share=0.0) is None


def test_it_is_silent_where_the_link_is_not_known() -> None:
    unknown: dict[str, Any] = {"link": None, "link_gb_per_s": None, "link_share": None}
    assert judged(row(one_machine=False, **unknown)) is None
    assert judged(row(bytes=None, algorithm_gb_per_s=None, bus_gb_per_s=None, link_share=None)) is None
    assert judged() is None


def test_it_is_silent_where_little_is_exposed_or_others_are() -> None:
    assert judged(row(exposed_ns=round(0.3 * 10 * MS))) is None
    assert judged(row(exposed_ns=round(0.3 * 10 * MS)), least_share=0.02) is not None
    assert judged(row(), row(kind="all-gather", megabytes=900.0, each_ms=4.0)) is None
