"""The steps of a run: those of its ranks together."""

from __future__ import annotations

from typing import Annotated

from stepscope.records import dataclass
from stepscope.runs.analyses import run_analysis
from stepscope.runs.analyses.rank_steps import rank_steps
from stepscope.runs.many import ManyRanks
from stepscope.store.arrow_sql import ask
from stepscope.tables import Table
from stepscope.units import counted

__all__ = ["RunStep", "run_steps"]


@dataclass(frozen=True, slots=True)
class RunStep:
    """Step k of all ranks together, on the reference clock."""

    step: Annotated[int, "Number of the step."]
    start_ns: Annotated[int, "When the first rank began it."]
    end_ns: Annotated[int, "When the last rank ended it."]
    step_ns: Annotated[int, "From the one to the other."]
    ranks: Annotated[int, "Ranks that recorded it."]
    first_rank: Annotated[int, "Who began first."]
    last_rank: Annotated[int, "Who ended last."]
    longest_rank: Annotated[int, "Who did most itself: the longest own time in it."]


@run_analysis
def run_steps(run: ManyRanks) -> Table[RunStep]:
    """Lists the steps of the run, from the earliest start to the latest end of its ranks."""
    steps = rank_steps(run)
    rows = ask(_STEPS, steps=steps.arrow)
    notes = list(steps.notes)
    apart = ask("SELECT count(DISTINCT rank) AS n FROM steps WHERE start_ns IS NULL", steps=steps.arrow)
    if unaligned := apart.to_pylist()[0]["n"]:
        notes.append(f"Without {counted(unaligned, 'rank')} that could not be aligned.")
    few = ask("SELECT count(*) AS n FROM rows WHERE ranks < (SELECT max(ranks) FROM rows)", rows=rows)
    if lacking := few.to_pylist()[0]["n"]:
        notes.append(f"{counted(lacking, 'step')} of these were not recorded by all ranks.")
    return Table(RunStep, rows, notes)


_STEPS = """
SELECT step, min(start_ns) AS start_ns, max(end_ns) AS end_ns, max(end_ns) - min(start_ns) AS step_ns,
       count(*) AS ranks, arg_min(rank, (start_ns, rank)) AS first_rank,
       arg_min(rank, (-end_ns, rank)) AS last_rank, arg_min(rank, (-own_ns, rank)) AS longest_rank
FROM steps WHERE start_ns IS NOT NULL GROUP BY step ORDER BY step
"""
