"""What is said of the window of an analysis."""

from __future__ import annotations

from typing import Any

from stepscope import _native
from stepscope.store.columns import view
from stepscope.store.trace import Reads, Trace

__all__ = [
    "DRIVING",
    "LAUNCHED",
    "LAUNCHED_READS",
    "PLACED",
    "claimed",
    "how_steps_were_found",
    "launching_threads",
    "threads_that_drive",
]
__all__ += ["reads_of_all", "windows_of_steps"]

DRIVING = """
    SELECT thread FROM launches WHERE work_events > 0
    UNION SELECT thread FROM ops WHERE forward_thread > 0
    UNION SELECT thread FROM steps WHERE thread IS NOT NULL
"""
"""The threads that drive the work: those of the steps' marks, those that launch, and those that run backward.
Others wait or prepare data, and what they do is not what a step waits for."""

PLACED = "SELECT thread FROM call_tree WHERE parent IS NULL AND phase = 'backward'"
"""The threads all of whose calls are in `call_sites` one by one: those that autograd hands work to."""


_FOUND_BY = {
    "annotation": "a repeating range",
    "optimizer": "the steps of the optimizer",
    "graph": "the launches of a graph",
    "period": "the period of the kernels",
}

LAUNCHED = """
    SELECT p.step, p.phase, p.module, p.user_frame, l.work_ns - coalesce(k.ns, 0) AS ns, 1 AS launches
    FROM call_sites p JOIN launches l ON l.event = p.event
    LEFT JOIN (SELECT r.launch, sum(w.dur_ns) AS ns FROM replays r JOIN device_work w ON w.event = r.event
               WHERE r.basis IS NOT NULL GROUP BY r.launch) k ON k.launch = l.event
    WHERE l.work_events > 0 AND p.step IS NOT NULL
    UNION ALL
    SELECT p.step, coalesce(r.phase, p.phase), coalesce(r.module, p.module),
           coalesce(r.user_frame, p.user_frame), sum(w.dur_ns), 0
    FROM replays r JOIN device_work w ON w.event = r.event JOIN call_sites p ON p.event = r.launch
    WHERE r.basis IS NOT NULL AND p.step IS NOT NULL GROUP BY ALL
"""
"""Device work of the steps by where it was launched. The kernels of a replayed graph belong where the same
kernels were launched one by one, as far as the profile has that; the rest where the graph was replayed."""
LAUNCHED_READS: Reads = {
    "launches": ("event", "work_ns", "work_events"),
    "call_sites": ("event", "step", "phase", "module", "user_frame"),
    "replays": ("event", "launch", "phase", "module", "user_frame", "basis"),
    "device_work": ("event", "dur_ns"),
}


def claimed(
    trace: Trace, sql: str, windows: list[dict[str, Any]], labels: int, **params: Any
) -> list[list[int]]:
    """For each window the time of each label, an instant given to the smallest that is there, and the rest.

    Windows are rows with `start_ns` and `end_ns`, in order. The query has the columns start_ns, dur_ns and
    label, in order of start, of what lies between $since and $until.
    """
    if not windows:
        return []
    starts, ends = [window["start_ns"] for window in windows], [window["end_ns"] for window in windows]
    sweep = _native.PrioritySweep(starts, ends, labels)
    for batch in trace.batches(sql, since=starts[0], until=ends[-1], **params):
        sweep.push(*(view(batch[column]) for column in ("start_ns", "dur_ns", "label")))
    sweep.finish()
    return sweep.by_window_ns


def reads_of_all(*reads: Reads) -> Reads:
    """What several parts of an analysis read together."""
    tables = dict.fromkeys(table for one in reads for table in one)
    return {
        table: tuple(dict.fromkeys(column for one in reads for column in one.get(table, ())))
        for table in tables
    }


def threads_that_drive(trace: Trace) -> list[int]:
    """The threads of `DRIVING`, which says what is read."""
    rows = trace.once("driving threads", lambda: trace.rows(DRIVING))
    return [row["thread"] for row in rows]


def launching_threads(trace: Trace) -> list[int]:
    """The threads that launch device work; reads `thread` and `work_events` of `launches`."""
    asked = "SELECT DISTINCT thread FROM launches WHERE work_events > 0"
    return [row["thread"] for row in trace.once("launching threads", lambda: trace.rows(asked))]


def windows_of_steps(trace: Trace) -> list[dict[str, Any]]:
    """When each step began and ended, in order; reads `start_ns` and `end_ns` of `steps`."""
    asked = "SELECT start_ns, end_ns FROM steps ORDER BY start_ns, end_ns"
    rows: list[dict[str, Any]] = trace.once("windows of steps", lambda: trace.rows(asked))
    return rows


def how_steps_were_found(trace: Trace) -> list[str]:
    """A line where steps are not the profiler's own; nothing where they are. Reads `source` of `steps`."""
    rows = trace.once("sources of steps", lambda: trace.rows("SELECT DISTINCT source FROM steps"))
    found = [row["source"] for row in rows]
    if found in ([], ["mark"]):
        return []
    if found == ["trace"]:
        return ["No step marks and nothing that repeats: the whole trace is taken as one step."]
    return [f"No step marks: steps were found by {', '.join(_FOUND_BY.get(one, one) for one in found)}."]
