"""Rows of expected tables, short to write, and the list of traps.

A trap is a function that returns a drawing and whole tables; times in the tables are ns, in the drawing µs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.analyses.comparing import Row
from tests.drawing import Drawing

Drawn = tuple[Drawing, dict[str, list[Row]]]
Trap = Callable[[], Drawn]
TRAPS: list[Trap] = []


def trap(function: Trap) -> Trap:
    TRAPS.append(function)
    return function


def op(name: str, calls: int, host: tuple[int, int, int], device: tuple[int, int] = (0, 0)) -> Row:
    """Host: total, self, self without runtime calls. Device: self, total."""
    return {
        "name": name,
        "calls": calls,
        "host_total_ns": host[0],
        "host_self_ns": host[1],
        "host_self_no_runtime_ns": host[2],
        "device_self_ns": device[0],
        "device_total_ns": device[1],
    }


def kernel(name: str, durations: list[int], share: float | None) -> Row:
    return {
        "name": name,
        "calls": len(durations),
        "total_ns": sum(durations),
        "mean_ns": sum(durations) / len(durations),
        "min_ns": min(durations),
        "max_ns": max(durations),
        "share": share,
    }


def call(name: str, calls: int, total_ns: int) -> Row:
    return {"name": name, "calls": calls, "total_ns": total_ns}


def category(name: str | None, phase: str | None, events: int, total_ns: int | None) -> Row:
    return {"category": name, "phase": phase, "events": events, "total_ns": total_ns}


def device(name: str, window_ns: int, busy_ns: int, **figures: Any) -> Row:
    """A device over its span, whose kernels all compute and fill its busy time unless said otherwise."""
    kernel_ns = figures.get("kernel_ns", busy_ns)
    row = {
        "device": name,
        "window": "span",
        "window_ns": window_ns,
        "busy_ns": busy_ns,
        "idle_ns": window_ns - busy_ns,
        "kernel_ns": kernel_ns,
        "compute_ns": kernel_ns,
        "communication_ns": 0,
        "exposed_communication_ns": 0,
        "overlap_share": None,
        "memcpy_ns": 0,
        "memset_ns": 0,
        "unlinked_ns": 0,
        "utilization_share": kernel_ns / window_ns if window_ns else None,
        "sm_efficiency_share": None,
    }
    return {**row, **figures}
