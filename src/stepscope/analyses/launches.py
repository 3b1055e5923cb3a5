"""What launches cost the host, how long work waited for its turn, and how full the queue was."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

from stepscope import _native, units
from stepscope.analyses import analysis
from stepscope.analyses._windows import how_steps_were_found
from stepscope.records import dataclass
from stepscope.simulation.device_calls import call_names
from stepscope.store.columns import arrays, view
from stepscope.store.trace import Trace
from stepscope.tables import Table

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["SHORT_NS", "Launch", "launches"]

QUEUE_FULL = 1000
"""The queue of a device holds about 1,024 launches; from here on, calls that launch may have to wait."""
SHORT_NS = 10_000
"""Shorter work spends more time on starting and on waiting for memory than on computing."""


@dataclass(frozen=True, slots=True)
class Launch:
    """All calls of one function that launch device work and began in the mark of a step."""

    call: Annotated[str | None, "Function of the runtime or driver."]
    calls: Annotated[int, "How often it was called."]
    per_step: Annotated[float, "The same per step, on average."]
    without_work: Annotated[int, "Calls none of whose work is in the profile."]
    work_events: Annotated[int, "Pieces of device work that they launched."]
    work_per_call: Annotated[float, "Pieces of work for a call; many in a launch of a graph."]
    host_ns: Annotated[int, "Time that the host spent in these calls."]
    host_share: Annotated[float | None, "Share of the host time of the steps."]
    host_mean_ns: Annotated[float, "Mean length of a call."]
    host_median_ns: Annotated[float, "Median length of a call."]
    back_pressure_ns: Annotated[
        int, "Time above the usual length of a call while the queue was full: a busy device, not a cost."
    ]
    delay_mean_ns: Annotated[float | None, "From the start of the call to the start of its first work, mean."]
    delay_median_ns: Annotated[float | None, "The same, median."]
    delay_p95_ns: Annotated[float | None, "The same; 95 of 100 are shorter."]
    queue_median: Annotated[
        float | None, "Launches made before on the device whose work had not begun, median."
    ]
    queue_max: Annotated[int | None, "The same, at most."]
    short_kernels: Annotated[
        int, "Kernels under 10 µs that ran for less time than the call took which launched them alone."
    ]
    work_ns: Annotated[int, "Summed duration of the work."]
    work_median_ns: Annotated[float | None, "Median duration of a piece of work."]


# Numbers in place of names, for there may be millions of launches. A graph is one launch: it counts once in
# the queue, and begins with its first piece of work.
_CALLS = """
    WITH begun AS (
        SELECT w.launch, min(w.start_ns) AS begun_ns,
               min(coalesce(w.device, TRY_CAST(w.pid AS BIGINT), -1)) AS device FROM device_work w
        WHERE w.launch IS NOT NULL AND w.start_ns IS NOT NULL GROUP BY w.launch),
    launching AS (SELECT id FROM names WHERE list_contains($launching, text))
    SELECT l.name_id AS name, l.start_ns, coalesce(l.dur_ns, 0) AS host_ns, l.work_events, l.work_ns,
           b.device, b.begun_ns, b.begun_ns - l.start_ns AS delay_ns
    FROM launches l LEFT JOIN begun b ON b.launch = l.event
    WHERE l.start_ns IS NOT NULL AND (l.work_events > 0 OR l.name_id IN (SELECT id FROM launching))
"""
_WORK = f"""
    WITH marks AS (SELECT unnest($starts::BIGINT[]) AS start_ns, unnest($ends::BIGINT[]) AS end_ns)
    SELECT l.name_id AS name, median(coalesce(w.dur_ns, 0)) AS work_median_ns,
           count(*) FILTER (w.kind = 'kernel' AND coalesce(w.dur_ns, 0) < least({SHORT_NS}, l.dur_ns)
                            AND l.work_events = 1) AS short_kernels
    FROM device_work w JOIN launches l ON l.event = w.launch ASOF JOIN marks m ON l.start_ns >= m.start_ns
    WHERE l.start_ns < m.end_ns GROUP BY l.name_id
