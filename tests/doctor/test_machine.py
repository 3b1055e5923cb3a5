"""What is read off a machine, from files laid out as the kernel and the driver lay them out."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.doctor.machine import look


def lay(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_limits_of_the_second_kind_of_groups(tmp_path: Path) -> None:
    group = {"cpu.max": "150000 100000\n", "memory.max": "8589934592\n", "memory.current": "1073741824\n"}
    found = look(lay(tmp_path, {f"sys/fs/cgroup/{name}": text for name, text in group.items()}), {})
    assert (found.cpu_limit, found.memory_limit_bytes, found.memory_used_bytes) == (1.5, 8 << 30, 1 << 30)


def test_limits_of_the_first_kind_of_groups(tmp_path: Path) -> None:
    group = {
        "cpu/cpu.cfs_quota_us": "400000",
        "cpu/cpu.cfs_period_us": "100000",
        "memory/memory.limit_in_bytes": "1073741824",
        "memory/memory.usage_in_bytes": "5",
    }
    found = look(lay(tmp_path, {f"sys/fs/cgroup/{name}": text for name, text in group.items()}), {})
    assert (found.cpu_limit, found.memory_limit_bytes, found.memory_used_bytes) == (4, 1 << 30, 5)


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"cpu.max": "max 100000\n", "memory.max": "max\n", "memory.current": "5\n"},
        {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"},
        {"memory/memory.limit_in_bytes": "9223372036854771712", "memory/memory.usage_in_bytes": "5"},
    ],
)
def test_no_limits(tmp_path: Path, files: dict[str, str]) -> None:
    found = look(lay(tmp_path, {f"sys/fs/cgroup/{name}": text for name, text in files.items()}), {})
    assert (found.cpu_limit, found.memory_limit_bytes, found.memory_used_bytes) == (None, None, None)


@pytest.mark.parametrize("value,admin_only", [("1", True), ("0", False)])
def test_who_may_read_counters(tmp_path: Path, value: str, admin_only: bool) -> None:
    params = f"ResmanDebugLevel: 4294967295\nRmProfilingAdminOnly: {value}\nTCEBypassMode: 0\n"
    assert look(lay(tmp_path, {"proc/driver/nvidia/params": params}), {}).admin_only is admin_only


def test_other_profilers(tmp_path: Path) -> None:
    lay(
        tmp_path, {"proc/12/comm": "nv-hostengine\n", "proc/13/comm": "python3\n", "proc/self/comm": "nsys\n"}
    )
    found = look(tmp_path, {"CUDA_INJECTION64_PATH": "/opt/inject.so"})
    assert found.owners == ("DCGM (process 12, nv-hostengine)", "what CUDA_INJECTION64_PATH names")


def test_an_empty_machine(tmp_path: Path) -> None:
    found = look(tmp_path, {})
    assert (found.admin_only, found.owners, found.perf_paranoid, found.ptrace_scope) == (None, (), None, None)
    assert found.memory_bytes is None
    assert found.cpus >= 1


def test_this_machine() -> None:
    found = look()
    assert found.temporary_bytes
    assert found.here_bytes
