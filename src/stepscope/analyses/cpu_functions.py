"""Which functions the CPU was in, by samples."""

from __future__ import annotations

from typing import Annotated

from stepscope.analyses import analysis
from stepscope.analyses._sampled import NO_SAMPLES, WEIGHED, sampled_notes
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["CpuFunction", "cpu_functions"]


@dataclass(frozen=True, slots=True)
class CpuFunction:
    """One function, over all samples of one event."""

    event: Annotated[str | None, "What was counted until a sample; NULL for time."]
    name: Annotated[str, "Name of the function."]
    module: Annotated[str | None, "Library, program or file it is in."]
    part: Annotated[str, "What kind of code it is: see cpu_parts."]
    self_samples: Annotated[int, "Samples in which it was the innermost."]
    self_share: Annotated[float | None, "Part of the weight of all samples."]
    total_samples: Annotated[int, "Samples in which it was open; once if it calls itself."]
    total_share: Annotated[float | None, "Part of the weight of all samples."]
    threads: Annotated[int, "In how many threads; 0 where the file does not tell them apart."]


_SQL = f"""
    WITH {WEIGHED},
    opened AS (SELECT DISTINCT stack, name, module, part, false AS innermost FROM placed),
    leaves AS (SELECT stack, name, module, part, true AS innermost FROM placed WHERE depth = 0),
    every AS (
        SELECT w.event, o.name, o.module, min(o.part) AS part, o.innermost, sum(w.samples)::BIGINT AS samples,
               sum(w.weight) AS weight, count(DISTINCT w.thread) AS threads
        FROM (FROM opened UNION ALL FROM leaves) o JOIN weighed w USING (stack)
        GROUP BY w.event, o.name, o.module, o.innermost),
    whole AS (SELECT event, sum(weight) AS weight FROM weighed GROUP BY event)
    SELECT e.event, name, module, min(part) AS part,
           coalesce(sum(samples) FILTER (innermost), 0)::BIGINT AS self_samples,
           coalesce(sum(e.weight) FILTER (innermost), 0) / nullif(any_value(w.weight), 0) AS self_share,
           coalesce(sum(samples) FILTER (NOT innermost), 0)::BIGINT AS total_samples,
           coalesce(sum(e.weight) FILTER (NOT innermost), 0) / nullif(any_value(w.weight), 0) AS total_share,
           max(threads) AS threads
    FROM every e JOIN whole w ON w.event IS NOT DISTINCT FROM e.event
    GROUP BY e.event, name, module
    ORDER BY e.event, self_share DESC NULLS LAST, total_share DESC NULLS LAST, name, module
"""


@analysis(
    reads={
        "cpu_samples": ("process", "thread", "command", "event", "samples", "weight", "stack"),
        "sampled_stacks": ("stack", "depth", "frame"),
        "sampled_frames": ("frame", "name", "module", "part"),
    }
)
def cpu_functions(trace: Trace) -> Table[CpuFunction]:
    """Ranks functions by the samples of the CPU in them: themselves, and with what they call."""
    table = trace.query(CpuFunction, _SQL)
    return table.with_notes(sampled_notes(trace) if len(table) else (NO_SAMPLES,))
