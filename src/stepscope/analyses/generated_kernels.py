"""What the kernels that Inductor generated compute, and what they cost."""

from __future__ import annotations

from typing import Annotated

from stepscope import units
from stepscope.analyses import analysis
from stepscope.analyses._compile_log import NO_LOG
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["GeneratedKernel", "generated_kernels"]


@dataclass(frozen=True, slots=True)
class GeneratedKernel:
    """One generated kernel: what it computes, by the log, and what it took, by the trace."""

    name: Annotated[str, "Its name, in the log and in the trace."]
    region: Annotated[str | None, "The compiled region that has it; the first, if several do."]
    regions: Annotated[int, "How many regions have one of this name."]
    ops: Annotated[str | None, "Operators that it computes, as ATen names them."]
    lines: Annotated[str | None, "Lines of the program that these came from, file:line."]
    code: Annotated[str | None, "Text of the first of these lines."]
    configs: Annotated[int | None, "Configurations that were timed for it."]
    compile_ns: Annotated[int | None, "How long its compilation took."]
    calls: Annotated[int, "How often it ran in the trace; 0 without a trace."]
    device_ns: Annotated[int, "Its device time in the trace."]
    share: Annotated[float | None, "Part of the trace's kernel time."]


_SQL = """
    WITH made AS (
        SELECT name, min(region) AS region, count(DISTINCT (process, region)) AS regions, min(ops) AS ops,
               arg_min(lines, coalesce(region, '')) AS lines, arg_min(code, coalesce(region, '')) AS code,
               max(configs) AS configs,
               max(compile_ns) AS compile_ns
        FROM logged_kernels GROUP BY name),
    ran AS (
        SELECT name, count(*) AS calls, sum(dur_ns)::BIGINT AS device_ns FROM device_work
        WHERE kind = 'kernel' GROUP BY name)
    SELECT m.*, coalesce(r.calls, 0) AS calls, coalesce(r.device_ns, 0) AS device_ns,
           r.device_ns / nullif((SELECT sum(device_ns) FROM ran), 0) AS share
    FROM made m LEFT JOIN ran r USING (name) ORDER BY device_ns DESC, compile_ns DESC NULLS LAST, name
"""


@analysis(
    reads={
        "logged_kernels": ("process", "region", "name", "ops", "lines", "code", "configs", "compile_ns"),
        "device_work": ("name", "kind", "dur_ns"),
    }
)
def generated_kernels(trace: Trace) -> Table[GeneratedKernel]:
    """Says what generated kernels compute, for which lines, and their device time; from a compile log."""
    table = trace.query(GeneratedKernel, _SQL)
    if not len(table):
        return table.with_notes((NO_LOG,))
    joined = [row for row in table if row.calls]
    if not trace.has("device_work"):
        return table.with_notes(
            ("There is no trace beside the log: which of these kernels ran is not known.",)
        )
    said = (
        f"{units.count(len(joined))} of {units.count(len(table))} generated kernels are in the trace, by "
        f"their names, with {units.percent(sum(row.share or 0.0 for row in joined))} of its kernel time."
    )
    twice = sum(row.regions > 1 for row in joined)
    more = f"{units.count(twice)} names stand for kernels of several regions: lines are those of the first."
    return table.with_notes((said, more) if twice else (said,))
