"""What kind of code the CPU was in, by samples."""

from __future__ import annotations

from typing import Annotated

from stepscope.analyses import analysis
from stepscope.analyses._sampled import NO_SAMPLES, PARTED, WEIGHED, sampled_notes
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["CpuPart", "cpu_parts"]


@dataclass(frozen=True, slots=True)
class CpuPart:
    """Samples of a thread in one kind of code; each sample counts once."""

    event: Annotated[str | None, "What was counted until a sample; NULL for time."]
    process: Annotated[int | None, "Process, where the file says it."]
    thread: Annotated[int | None, "Thread, where the file says it."]
    command: Annotated[str | None, "Name of the thread or program."]
    part: Annotated[
        str,
        "gil: waiting for Python's lock; data loader; collector: of garbage; dispatcher and autograd of "
        "torch; torch: its other code; interpreter; python: functions in Python; driver of the GPU; "
        "communication; math: libraries; libc; kernel: of the system; program: anything else.",
    ]
    samples: Annotated[int, "How many."]
    share: Annotated[float | None, "Part of the weight of this thread's samples."]
    all_share: Annotated[float | None, "Part of the weight of all samples of the event."]
    ops: Annotated[int, "Operators that the trace has of this thread; 0 if it has none of it."]


_SQL = f"""
    WITH {WEIGHED}, {PARTED},
    known AS (SELECT TRY_CAST(tid AS BIGINT) AS thread, count(*) AS ops FROM ops GROUP BY ALL)
    SELECT event, nullif(process, -1) AS process, w.thread, command, coalesce(p.part, 'program') AS part,
           sum(samples)::BIGINT AS samples,
           sum(weight) / nullif(sum(sum(weight)) OVER (PARTITION BY event, process, w.thread, command), 0)
               AS share,
           sum(weight) / nullif(sum(sum(weight)) OVER (PARTITION BY event), 0) AS all_share,
           coalesce(max(k.ops), 0) AS ops
    FROM weighed w LEFT JOIN parted p USING (stack) LEFT JOIN known k ON k.thread = w.thread
    GROUP BY event, process, w.thread, command, coalesce(p.part, 'program')
    ORDER BY event, all_share DESC NULLS LAST, process, w.thread, command, part
"""


@analysis(
    reads={
        "cpu_samples": ("process", "thread", "command", "event", "samples", "weight", "stack"),
        "sampled_stacks": ("stack", "depth", "frame"),
        "sampled_frames": ("frame", "name", "module", "part"),
        "ops": ("tid",),
    }
)
def cpu_parts(trace: Trace) -> Table[CpuPart]:
    """Splits the samples of each thread: interpreter, dispatcher, loader, driver, libc, waits for the GIL."""
    if not trace.has("cpu_samples"):
        return Table.of(CpuPart, (), (NO_SAMPLES,))
    table = trace.query(CpuPart, _SQL)
    notes = sampled_notes(trace)
    threads = {row.thread for row in table if row.thread is not None}
    if trace.has("ops") and threads:
        joined = {row.thread for row in table if row.ops}
        said = f"{len(joined)} of {len(threads)} sampled threads are in the trace; the two clocks differ, so "
        notes += (f"{said}samples are not placed in its steps.",)
    return table.with_notes(notes)
