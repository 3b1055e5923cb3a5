"""Steps and their windows: the table `steps`, made when a question first needs it.

A step is more than its mark, for the host runs ahead of the device. It starts at the latest of the start of
its mark, the end of all device work launched before that, and the end of the step before; it ends at the
latest of its start, the end of its mark, and the end of device work whose launch began inside the mark, on
any thread and device.

The device may still have work from before the profile; then the first step starts when that is done. Such
work is in the profile without its launch, before all work whose launch is there. Or it is not in the profile
at all: then the first recorded work of a stream stands in the queue, long after its launch has returned, and
nothing that was recorded runs meanwhile.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.schema import NOT_HOST, STANDS_STILL_NS, STEP_MARK, derived_table
from stepscope.store.columns import arrow_schema, parquet_writer
from stepscope.store.marks import MOST_STEPS, Mark
from stepscope.store.repetition import found_marks

if TYPE_CHECKING:
    from stepscope.store.trace import Trace
    from stepscope.streams import Progress

__all__ = ["queued_until", "write_steps"]

STEPS = derived_table("steps").columns

_LONG_AGO = -(1 << 62)
_DOING = "finding steps"

# Old versions of torch wrote marks as operators. Frames and runtime calls are never called so.
_MARKS = (
    """
    WITH named AS (
        SELECT id, text, regexp_extract(text, '#(\\d+)', 1)::HUGEINT AS number
        FROM stored.names WHERE regexp_full_match(text, '{STEP_MARK}')),
    host AS (SELECT id FROM stored.skeletons
             WHERE phase = 'X' AND (category IS NULL OR NOT list_contains($not_host, category)))
    SELECT least(n.number, 9223372036854775807)::BIGINT AS step, n.text AS name, t.thread,
           t.start_ns, t.start_ns + coalesce(t.dur_ns, 0) AS end_ns
    FROM ({tables}) t JOIN named n ON n.id = t.name JOIN host ON host.id = t.skeleton
    WHERE t.start_ns IS NOT NULL ORDER BY t.start_ns, end_ns DESC, t.event LIMIT {MOST_STEPS}
""".replace("{STEP_MARK}", STEP_MARK)
    .replace("{MOST_STEPS}", str(MOST_STEPS))
    .replace(
        "{tables}",
        " UNION ALL ".join(
            f"SELECT event, thread, name, skeleton, start_ns, dur_ns FROM stored.{table}"
            for table in ("annotations", "ops", "other_events")
        ),
    )
)
# Until when the work runs whose launch began between one cut and the next.
_REACH = """
    WITH launched AS (
        SELECT l.start_ns, w.start_ns + coalesce(w.dur_ns, 0) AS end_ns
        FROM stored.device_work w JOIN stored.launches l ON l.event = w.launch
        WHERE l.start_ns IS NOT NULL AND w.start_ns IS NOT NULL),
    cuts AS (SELECT unnest($cuts::BIGINT[]) AS cut)
    SELECT cut, max(end_ns) AS end_ns
    FROM launched ASOF JOIN cuts ON launched.start_ns >= cuts.cut GROUP BY cut
"""
_BACKLOG = """
    WITH first AS (SELECT min(start_ns) AS linked FROM stored.device_work WHERE launch IS NOT NULL)
    SELECT max(start_ns + coalesce(dur_ns, 0)) AS end_ns FROM stored.device_work, first
    WHERE launch IS NULL AND start_ns < first.linked
"""


def queued_until(tables: str = "") -> str:
    """Asks when the first recorded work of a stream began that stood in the queue while nothing recorded ran.

    `tables` is what comes before their names; times are those of these tables.
    """
    return f"""
    WITH firsts AS (
        SELECT min(start_ns) AS start_ns, arg_min_null(launch, (start_ns, event)) AS launch
        FROM {tables}device_work WHERE start_ns IS NOT NULL GROUP BY thread),
    queued AS (
        SELECT f.start_ns, l.start_ns + coalesce(l.dur_ns, 0) AS returned_ns
        FROM firsts f JOIN {tables}launches l ON l.event = f.launch
        WHERE f.start_ns - l.start_ns - coalesce(l.dur_ns, 0) > {STANDS_STILL_NS}),
    ran AS (
        SELECT q.start_ns, max(w.start_ns + coalesce(w.dur_ns, 0)) AS end_ns
        FROM queued q JOIN {tables}device_work w ON w.start_ns < q.start_ns GROUP BY q.start_ns)
    SELECT max(q.start_ns) AS end_ns FROM queued q LEFT JOIN ran r ON r.start_ns = q.start_ns
    WHERE q.start_ns - greatest(q.returned_ns, coalesce(r.end_ns, q.returned_ns)) > {STANDS_STILL_NS}
"""


def write_steps(trace: Trace, target: Path, *, progress: Progress | None = None) -> None:
    """Writes the steps of a trace: those of its marks, or else what repeats in it."""
    import pyarrow as pa

    if progress:
        progress(_DOING, 0.0, 0, 0)
    rows = trace.rows(_MARKS, not_host=list(NOT_HOST))
    marks = ([Mark(source="mark", **row) for row in rows] or found_marks(trace))[:MOST_STEPS]
    windows = _windows(trace, marks)
    columns = {
        "step": [mark.step for mark in marks],
        "name": [mark.name for mark in marks],
        "source": [mark.source for mark in marks],
        "start_ns": [start for start, _ in windows],
        "end_ns": [end for _, end in windows],
        "host_start_ns": [mark.start_ns for mark in marks],
        "host_end_ns": [mark.end_ns for mark in marks],
        "thread": [mark.thread for mark in marks],
    }
    with parquet_writer(target, STEPS) as writer:
        writer.write_table(pa.table(columns, schema=arrow_schema(STEPS)))


def _windows(trace: Trace, marks: Sequence[Mark]) -> list[tuple[int, int]]:
    """Start and end of each step, given its mark, in their order."""
    if all(mark.is_window for mark in marks):
        # Ranges of the device may overlap; what two share is the first one's.
        ends = list(accumulate((mark.end_ns for mark in marks), max))
        before = [_LONG_AGO, *ends]
        return [(max(mark.start_ns, last), end) for mark, last, end in zip(marks, before, ends, strict=False)]
    cuts = sorted({_LONG_AGO} | {mark.start_ns for mark in marks} | {mark.end_ns for mark in marks})
    found = trace.rows(_REACH, cuts=cuts)
    at_cut = {row["cut"]: row["end_ns"] for row in found}
    reach = [at_cut.get(cut, _LONG_AGO) for cut in cuts]
    so_far = list(accumulate(reach, max))
    backlogs = [trace.rows(sql)[0]["end_ns"] for sql in (_BACKLOG, queued_until("stored."))]
    last = max(_LONG_AGO if end is None else end for end in backlogs)
    windows: list[tuple[int, int]] = []
    for mark in marks:
        first, after = bisect_left(cuts, mark.start_ns), bisect_left(cuts, mark.end_ns)
        start = max(mark.start_ns, so_far[first - 1], last)
        last = max([start, mark.end_ns, *reach[first:after]])
        windows.append((start, last))
    return windows
