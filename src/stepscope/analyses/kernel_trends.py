"""Whether the same kernels took longer, the longer the recording went on."""

from __future__ import annotations

from typing import Annotated

from stepscope.analyses import analysis
from stepscope.analyses.iterations import iterations
from stepscope.analyses.kernels import kernels
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["KernelTrend", "kernel_trends"]

LEAST_STEPS = 4
LIMITED_BY_CLOCK = ("matmul", "convolution")
"""Families whose time follows the clock. Attention may have more to do in each step."""
LEAST_MEAN_NS = 10_000
MOST_NAMES = 64


@dataclass(frozen=True, slots=True)
class KernelTrend:
    """A kernel with one launch shape that runs equally often in each step."""

    name: Annotated[str, "Name of the kernel."]
    grid: Annotated[str | None, "Blocks in x, y, z."]
    device: Annotated[str, "The device, by its index."]
    steps: Annotated[int, "Steps that it runs in: all of them."]
    calls_per_step: Annotated[int, "How often it runs in each."]
    first_ns: Annotated[float, "Its time in a step, median of the first quarter of the steps."]
    middle_ns: Annotated[float, "The same of the two quarters in the middle."]
    last_ns: Annotated[float, "The same of the last quarter."]


_SQL = f"""
    WITH marks AS (
        SELECT start_ns, end_ns, row_number() OVER (ORDER BY start_ns, end_ns) AS place FROM steps),
    work AS (
        SELECT w.name, w.grid, w.device_name, m.place, coalesce(w.dur_ns, 0) AS dur_ns
        FROM (SELECT name, grid::VARCHAR AS grid, device_name, start_ns, dur_ns FROM device_work
              WHERE kind = 'kernel' AND NOT communicates AND list_contains($names, name)) w
        ASOF JOIN marks m ON w.start_ns >= m.start_ns WHERE w.start_ns < m.end_ns),
    in_steps AS (
        SELECT name, grid, device_name, place, count(*) AS calls, sum(dur_ns)::BIGINT AS total_ns
        FROM work GROUP BY name, grid, device_name, place),
    numbered AS (SELECT *, (place - 1) * 4 // (SELECT count(*) FROM marks) AS quarter FROM in_steps)
    SELECT name, grid, device_name AS device, count(*) AS steps, min(calls) AS calls_per_step,
           median(total_ns) FILTER (quarter = 0) AS first_ns,
           median(total_ns) FILTER (quarter IN (1, 2)) AS middle_ns,
           median(total_ns) FILTER (quarter = 3) AS last_ns
    FROM numbered GROUP BY name, grid, device_name
    HAVING count(*) = (SELECT count(*) FROM marks) AND min(calls) = max(calls)
       AND median(total_ns) >= {LEAST_MEAN_NS} * min(calls)
    ORDER BY sum(total_ns) DESC, name, grid
"""


@analysis(
    reads={
        "steps": ("start_ns", "end_ns"),
        "device_work": ("name", "device_name", "start_ns", "dur_ns", "kind", "communicates", "grid"),
    }
)
def kernel_trends(trace: Trace) -> Table[KernelTrend]:
    """Compares the time of matrix products and convolutions early and late in the recording.

    A row is a kernel of one name and launch shape that runs equally often in each step, for 10 µs or more. A
    GPU that lowers its clock, because it is hot or at its power limit, slows down all of them alike.
    """
    steps = len(iterations(trace))
    if steps < LEAST_STEPS:
        return Table.of(KernelTrend, [], [f"For a trend there have to be at least {LEAST_STEPS} steps."])
    names = [
        row.name
        for row in kernels(trace)
        if row.name and row.family in LIMITED_BY_CLOCK and row.calls >= steps and row.max_ns >= LEAST_MEAN_NS
    ][:MOST_NAMES]
    if not names:
        return Table.of(KernelTrend, [], ["No matrix product or convolution of 10 µs runs in every step."])
    found = trace.query(KernelTrend, _SQL, names=names)
    return found if len(found) else found.with_notes(["No kernel runs alike in enough of the steps."])
