"""Which events belong to a part of a trace, so that the part stands on its own and no link changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.errors import StepscopeError
from stepscope.records import dataclass
from stepscope.schema import STEP_MARK, STORED
from stepscope.store.export import Selection

if TYPE_CHECKING:
    from stepscope.store.trace import Trace

__all__ = ["Window", "extent", "first_start", "inside", "step_numbers", "steps_window"]

_LAUNCH_ARROWS = ("ac2g", "async_cpu_to_gpu")


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of time, in ns after the trace's base time; for steps, also the first and the last."""

    start_ns: int
    end_ns: int
    steps: tuple[int, int] | None = None


def extent(trace: Trace) -> tuple[int, int]:
    """When the first event of the trace began and the last one ended, metadata left out."""
    parts = " UNION ALL ".join(
        f"SELECT min(start_ns) AS first, max(start_ns::HUGEINT + coalesce(dur_ns, 0)) AS last "
        f"FROM stored.{table.name} WHERE skeleton NOT IN (SELECT id FROM stored.skeletons WHERE phase = 'M')"
        for table in STORED
    )
    found = trace.arrow(f"SELECT min(first), least(max(last), {2**63 - 1})::BIGINT FROM ({parts})")
    first, last = (column[0].as_py() for column in found.columns)
    if first is None:
        raise StepscopeError(f"{trace.path} has no event with a time", hint="there is nothing to cut")
    return first, last


def first_start(trace: Trace) -> int:
    """When the first event with a length began; 0 where there is none."""
    # The view of all events has everything else about them, too, and that is not for this.
    parts = " UNION ALL ".join(
        f"SELECT min(start_ns) AS first FROM stored.{table.name} "
        f"WHERE skeleton IN (SELECT id FROM stored.skeletons WHERE phase = 'X')"
        for table in STORED
    )
    found: int | None = trace.rows(f"SELECT min(first) AS first FROM ({parts})")[0]["first"]
    return found or 0


def step_numbers(trace: Trace) -> list[int]:
    """The numbers of the profiler's step marks."""
    numbers: list[int] = trace.arrow("SELECT DISTINCT step FROM step_marks ORDER BY step")["step"].to_pylist()
    return numbers


def steps_window(trace: Trace, first: int, last: int) -> Window:
    """From the start of the first mark to the end of the last, and on until what they launched is done."""
    base = trace.meta.base_ns
    found = trace.arrow(
        """
        WITH marks AS (SELECT min(start_ns) AS first, max(start_ns + dur_ns) AS last FROM step_marks
                       WHERE step BETWEEN $first AND $last)
        SELECT first, last, (SELECT max(w.start_ns + w.dur_ns) FROM device_work w
                             JOIN launches l ON l.event = w.launch WHERE l.start_ns < last)
        FROM marks
        """,
        first=first,
        last=last,
    )
    start, end, done = (column[0].as_py() for column in found.columns)
    return Window(start - base, max(end, done or end) - base, (first, last))


def inside(trace: Trace, window: Window) -> Selection:
    """What overlaps the window, whole, the launches of its device work, and all device work of its launches.

    Metadata stays. Arrows from launches go with their launch; of others, those with all ends in the window.
    Marks of steps that were not asked for are left out: a part of a step is not to be taken for a step.
    """
    where = dict.fromkeys((table.name for table in STORED), _overlaps(window)) | {
        "launches": "t.event IN (SELECT event FROM kept)",
        "device_work": f"({_overlaps(window)} OR t.launch IN (SELECT event FROM kept))",
        "annotations": f"{_overlaps(window)} AND (t.name IN (SELECT id FROM other_marks)) IS NOT TRUE",
        "flows": """CASE WHEN t.skeleton IN (SELECT id FROM of_launches)
            THEN t.flow IN (SELECT correlation FROM kept)
            ELSE EXISTS (SELECT 1 FROM arrows a
                         JOIN stored.skeletons s ON s.category IS NOT DISTINCT FROM a.category
                         WHERE s.id = t.skeleton AND a.flow = t.flow) END""",
    }
    always = trace.arrow("SELECT coalesce(sum(events), 0)::BIGINT FROM stored.skeletons WHERE phase = 'M'")[
        0
    ][0]
    return Selection(
        {name: f"({text} OR t.skeleton IN (SELECT id FROM metadata))" for name, text in where.items()},
        _prelude(window),
        always.as_py(),
    )


def _prelude(window: Window) -> str:
    overlaps = _overlaps(window)
    arrows = ", ".join(f"'{category}'" for category in _LAUNCH_ARROWS)
    others = "false"
    if window.steps is not None:
        others = (
            f"regexp_full_match(text, '{STEP_MARK}') AND NOT "
            f"TRY_CAST(text[14:] AS BIGINT) BETWEEN {window.steps[0]} AND {window.steps[1]}"
        )
    # Unlinked work keeps the calls of its correlation: one left alone would be taken for its launch.
    return f"""
        metadata AS (SELECT id FROM stored.skeletons WHERE phase = 'M'),
        other_marks AS (SELECT id FROM stored.names WHERE {others}),
        of_launches AS (SELECT id FROM stored.skeletons WHERE category IN ({arrows})),
        kept AS MATERIALIZED (
            SELECT t.event, t.correlation FROM stored.launches t WHERE {overlaps}
            OR t.event IN (SELECT t.launch FROM stored.device_work t WHERE {overlaps})
            OR t.correlation IN (SELECT t.correlation FROM stored.device_work t
                                 WHERE t.launch IS NULL AND {overlaps})),
        arrows AS MATERIALIZED (
            SELECT s.category, t.flow FROM stored.flows t JOIN stored.skeletons s ON s.id = t.skeleton
            WHERE s.id NOT IN (SELECT id FROM of_launches) GROUP BY ALL HAVING bool_and({overlaps}))
    """


def _overlaps(window: Window) -> str:
    """What has a part in the window; what has no length, if it lies in it. Sums may exceed 64 bits."""
    return (
        f"(t.start_ns < {window.end_ns} AND (t.start_ns >= {window.start_ns} "
        f"OR t.start_ns::HUGEINT + coalesce(t.dur_ns, 0) > {window.start_ns}))"
    )
