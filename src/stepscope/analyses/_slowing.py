"""The doubt about a GPU that slowed down while it was recorded."""

from __future__ import annotations

from collections.abc import Iterator

from stepscope import units
from stepscope.analyses._caveats import Caveat, Steps
from stepscope.analyses.kernel_trends import KernelTrend, kernel_trends
from stepscope.store.trace import Trace

__all__ = ["slower_device"]

LEAST_SLOWDOWN = 0.05
AGREEING_SHARE = 0.8
LEAST_KERNELS = 2
"""One kernel alone may have got more to do: with the same grid, the inner size of a product may grow."""


def slower_device(trace: Trace, steps: Steps) -> Iterator[Caveat]:
    """Products and convolutions that take longer and longer, though nothing about them changes."""
    rows = list(kernel_trends(trace))
    first, middle, last = (
        sum(getattr(row, f"{part}_ns") for row in rows) for part in ("first", "middle", "last")
    )
    slower = last / first - 1 if first else 0.0
    if len(rows) < LEAST_KERNELS or slower < LEAST_SLOWDOWN or not _agree(rows, slower):
        return
    if not first * (1 + slower / 4) <= middle <= last * (1 + slower / 4):
        return  # it jumps: something else changed
    count = rows[0].steps
    mean = (first + 2 * middle + last) / 4
    yield steps.doubt(
        "GPU slows down",
        count,
        round(max(0.0, last - mean) * count),
        f"The same matrix products and convolutions took {units.percent(slower)} longer in the last quarter "
        "of the steps than in the first: the GPU lowers its clock at its power or temperature limit, or "
        "others use it, too. Steps of a long run are at least as long as the last ones here.",
        "Compare with recordings from the same time of a run. What limits the clock: `nvidia-smi -q -d "
        "PERFORMANCE`, or `amd-smi metric --clock --power --temperature` on AMD.",
    )


def _agree(rows: list[KernelTrend], slower: float) -> bool:
    """Whether nearly all of them got slower, by time."""
    slowed = sum(row.first_ns for row in rows if row.last_ns >= row.first_ns * (1 + slower / 2))
    return slowed >= AGREEING_SHARE * sum(row.first_ns for row in rows)
