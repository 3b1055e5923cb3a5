"""What is drawn over a timeline: phases and collectives of a window, merged below a pixel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.analyses._event_rows import names_of
from stepscope.analyses._range_totals import clipped_work
from stepscope.schema import DATALOADER_RANGE, OPTIMIZER_RANGE
from stepscope.store.arrow_sql import ask

if TYPE_CHECKING:
    import pyarrow as pa

    from stepscope.store.trace import Trace

__all__ = ["collective_boxes", "phase_boxes"]

# A stretch of a phase on a thread goes on until a call of another phase begins there.
_STRETCHES = f"""
    WITH called AS (
        SELECT o.thread, o.start_ns, o.start_ns + coalesce(o.dur_ns, 0) AS end_ns, p.phase
        FROM stored.ops o JOIN stored.call_sites p ON p.event = o.event
        LEFT JOIN stored.call_sites around ON around.event = o.parent
        WHERE around.phase IS DISTINCT FROM p.phase
        UNION ALL
        SELECT t.thread, t.start_ns, t.start_ns + coalesce(t.dur_ns, 0),
               CASE WHEN n.text LIKE 'Optimizer.%' THEN 'optimizer' ELSE 'dataloader' END
        FROM stored.annotations t JOIN stored.names n ON n.id = t.name
        JOIN stored.skeletons s ON s.id = t.skeleton
        WHERE s.category = 'user_annotation'
          AND regexp_matches(n.text, '{OPTIMIZER_RANGE}|{DATALOADER_RANGE}')),
    driving AS (
        SELECT thread FROM stored.launches WHERE work_events > 0
        UNION SELECT thread FROM stored.ops WHERE forward_thread > 0
        UNION SELECT thread FROM stored.steps WHERE thread IS NOT NULL),
    following AS (
        SELECT c.*, phase IS DISTINCT FROM lag(phase) OVER last
                    OR s.host_start_ns IS DISTINCT FROM lag(s.host_start_ns) OVER last AS begins
        FROM (FROM called SEMI JOIN driving USING (thread) WHERE phase != 'other' AND start_ns IS NOT NULL) c
        ASOF LEFT JOIN (SELECT host_start_ns FROM stored.steps) s ON c.start_ns >= s.host_start_ns
        WINDOW last AS (PARTITION BY thread ORDER BY start_ns, end_ns DESC, phase)),
    numbered AS (
        SELECT *, sum(begins::INT) OVER (PARTITION BY thread ORDER BY start_ns, end_ns DESC, phase) AS stretch
        FROM following)
    SELECT thread AS track, phase, min(start_ns) AS start_ns, (max(end_ns) - min(start_ns))::BIGINT AS dur_ns
    FROM numbered GROUP BY thread, stretch, phase ORDER BY thread, start_ns
"""
_MERGED = """
    SELECT {keys}, min(start_ns) AS start_ns, (max(start_ns + dur_ns) - min(start_ns))::BIGINT AS dur_ns,
           count(*) AS count{more}
    FROM marks WHERE start_ns < $until AND start_ns + dur_ns > $since
    GROUP BY {keys}, CASE WHEN dur_ns >= $pixel THEN start_ns ELSE start_ns // $pixel END, dur_ns >= $pixel
    ORDER BY {keys}, start_ns
"""


def phase_boxes(trace: Trace, since: int, until: int, pixel_ns: int) -> list[dict[str, Any]]:
    """The phases of the threads that drive the work."""
    stretches: pa.Table = trace.once("stretches of phases", lambda: trace.reading(None).arrow(_STRETCHES))
    params = {"since": since, "until": until, "pixel": pixel_ns}
    rows: list[dict[str, Any]] = ask(
        _MERGED.format(keys="track, phase", more=""), params, marks=stretches
    ).to_pylist()
    return rows


def collective_boxes(trace: Trace, since: int, until: int, pixel_ns: int) -> list[dict[str, Any]]:
    """The collectives on devices."""
    work = clipped_work(trace, since, until)
    more = ", arg_max(event, (dur_ns, -event)) AS event, arg_max(number, (dur_ns, -event)) AS number"
    marks = ask("SELECT * FROM work WHERE kind = 'communication'", work=work)
    params = {"since": since, "until": until, "pixel": pixel_ns}
    rows: list[dict[str, Any]] = ask(
        _MERGED.format(keys="device, track", more=more), params, marks=marks
    ).to_pylist()
    texts = names_of(trace, (row["number"] for row in rows))
    return [{**row, "name": texts.get(row.pop("number"))} for row in rows]
