"""Whether a rank computes longer because it has more to do, or because its device takes longer for the same.

Work of one name and launch shape should take equally long everywhere: the median of the ranks is what it is
expected to take. What a rank's calls would take at that speed is how much it has to do; what it takes beyond
that, how slow it is. Work that no other rank does is taken to be as slow as the rest of the rank's.
"""

from __future__ import annotations

from statistics import median

from stepscope.records import dataclass
from stepscope.runs.many import ManyRanks
from stepscope.store.arrow_sql import ask

__all__ = ["WorkSplit", "work_splits"]


@dataclass(frozen=True, slots=True)
class WorkSplit:
    """Of a rank, in a step: by how much it has more to do than the median rank, and takes longer for it."""

    more_ns: float
    slower_ns: float
    steps: int
    """How many steps it is the mean of."""


def work_splits(run: ManyRanks) -> dict[int, WorkSplit]:
    """For every rank whose work is known."""
    found: dict[int, WorkSplit] = run.once("work_splits", lambda: _splits(run))
    return found


def _splits(run: ManyRanks) -> dict[int, WorkSplit]:
    steps = {one.facts.rank: one.facts.work_steps or len(one.tables["steps"]) for one in run.summaries}
    rows = ask(_EXPECTED, work=run.stacked("work")).to_pylist()
    per_step = {
        row["rank"]: (row["expected"] / steps[row["rank"]], row["spent"] / steps[row["rank"]])
        for row in rows
        if steps[row["rank"]]
    }
    if not per_step:
        return {}
    usual = median(expected for expected, _ in per_step.values())
    slow = median(spent - expected for expected, spent in per_step.values())
    return {
        rank: WorkSplit(expected - usual, spent - expected - slow, steps[rank])
        for rank, (expected, spent) in per_step.items()
    }


_EXPECTED = """
WITH usual AS (
    SELECT name, launch_shape, median(total_ns / calls) AS each, count(*) > 1 AS alike
    FROM work WHERE calls > 0 GROUP BY name, launch_shape),
sums AS (
    SELECT rank, sum(calls * each) FILTER (alike) AS expected, sum(total_ns) FILTER (alike) AS spent,
           coalesce(sum(total_ns) FILTER (NOT alike), 0) AS other
    FROM work JOIN usual
        ON usual.name = work.name AND usual.launch_shape IS NOT DISTINCT FROM work.launch_shape
    GROUP BY rank)
SELECT rank, coalesce(expected, 0) + other * coalesce(expected / spent, 1) AS expected,
       (coalesce(spent, 0) + other)::DOUBLE AS spent
FROM sums ORDER BY rank
"""
