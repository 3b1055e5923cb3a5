from __future__ import annotations

from typing import Any

import pytest
from tests.findings.drawn import MS, assert_bounded, drawn, mean_step

from stepscope.analyses.copies import Copy
from stepscope.analyses.gpu_health import GpuHealth
from stepscope.findings import Advice
from stepscope.findings.rules.distant_numa_node import distant_numa_node

GPU = {
    "device": 0,
    "numa_node": 1,
    "process_numa_nodes": "0",
    "link_generation": 4,
    "max_link_generation": 4,
    "link_width": 16,
}
# Ten steps, 31.5 MB in 2 ms each; the link would take 1 ms.
COPY = {
    "direction": "HtoD",
    "host_memory": "pinned",
    "calls": 10,
    "bytes": 315_040_000,
    "total_ns": 20 * MS,
    "exposed_ns": 20 * MS,
}


def judged(gpu: dict[str, Any], *copies: dict[str, Any], **thresholds: float) -> Advice | None:
    return distant_numa_node(mean_step(), drawn(GpuHealth, gpu), drawn(Copy, *copies), **thresholds)


def test_a_gpu_of_the_other_node() -> None:
    advice = assert_bounded(judged(GPU, COPY), mean_step())
    assert advice.saving.waited_ns == pytest.approx((0, 1 * MS))
    assert "NUMA node 1" in advice.because
    assert "--cpunodebind=1" in advice.fix


def test_without_the_rate_of_the_link_all_of_it_is_possible() -> None:
    advice = assert_bounded(judged({**GPU, "link_width": None}, COPY), mean_step())
    assert advice.saving.waited_ns == pytest.approx((0, 2 * MS))


def test_it_is_silent_at_home_and_where_nothing_is_copied() -> None:
    assert judged({**GPU, "process_numa_nodes": "0, 1"}, COPY) is None
    assert judged({**GPU, "process_numa_nodes": None}, COPY) is None
    assert judged({**GPU, "numa_node": None}, COPY) is None
    assert judged({**GPU, "device": 1}, COPY) is None
    assert judged(GPU) is None
    assert judged(GPU, {**COPY, "exposed_ns": 0}) is None
    assert judged(GPU, {**COPY, "total_ns": 10 * MS, "exposed_ns": 10 * MS}) is None
    assert judged(GPU, COPY, least_share=0.5) is None


def test_eleven_is_not_one() -> None:
    assert_bounded(judged({**GPU, "process_numa_nodes": "11"}, COPY), mean_step())