"""
_STEPS = "SELECT host_start_ns, host_end_ns FROM steps ORDER BY host_start_ns, host_end_ns"
_NAMES = "SELECT id, text FROM names WHERE id IN (SELECT name_id FROM launches)"


@analysis(
    reads={
        "launches": ("event", "name", "name_id", "start_ns", "dur_ns", "work_events", "work_ns"),
        "device_work": ("launch", "device", "pid", "start_ns", "dur_ns", "kind"),
        "names": ("id", "text"),
        "steps": ("source", "host_start_ns", "host_end_ns"),
    }
)
def launches(trace: Trace) -> Table[Launch]:
    """Sums up launches by call: host cost, delay until work began, queue depth, back-pressure.

    Window: calls that began in the mark of a step, on any thread. Work that is replayed as a graph belongs to
    one launch.
    """
    steps = trace.rows(_STEPS)
    calls = trace.arrow(_CALLS, launching=call_names(trace).launching).combine_chunks()
    starts, ends = _marks(steps)
    calls = calls.append_column("queue", _queues(calls)).append_column("inside", _inside(calls, starts, ends))
    work = {row["name"]: row for row in trace.rows(_WORK, starts=starts, ends=ends)}
    names = {row["id"]: row["text"] for row in trace.rows(_NAMES)}
    rows = [
        _row(names[number], called, work.get(number, {}), steps)
        for number, called in _by_name(calls)
        if number is not None
    ]
    rows.sort(key=lambda row: (-row.host_ns, row.call or ""))
    if not rows:
        return Table.of(Launch, [], ["No call in a step launched device work."])
    return Table.of(Launch, rows, [*_notes(rows, _length(steps)), *how_steps_were_found(trace)])


def _queues(calls: pa.Table) -> pa.Array:
    """For each launch how many were made before it, on its device, whose work had not begun."""
    import pyarrow as pa
    import pyarrow.compute as pc

    queues = _native.Queues()
    worked = calls.filter(pc.is_valid(calls["begun_ns"]))
    queues.add(*(view(worked[name]) for name in ("device", "start_ns", "begun_ns")))
    queues.build()
    (depths,) = arrays([queues.depths(view(calls["device"]), view(calls["start_ns"]))])
    return pc.if_else(pc.is_valid(calls["begun_ns"]), depths, pa.scalar(None, pa.int64()))


def _marks(steps: list[dict[str, int]]) -> tuple[list[int], list[int]]:
    """Starts and ends of the marks of steps; those of several threads may overlap, these do not."""
    starts: list[int] = []
    ends: list[int] = []
    for step in steps:
        start = max(step["host_start_ns"], ends[-1] if ends else step["host_start_ns"])
        if step["host_end_ns"] > start:
            starts.append(start)
            ends.append(step["host_end_ns"])
    return starts, ends


def _inside(calls: pa.Table, starts: list[int], ends: list[int]) -> pa.Array:
    """Which calls began in a mark."""
    import pyarrow as pa
    import pyarrow.compute as pc

    instants = pa.repeat(pa.scalar(1, pa.int64()), calls.num_rows)
    (inside,) = arrays([_native.HostTime(starts, ends).inside(view(calls["start_ns"]), view(instants))])
    return pc.equal(inside, 1)


def _by_name(calls: pa.Table) -> Iterator[tuple[int | None, pa.Table]]:
    """The calls of each function that was called in a step."""
    import pyarrow.compute as pc

    for number in pc.unique(calls["name"].filter(calls["inside"])).to_pylist():
        yield number, calls.filter(pc.equal(calls["name"], number))


def _row(name: str, calls: pa.Table, work: dict[str, Any], steps: list[dict[str, int]]) -> Launch:
    import pyarrow.compute as pc

    called = calls.filter(calls["inside"])
    host_ns, count = pc.sum(called["host_ns"]).as_py(), called.num_rows
    marks_ns = _length(steps)
    delay_median, delay_p95 = _quantiles(called["delay_ns"], 0.5, 0.95)
    return Launch(
        call=name,
        calls=count,
        per_step=count / len(steps),
        without_work=pc.sum(pc.equal(called["work_events"], 0)).as_py(),
        work_events=pc.sum(called["work_events"]).as_py(),
        work_per_call=pc.mean(called["work_events"]).as_py(),
        host_ns=host_ns,
        host_share=host_ns / marks_ns if marks_ns else None,
        host_mean_ns=host_ns / count,
        host_median_ns=_quantiles(called["host_ns"], 0.5)[0] or 0.0,
        back_pressure_ns=_back_pressure(calls, called),
        delay_mean_ns=pc.mean(called["delay_ns"]).as_py(),
        delay_median_ns=delay_median,
        delay_p95_ns=delay_p95,
        queue_median=_quantiles(called["queue"], 0.5)[0],
        queue_max=pc.max(called["queue"]).as_py(),
        short_kernels=work.get("short_kernels", 0),
        work_ns=pc.sum(called["work_ns"]).as_py(),
        work_median_ns=work.get("work_median_ns"),
    )


def _back_pressure(calls: pa.Table, called: pa.Table) -> int:
    """What calls took above the usual with a full queue; usual is the median of all calls without one."""
    import pyarrow.compute as pc

    full = called.filter(pc.greater_equal(called["queue"], QUEUE_FULL))
    if not full.num_rows:
        return 0
    free = calls.filter(pc.less(calls["queue"], QUEUE_FULL))
    # Where the queue was always full, those calls that found a place at once tell what is usual.
    usual = _quantiles(free["host_ns"], 0.5)[0] if free.num_rows else _quantiles(calls["host_ns"], 0.05)[0]
    above = pc.subtract(full["host_ns"], round(usual or 0.0))
    return int(pc.sum(pc.max_element_wise(above, 0)).as_py())


def _quantiles(values: Any, *shares: float) -> list[float | None]:
    import pyarrow.compute as pc

    found: list[float | None] = pc.quantile(values, q=list(shares)).to_pylist()
    return found


def _length(steps: list[dict[str, int]]) -> int:
    return sum(step["host_end_ns"] - step["host_start_ns"] for step in steps)


def _notes(rows: list[Launch], host_ns: int) -> list[str]:
    spent, pressed = sum(row.host_ns for row in rows), sum(row.back_pressure_ns for row in rows)
    share = f", {units.share(spent / host_ns)} of the marks" if host_ns else ""
    notes = [f"The host spent {units.duration(spent)} in launches{share}."]
    if pressed:
        notes.append(
            f"Of this, {units.duration(pressed)} is back-pressure: "
            f"the queue held {units.count(QUEUE_FULL)} launches or more."
        )
    return notes
