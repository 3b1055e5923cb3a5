"""What belongs to each step: the device work launched in it, and the host events begun in it."""

from __future__ import annotations

from typing import Any

from stepscope.analyses._windows import claimed
from stepscope.store.trace import Trace

__all__ = [
    "CALLED_IN_STEPS",
    "MIDDLE_STEP",
    "STEP_COLUMNS",
    "UPDATES",
    "WORK_COLUMNS",
    "begun_in_steps",
    "busy_of",
    "steps_of",
    "work_of",
]

UPDATES = """
    SELECT start_ns FROM annotations
    WHERE starts_with(name, 'Optimizer.step#') AND category = 'user_annotation'
    UNION ALL SELECT start_ns FROM ops WHERE starts_with(name, 'Optimizer.step#')
"""
"""SQL of when the updates of weights begin: they may be written as ranges or as operators."""
MIDDLE_STEP = """
    SELECT step, host_start_ns, host_end_ns FROM steps
    ORDER BY start_ns LIMIT 1 OFFSET (SELECT count(*) // 2 FROM steps)
"""
"""SQL of one step, for what need not be looked at in all of them: at the ends of a recording steps differ."""
CALLED_IN_STEPS = """
    SELECT p.step, o.thread, o.event, o.name_id, o.start_ns, o.start_ns + coalesce(o.dur_ns, 0) AS end_ns,
           p.user_frame, coalesce(o.device_once_ns, 0) AS device_ns, o.sequence,
           lead(o.sequence IGNORE NULLS) OVER called AS later, row_number() OVER called AS place
    FROM ops o JOIN call_sites p ON p.event = o.event
    WHERE o.depth = 0 AND p.step IS NOT NULL AND p.phase {phases}
    WINDOW called AS (PARTITION BY o.thread ORDER BY o.start_ns, o.event)
"""
"""SQL of the operators that the program calls in some phases of its steps, a condition. Autograd numbers its
nodes, and an operator is written with the number that comes next: `later` is that of the one after it. Those
of a thread that follow one another have places one apart: few of them need to be sorted again to see it."""
STEP_COLUMNS = ("step", "name", "source", "start_ns", "end_ns", "host_start_ns", "host_end_ns", "thread")
WORK_COLUMNS = {
    "kernels": ("start_ns", "dur_ns", "launch", "graph_id"),
    "device_work": ("start_ns", "dur_ns", "launch", "name_id"),
    "launches": ("event", "name_id", "start_ns"),
    "names": ("id", "text"),
}

_ORDER = "ORDER BY start_ns, end_ns, host_start_ns"
_MARKS = f"marks AS (SELECT *, row_number() OVER ({_ORDER}) - 1 AS place FROM steps)"
# Work belongs to the step in whose mark its launch began; without a launch, to that in whose window it began.
# Where the boundaries of steps lie on the device (they have no thread then), the window decides for all.
# By the numbers of names: for millions of launches, names themselves are expensive to carry along.
_LAUNCHED = """
    SELECT l.start_ns, coalesce(w.dur_ns, 0) AS dur_ns,
           w.graph_id IS NOT NULL
           OR l.name_id IN (SELECT id FROM names WHERE text LIKE '%GraphLaunch%') AS in_graph
    FROM kernels w JOIN launches l ON l.event = w.launch WHERE w.start_ns IS NOT NULL
"""
_RUN = """
    SELECT w.start_ns, coalesce(w.dur_ns, 0) AS dur_ns, w.graph_id IS NOT NULL AS in_graph
    FROM kernels w WHERE w.start_ns IS NOT NULL
"""
_KERNELS = f"""
    WITH {_MARKS}
    SELECT m.place, count(*) AS kernels, sum(w.dur_ns)::BIGINT AS kernel_ns,
           coalesce(sum(w.dur_ns) FILTER (w.in_graph), 0)::BIGINT AS graph_ns
    FROM ({{work}}) w ASOF JOIN marks m ON w.start_ns >= m.{{since}}
    WHERE w.start_ns < m.{{until}} GROUP BY m.place
"""
_BEGUN = f"""
    WITH {_MARKS}
    SELECT m.place, {{columns}}
    FROM ({{events}}) e ASOF JOIN marks m ON e.start_ns >= m.host_start_ns
    WHERE e.start_ns < m.host_end_ns {{grouped}}
"""
_RUNNING = """
    SELECT start_ns, dur_ns, 0::BIGINT AS label FROM device_work
    WHERE dur_ns > 0 AND start_ns < $until AND start_ns + dur_ns > $since ORDER BY start_ns
"""


def steps_of(trace: Trace) -> list[dict[str, Any]]:
    """The steps in their order; a step's place in the list is its place everywhere here."""
    rows: list[dict[str, Any]] = trace.rows(f"SELECT {', '.join(STEP_COLUMNS)} FROM steps {_ORDER}")
    return rows


def work_of(trace: Trace, steps: list[dict[str, Any]]) -> list[dict[str, int]]:
    """For each step how many kernels were launched in it, their summed time, and that of replayed graphs."""
    if all(step["thread"] is None and step["source"] != "trace" for step in steps):
        asked = [_KERNELS.format(work=_RUN, since="start_ns", until="end_ns")]
    else:
        asked = [
            _KERNELS.format(work=_LAUNCHED, since="host_start_ns", until="host_end_ns"),
            _KERNELS.format(work=f"{_RUN} AND w.launch IS NULL", since="start_ns", until="end_ns"),
        ]
    work = [{"kernels": 0, "kernel_ns": 0, "graph_ns": 0} for _ in steps]
    for sql in asked:
        for row in trace.rows(sql):
            of_step = work[row["place"]]
            for figure in of_step:
                of_step[figure] += row[figure]
    return work


def busy_of(trace: Trace, steps: list[dict[str, Any]]) -> list[int]:
    """For each step the time in which anything ran on any device."""
    return [parts[0] for parts in claimed(trace, _RUNNING, steps, labels=1)]


def begun_in_steps(
    trace: Trace, events: str, columns: str, grouped: str = "", **params: Any
) -> list[dict[str, Any]]:
    """Host events `e` (a query with `start_ns`) with the place of the step `m` in whose mark they began."""
    sql = _BEGUN.format(events=events, columns=columns, grouped=grouped)
    rows: list[dict[str, Any]] = trace.rows(sql, **params)
    return rows
