"""What the machine itself says: limits of the container, disks, permissions, other profilers."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from stepscope.records import dataclass

__all__ = ["Machine", "look"]

_OWNERS = {
    "nsys": "Nsight Systems",
    "nsys-launcher": "Nsight Systems",
    "ncu": "Nsight Compute",
    "nv-nsight-cu-cli": "Nsight Compute",
    "nv-hostengine": "DCGM",
    "dcgm-exporter": "DCGM",
}
"""Programs that may hold what CUPTI gives to one at a time."""
_INJECTIONS = ("CUDA_INJECTION64_PATH", "NSYS_PROFILING_SESSION_ID")
_UNLIMITED = 1 << 60


@dataclass(frozen=True, slots=True)
class Machine:
    """What was read off the machine; None is not known or not limited."""

    cpus: int
    """How many processors there are for us."""
    cpu_limit: float | None
    memory_bytes: int | None
    """What the machine has."""
    memory_limit_bytes: int | None
    memory_used_bytes: int | None
    """Of the limit."""
    shared_bytes: int | None
    """Free in /dev/shm, through which loader workers hand over batches."""
    temporary_bytes: int | None
    """Free on the disk for temporary files."""
    here_bytes: int | None
    admin_only: bool | None
    """Whether counters of NVIDIA GPUs are for administrators."""
    owners: tuple[str, ...]
    """Other profilers that run, or are injected into what we start."""
    perf_paranoid: int | None
    ptrace_scope: int | None
    is_root: bool


def look(root: Path = Path("/"), environment: Mapping[str, str] = os.environ) -> Machine:
    """Looks at the machine whose files are below `root`."""
    cpu_limit, memory_limit, memory_used = _limits(root)
    return Machine(
        cpus=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        cpu_limit=cpu_limit,
        memory_bytes=_memory(root),
        memory_limit_bytes=memory_limit,
        memory_used_bytes=memory_used,
        shared_bytes=_free(root / "dev/shm"),
        temporary_bytes=_free(Path(tempfile.gettempdir())),
        here_bytes=_free(Path.cwd()),
        admin_only=_admin_only(root),
        owners=tuple(sorted(set(_owners(root, environment)))),
        perf_paranoid=_number(root / "proc/sys/kernel/perf_event_paranoid"),
        ptrace_scope=_number(root / "proc/sys/kernel/yama/ptrace_scope"),
        is_root=os.geteuid() == 0,
    )


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def _number(path: Path) -> int | None:
    """A whole number in a file; None where there is none, as `max`."""
    try:
        return int(_text(path) or "")
    except ValueError:
        return None


def _limits(root: Path) -> tuple[float | None, int | None, int | None]:
    """Processors and bytes that the container may use, and the bytes that it does: cgroup 2, else 1."""
    group = root / "sys/fs/cgroup"
    processors: float | None = None
    quota = (_text(group / "cpu.max") or "").split()
    if len(quota) == 2 and quota[0].isdigit():
        processors = int(quota[0]) / int(quota[1])
    elif not quota:
        spent, period = (_number(group / f"cpu/cpu.cfs_{name}_us") for name in ("quota", "period"))
        processors = spent / period if spent and period and spent > 0 else None
    most = _number(group / "memory.max") or _number(group / "memory/memory.limit_in_bytes")
    used = _number(group / "memory.current") or _number(group / "memory/memory.usage_in_bytes")
    if most is None or most >= _UNLIMITED:
        return processors, None, None
    return processors, most, used


def _memory(root: Path) -> int | None:
    for line in (_text(root / "proc/meminfo") or "").splitlines():
        name, _, rest = line.partition(":")
        if name == "MemTotal":
            return int(rest.split()[0]) * 1024
    return None


def _free(path: Path) -> int | None:
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return None


def _admin_only(root: Path) -> bool | None:
    """What NVreg_RestrictProfilingToAdminUsers was set to when the driver was loaded."""
    for line in (_text(root / "proc/driver/nvidia/params") or "").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("RmProfilingAdminOnly", "RestrictProfilingToAdminUsers"):
            return value.strip() == "1"
    return None


def _owners(root: Path, environment: Mapping[str, str]) -> Iterator[str]:
    for variable in _INJECTIONS:
        if environment.get(variable):
            yield f"what {variable} names"
    for entry in (root / "proc").glob("[0-9]*/comm"):
        name = _text(entry) or ""
        if name in _OWNERS:
            yield f"{_OWNERS[name]} (process {entry.parent.name}, {name})"
