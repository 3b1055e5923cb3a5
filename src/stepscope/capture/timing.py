"""How long steps take without a profiler, by the host's clock, or by marks in the GPU's queue.

The host runs ahead of a GPU, so its clock alone says little about one step. An event in the queue is reached
when the GPU is done with the step before it. Nobody waits for it: its time is read afterwards.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

__all__ = ["StepClock", "summary", "uses_cuda"]

_LEAST_ERROR = 0.002
"""No mean is better known than this: clocks of GPUs and hosts drift."""
_T_95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13)
"""Student's t for a 95 % interval, by degrees of freedom from 1."""


class StepClock:
    """Takes the time at each end of a step."""

    def __init__(self, most: int) -> None:
        """`most` is how many marks are taken at most: their events are made beforehand."""
        self._host_ns: list[int] = []
        self._events = _timed_events(most + 1) if uses_cuda() else []

    def mark(self) -> None:
        """A step ends, or the first one begins."""
        at = len(self._host_ns)
        if at < len(self._events):
            self._events[at].record()
        self._host_ns.append(time.perf_counter_ns())

    def steps_ns(self) -> list[int]:
        """The length of each step; waits for the device's last mark."""
        marks = len(self._host_ns)
        if not self._events or marks > len(self._events):
            return [after - before for before, after in pairwise(self._host_ns)]
        used = self._events[:marks]
        if marks:
            used[-1].synchronize()
        return [round(before.elapsed_time(after) * 1e6) for before, after in pairwise(used)]


def uses_cuda() -> bool:
    """Whether the program has started CUDA."""
    import torch

    return bool(torch.cuda.is_initialized())


def _timed_events(count: int) -> list[Any]:
    import torch

    return [torch.cuda.Event(enable_timing=True) for _ in range(count)]


def summary(steps_ns: Sequence[int]) -> dict[str, int] | None:
    """Mean and median of steps, and the 95 % interval of the mean; None without any."""
    if not steps_ns:
        return None
    mean = statistics.fmean(steps_ns)
    error = _LEAST_ERROR * mean
    if len(steps_ns) > 1:
        freedom = len(steps_ns) - 1
        factor = _T_95[freedom - 1] if freedom <= len(_T_95) else 2.0
        error = max(error, factor * statistics.stdev(steps_ns) / math.sqrt(len(steps_ns)))
    return {
        "mean": round(mean),
        "median": round(statistics.median(steps_ns)),
        "low": max(1, round(mean - error)),
        "high": round(mean + error),
        "steps": len(steps_ns),
    }
