"""The CPUs and the memory that a process may use: affinity, NUMA nodes, limits of its container."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

__all__ = ["cpus_in", "limits_of_container", "numa_nodes", "processors", "ranges_of"]

_UNLIMITED = 1 << 60
"""Version 1 of control groups writes a number near 2⁶³ where there is no limit."""
_MOST_CPUS = 1 << 16


def processors(root: Path = Path("/")) -> dict[str, Any]:
    """Model, number and allowance of the CPUs; `available` is how many the process can keep busy.

    What cannot be known is left out.
    """
    allowed = _affinity()
    count = os.cpu_count()
    limits = limits_of_container(root)
    usable = len(allowed) if allowed else count
    quota = limits.get("cpu_quota")
    found: dict[str, Any] = {
        "model": _model(root),
        "count": count,
        "affinity": ranges_of(allowed) if allowed else None,
        "available": min(float(usable), quota) if usable and quota else usable,
        **limits,
    }
    nodes = numa_nodes(root)
    if nodes and allowed:
        found["numa_nodes"] = len(nodes)
        found["affinity_numa_nodes"] = sorted(node for node, cpus in nodes.items() if cpus & allowed)
    return {name: value for name, value in found.items() if value is not None}


def _affinity() -> set[int]:
    if not hasattr(os, "sched_getaffinity"):  # not on macOS
        return set()
    return os.sched_getaffinity(0)


def _model(root: Path) -> str | None:
    for line in _lines(root / "proc/cpuinfo"):
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Model"):
            return value.strip()[:200]
    return platform.processor() or platform.machine() or None


def numa_nodes(root: Path = Path("/")) -> dict[int, set[int]]:
    """The CPUs of each NUMA node that has any; none where the system does not tell."""
    folder = root / "sys/devices/system/node"
    found: dict[int, set[int]] = {}
    for place in sorted(folder.glob("node[0-9]*")):
        cpus = cpus_in(_text(place / "cpulist"))
        if cpus and place.name[4:].isdigit():
            found[int(place.name[4:])] = cpus
    return found


def cpus_in(text: str) -> set[int]:
    """The numbers in a list such as `0-3,8`."""
    found: set[int] = set()
    for piece in text.strip().split(","):
        first, _, last = piece.partition("-")
        if first.strip().isdigit() and (last or first).strip().isdigit() and int(last or first) < _MOST_CPUS:
            found.update(range(int(first), int(last or first) + 1))
    return found


def ranges_of(numbers: set[int]) -> str:
    """Numbers as such a list."""
    pieces: list[list[int]] = []
    for number in sorted(numbers):
        if pieces and number == pieces[-1][1] + 1:
            pieces[-1][1] = number
        else:
            pieces.append([number, number])
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in pieces)


def limits_of_container(root: Path = Path("/")) -> dict[str, Any]:
    """CPUs and bytes of memory that the control groups of the process allow, the tightest around it."""
    quotas: list[float] = []
    memory: list[int] = []
    for group in _groups(root):
        if (quota := _quota(group)) is not None:
            quotas.append(quota)
        for name in ("memory.max", "memory.limit_in_bytes"):
            text = _text(group / name).strip()
            if text.isdigit() and 0 < int(text) < _UNLIMITED:
                memory.append(int(text))
    found: dict[str, Any] = {
        "cpu_quota": min(quotas, default=None),
        "memory_limit_bytes": min(memory, default=None),
    }
    return {name: value for name, value in found.items() if value is not None}


def _groups(root: Path) -> Iterator[Path]:
    """The folders of the process's control groups and of those around them, of either version."""
    top = root / "sys/fs/cgroup"
    for line in _lines(root / "proc/self/cgroup"):
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if ".." in PurePosixPath(path).parts:  # outside of what the container sees
            path = "/"
        if controllers and not {"cpu", "memory"} & set(controllers.split(",")):
            continue
        # The second version lies at the top, or beside the first one in `unified`.
        places = (
            [top / controllers, *(top / one for one in controllers.split(","))]
            if controllers
            else [top, top / "unified"]
        )
        for place in dict.fromkeys(places):
            inner = place / path.strip().lstrip("/")
            yield inner
            yield from (outer for outer in inner.parents if outer.is_relative_to(place))


def _quota(group: Path) -> float | None:
    words = _text(group / "cpu.max").split()
    if not words:
        words = [_text(group / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
    if len(words) == 2 and all(word.isdigit() and int(word) for word in words):
        return int(words[0]) / int(words[1])
    return None


def _text(path: Path) -> str:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(1 << 16)
    except OSError:
        return ""


def _lines(path: Path) -> list[str]:
    return _text(path).splitlines()
