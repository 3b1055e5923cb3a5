"""What a flame graph is drawn from: paths of calls, calls in their time, or stacks of samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.present._printable import printable

if TYPE_CHECKING:
    import pyarrow as pa

    from stepscope.store.trace import Trace
    from stepscope.tables import Table

__all__ = ["MOST_BARS", "calls_in_time", "of_paths", "sampled_stacks", "threads"]

MOST_BARS = 100_000
_MOST_STACKS = 20_000
_KINDS = ["frame", "range", "op", "call", "event", "thread"]
_LONGEST = 2000

_THREADS = """
    SELECT thread, any_value(pid) AS pid, any_value(tid) AS tid, max(inclusive_ns) AS total_ns
    FROM call_tree GROUP BY thread HAVING count(*) FILTER (stored_in <> 'other_events') > 0
    ORDER BY total_ns DESC, thread
"""
_CALLS = """
    SELECT start_ns - $base AS start, dur_ns, name, kind FROM (
        SELECT start_ns, dur_ns, name, 'frame' AS kind FROM python_frames WHERE thread = $thread
        UNION ALL SELECT start_ns, dur_ns, name, 'range' FROM annotations WHERE thread = $thread
        UNION ALL SELECT start_ns, dur_ns, name, 'op' FROM ops WHERE thread = $thread
        UNION ALL SELECT start_ns, dur_ns, name, 'call' FROM launches WHERE thread = $thread)
    WHERE start_ns IS NOT NULL AND dur_ns > 0 ORDER BY dur_ns DESC, start_ns LIMIT $most
"""
_STACKS = """
    SELECT s.frames, w.weight
    FROM (SELECT stack, list(frame ORDER BY depth DESC) AS frames FROM sampled_stacks GROUP BY stack) s
    JOIN (SELECT stack, sum(weight) AS weight FROM cpu_samples WHERE event IS NOT DISTINCT FROM $event
          GROUP BY stack) w USING (stack)
    ORDER BY w.weight DESC, s.frames LIMIT $most
"""
_EVENTS = (
    "SELECT event, sum(samples)::BIGINT AS samples FROM cpu_samples GROUP BY event ORDER BY samples DESC"
)
_FRAMES = "SELECT frame, name, part FROM sampled_frames ORDER BY frame"


def threads(trace: Trace) -> list[dict[str, Any]]:
    """The threads that did something, the busiest first."""
    found: list[dict[str, Any]] = trace.rows(_THREADS)
    return found


def of_paths(paths: Table[Any]) -> dict[str, Any]:
    """Paths of calls with their time; of very many, the longest."""
    import pyarrow.compute as pc

    arrow = _calls_alone(paths.arrow)
    if arrow.num_rows > MOST_BARS:
        # A path is never longer than the one it continues, so that what stays hangs together.
        order = pc.sort_indices(arrow, [("total_ns", "descending"), ("node", "ascending")])
        arrow = arrow.take(order.slice(0, MOST_BARS)).sort_by("node")
    parent = pc.fill_null(pc.index_in(arrow["parent"].combine_chunks(), arrow["node"].combine_chunks()), -1)
    return {
        "kind": "paths",
        **_named(arrow, "name"),
        "kinds": _KINDS,
        "of": [_KINDS.index(kind) for kind in arrow["kind"].to_pylist()],
        "parent": parent.to_pylist(),
        "total": arrow["total_ns"].to_pylist(),
        "device": arrow["device_ns"].to_pylist(),
        "unit": "ns",
    }


def _calls_alone(arrow: pa.Table) -> pa.Table:
    """The paths without what is no call: spans of the profiler itself; threads are as long as their calls."""
    import pyarrow as pa
    import pyarrow.compute as pc

    arrow = arrow.filter(pc.not_equal(arrow["kind"], "event"))
    sums = arrow.group_by("parent").aggregate([("total_ns", "sum")])
    sums = sums.filter(pc.is_valid(sums["parent"]))
    place = pc.index_in(arrow["node"].combine_chunks(), sums["parent"].combine_chunks())
    inside = pc.fill_null(pc.take(sums["total_ns_sum"].combine_chunks(), place), 0)
    is_thread = pc.equal(arrow["kind"].combine_chunks(), "thread")
    total = pc.if_else(is_thread, inside, arrow["total_ns"].combine_chunks())
    arrow = arrow.set_column(arrow.schema.get_field_index("total_ns"), "total_ns", total.cast(pa.int64()))
    return arrow.filter(pc.greater(arrow["total_ns"], 0))


def calls_in_time(trace: Trace, thread: int) -> dict[str, Any]:
    """The calls of a thread when they were; of very many, the longest."""
    arrow = trace.arrow(_CALLS, thread=thread, base=trace.meta.base_ns, most=MOST_BARS)
    return {
        "kind": "calls",
        **_named(arrow, "name"),
        "kinds": _KINDS,
        "of": [_KINDS.index(kind) for kind in arrow["kind"].to_pylist()],
        "start": arrow["start"].to_pylist(),
        "length": arrow["dur_ns"].to_pylist(),
        "unit": "ns",
    }


def sampled_stacks(trace: Trace) -> dict[str, Any]:
    """The stacks of samples of what was sampled most often."""
    event = trace.rows(_EVENTS)[0]["event"]
    frames = trace.rows(_FRAMES)
    places = {row["frame"]: place for place, row in enumerate(frames)}
    rows = trace.rows(_STACKS, event=event, most=_MOST_STACKS)
    return {
        "kind": "stacks",
        "names": [printable(row["name"][:_LONGEST]) for row in frames],
        "kinds": ["sample"],
        "of": [0] * len(frames),
        "stacks": [[places[frame] for frame in row["frames"] if frame in places] for row in rows],
        "weights": [row["weight"] for row in rows],
        "unit": "ns" if event is None else "",
    }


def _named(arrow: pa.Table, column: str) -> dict[str, Any]:
    """Names once each, and of every row the place of its name."""
    import pyarrow.compute as pc

    encoded = pc.fill_null(arrow[column].combine_chunks(), "–").dictionary_encode()
    names = [printable(name[:_LONGEST]) for name in encoded.dictionary.to_pylist()]
    return {"names": names, "name": encoded.indices.to_pylist()}
