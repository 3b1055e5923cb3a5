"""What kernels lose while a collective runs beside them on the same device."""

from __future__ import annotations

from typing import Annotated

from stepscope.records import dataclass
from stepscope.runs.analyses import run_analysis
from stepscope.runs.many import ManyRanks
from stepscope.store.arrow_sql import ask
from stepscope.tables import Table

__all__ = ["OverlappedKernel", "overlapped_kernels"]


@dataclass(frozen=True, slots=True)
class OverlappedKernel:
    """A kernel of one launch shape that ran both alone and beside collectives, on the same ranks."""

    name: Annotated[str, "Name of the kernel."]
    launch_shape: Annotated[str, "Its grid and block: without these, runs of other sizes would be compared."]
    ranks: Annotated[int, "Ranks on which it ran both ways."]
    alone_calls: Annotated[int, "Runs during which no collective ran."]
    alone_mean_ns: Annotated[int, "How long these took on average."]
    beside_calls: Annotated[int, "Runs during all of which a collective ran."]
    beside_mean_ns: Annotated[int, "How long these took on average."]
    slower_share: Annotated[float, "By which part of the first the second is longer; below 0 if shorter."]
    lost_ns: Annotated[int, "What all runs beside collectives took longer, in a step of the mean rank."]


@run_analysis
def overlapped_kernels(run: ManyRanks) -> Table[OverlappedKernel]:
    """Compares kernels that ran beside collectives with the same kernels alone: overlap is not free.

    Collectives take multiprocessors and memory bandwidth. Each rank is compared with itself.
    """
    steps = {one.facts.rank: one.facts.work_steps or len(one.tables["steps"]) for one in run.summaries}
    whole = max(1, sum(steps.values()))
    rows = ask(_COMPARED, {"steps": whole}, work=run.stacked("work"))
    nothing = (
        []
        if rows.num_rows
        else ["No kernel of known launch shape ran both alone and beside a collective on the same rank."]
    )
    return Table(OverlappedKernel, rows, nothing)


_COMPARED = """
WITH both_ways AS (
    SELECT *, beside_ns - beside_calls * alone_ns / alone_calls AS lost
    FROM work WHERE alone_calls > 0 AND beside_calls > 0 AND launch_shape IS NOT NULL),
summed AS (
    SELECT name, launch_shape, count(*) AS ranks, sum(alone_calls)::BIGINT AS alone_calls,
           (sum(alone_ns) // sum(alone_calls))::BIGINT AS alone_mean_ns,
           sum(beside_calls)::BIGINT AS beside_calls,
           (sum(beside_ns) // sum(beside_calls))::BIGINT AS beside_mean_ns,
           sum(lost) / greatest(1, sum(beside_ns) - sum(lost)) AS slower_share,
           round(sum(lost) / $steps)::BIGINT AS lost_ns
    FROM both_ways GROUP BY name, launch_shape)
FROM summed ORDER BY lost_ns DESC, name, launch_shape
"""
