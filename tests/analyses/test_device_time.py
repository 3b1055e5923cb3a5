"""Analyses of device time agree with one another, on every real profile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.data.make_samples import CUTS, HERE, SUFFIX
from tests.samples import FEW, SAMPLES, open_shared, tiered

import stepscope
from stepscope.analyses.attention import attention
from stepscope.analyses.copies import copies
from stepscope.analyses.devices import devices
from stepscope.analyses.kernel_families import kernel_families
from stepscope.analyses.kernels import kernels
from stepscope.analyses.precision import precision
from stepscope.costs.families import FAMILIES
from stepscope.store.trace import Trace

RECORDED = sorted(path.name for path in (HERE / "recordings").glob("*.trace.json.gz"))
FUSED = ("flash", "cudnn", "memory-efficient", "flex", "paged", "unknown")


@pytest.mark.parametrize("name", CUTS)
def test_a_cut_profile(name: str, tmp_path: Path) -> None:
    check(stepscope.open(HERE / (name + SUFFIX), store=tmp_path))


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_profile(name: str, tmp_path: Path) -> None:
    check(stepscope.open(HERE / "recordings" / name, store=tmp_path))


@pytest.mark.parametrize("name", tiered(SAMPLES, FEW))
def test_a_real_profile(name: str, sample: Callable[[str], Path], tmp_path: Path) -> None:
    check(open_shared(sample(name)))


def check(trace: Trace) -> None:
    """All that has to be the same however one asks."""
    check_kernels(trace)
    families = {row.family: row for row in kernel_families(trace)}
    assert set(families) <= set(FAMILIES)
    busy = sum(row.exclusive_ns for row in families.values())
    marked = [row for row in devices(trace) if row.window == "steps"]
    if marked:
        assert busy == sum(row.busy_ns for row in marked)
    if busy:
        assert sum(row.share or 0 for row in families.values()) == pytest.approx(1, rel=1e-12)
    for row in families.values():
        assert 0 <= row.exclusive_ns <= row.total_ns
    used = list(precision(trace))
    for family in ("matmul", "attention", "convolution"):
        whole = families[family].total_ns if family in families else 0
        assert sum(row.total_ns for row in used if row.family == family) == whole
    fused = [row for row in attention(trace) if row.backend in FUSED]
    whole = families["attention"].total_ns if "attention" in families else 0
    assert sum(row.forward_ns + row.backward_ns for row in fused) == whole
    check_copies(trace)


def check_kernels(trace: Trace) -> None:
    by_name, by_shape = list(kernels(trace)), list(kernels(trace, by="shape"))
    assert sum(row.calls for row in by_name) == sum(row.calls for row in by_shape)
    assert sum(row.total_ns for row in by_name) == sum(row.total_ns for row in by_shape)
    ran = sum(row.kernel_ns for row in devices(trace) if row.window == "span")
    assert sum(row.exclusive_ns for row in by_name) == ran
    assert sum(row.exclusive_ns for row in by_shape) == ran
    assert all(0 <= row.exclusive_ns <= row.total_ns for row in by_name)


def check_copies(trace: Trace) -> None:
    rows = list(copies(trace))
    for row in rows:
        assert row.overlapped_ns + row.exposed_ns == row.total_ns
        assert min(row.overlapped_ns, row.exposed_ns, row.blocked_ns) >= 0
        assert row.blocked_ns <= min(row.total_ns, row.host_ns) or row.calls > 1
    for by in ("op", "frame"):
        parts = copies(trace, by=by)
        assert sum(row.calls for row in parts) == sum(row.calls for row in rows)
        assert sum(row.overlapped_ns for row in parts) == sum(row.overlapped_ns for row in rows)
