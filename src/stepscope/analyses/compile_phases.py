"""In which phases torch.compile spent its time."""

from __future__ import annotations

from typing import Annotated

from stepscope.analyses import analysis
from stepscope.analyses._compile_log import NO_LOG
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["CompilePhase", "compile_phases"]


@dataclass(frozen=True, slots=True)
class CompilePhase:
    """One phase of compiling, over all compilations of a rank."""

    rank: Annotated[int | None, "Rank that compiled."]
    name: Annotated[str, "Name of the phase, as torch has it."]
    times: Annotated[int, "How often."]
    total_ns: Annotated[int, "Summed time; phases inside one another count in both."]
    self_ns: Annotated[int, "The same without phases inside: these add up to all time of compiling."]
    share: Annotated[float | None, "Part of that sum which this phase has."]
    longest_ns: Annotated[int, "The longest of them."]
    longest_region: Annotated[str | None, "The region for which it was."]


_SQL = """
    SELECT rank, name, count(*) AS times, sum(dur_ns)::BIGINT AS total_ns, sum(self_ns)::BIGINT AS self_ns,
           sum(self_ns) / nullif(sum(sum(self_ns)) OVER (PARTITION BY rank), 0) AS share,
           max(dur_ns) AS longest_ns, arg_max(region, dur_ns) AS longest_region
    FROM logged_phases GROUP BY rank, name ORDER BY rank, self_ns DESC, name
"""


@analysis(reads={"logged_phases": ("rank", "region", "name", "dur_ns", "self_ns")})
def compile_phases(trace: Trace) -> Table[CompilePhase]:
    """Sums up the phases of compiling: tracing, autograd, Inductor, code; from a compile log."""
    table = trace.query(CompilePhase, _SQL)
    return table if len(table) else table.with_notes((NO_LOG,))
