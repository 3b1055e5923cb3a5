"""What waited for what in a trace: the graph on which the critical path is walked, and steps are simulated.

Nodes are device work and runtime calls, known by their event. A piece of work depends on

previous   the work before it on its stream,
waited     work on another stream: by a recorded stream wait (`cuda_sync`); else by the call that made a
           stream wait, where the stream is taken to be that of the next launch of the same thread, and the
           work that which ended last before. Inside one launch (a graph): the work of that launch that
           ended last before it began. And for work that began 20 µs later than all else would have let it,
           what ended just before,
launch     the runtime call that launched it.

The one that let it begin is the latest of the three, each with the time that it takes in this trace to
follow such a one: `latency_ns` after the start of a launch (median of launches on an empty stream, by kind
of work), `gap_ns` after other work (median of work that had been waiting for 20 µs). Without these a device
that is fed by a slow host looks busy by itself: kernels shorter than the latency of their launch run one
after the other.

A runtime call that waits depends on the work that was done when it returned: of the recorded stream, or of
that of its thread's last launch, or any work that was launched before and ended inside the call; a blocking
copy on its own work; a launching call behind some 900 others on the work that made room in the queue.
Between these a thread runs by itself.

Threads depend on one another by role: the leading thread gives work to those of autograd's engine, both to
those that communicate (gloo and the like), and each may pause until the work that it gave is done.

`work_edges()` and `call_edges()` of what is returned here hold all of that by event, as columns of (values,
validity): for work its three dependencies, `by` (0 nothing, 1 previous, 2 waited, 3 launch) and when that
came about; for calls the work, when it released the call, and whether it was for room in the queue.
"""

from __future__ import annotations

from typing import Any

from stepscope import _native
from stepscope.schema import COMMUNICATION_RANGE
from stepscope.simulation.device_calls import call_names
from stepscope.store.columns import view
from stepscope.store.trace import Reads, Trace

__all__ = ["ALL", "DEPENDENCY_READS", "dependencies", "roles"]

DEPENDENCY_READS: Reads = {
    "device_work": (
        "event", "thread", "device_name", "stream", "start_ns", "dur_ns", "launch", "kind", "communicates",
        "name",
    ),
    "launches": ("event", "thread", "tid", "start_ns", "dur_ns", "correlation", "work_events", "op", "name"),
    "ops": ("event", "thread", "tid", "start_ns", "dur_ns", "parent", "forward_thread", "self_ns", "name"),
    "annotations": ("event", "thread", "tid", "start_ns", "dur_ns", "category", "name"),
    "other_events": (
        "event", "thread", "start_ns", "dur_ns", "category", "phase", "name", "pid", "args",
        "correlation", "stream", "wait_on_stream",
    ),
}  # fmt: skip
"""What `dependencies` and `roles` read."""

ALL = (-(1 << 62), 1 << 62)
"""A window of all times."""

NEAR_NS = 20_000
QUEUE_DEPTH = 900
LEAST_SAMPLES = 8
BLOCKING_PERCENT = 90

_COMMUNICATES = f"regexp_matches(name, '{COMMUNICATION_RANGE}')"

# Kinds above 3 are those of work that its call waits for: copies of memory that is not pinned.
_WORKS = """
    SELECT event, thread AS stream, start_ns, coalesce(dur_ns, 0) AS dur_ns, launch,
           (CASE kind WHEN 'memcpy' THEN 2 WHEN 'memset' THEN 3 ELSE coalesce(communicates, FALSE)::INT END
            + CASE WHEN kind = 'memcpy' AND contains(name, 'Pageable') THEN 4 ELSE 0 END)::BIGINT AS kind,
           (hash(name) >> 1)::BIGINT AS label
    FROM device_work WHERE start_ns >= $since AND start_ns < $until
"""
_STREAMS = """
    streams AS (SELECT device_name, stream, min(thread) AS thread FROM device_work
                WHERE stream IS NOT NULL GROUP BY device_name, stream)
"""
_CALLS = f"""
    WITH {_STREAMS},
    syncs AS (SELECT e.correlation, min(s.thread) AS stream
              FROM other_events e JOIN streams s ON s.device_name = e.pid AND s.stream = e.stream
              WHERE e.category = 'cuda_sync' AND e.name = 'Stream Sync' AND e.correlation IS NOT NULL
              GROUP BY e.correlation),
    calls AS (
        SELECT event, thread, start_ns, coalesce(dur_ns, 0) AS dur_ns, correlation, work_events, name,
               (CASE WHEN list_contains($stream, name) THEN 2 WHEN list_contains($event, name) THEN 3
                     WHEN list_contains($copy, name) THEN 4 WHEN list_contains($device, name) THEN 1
                     WHEN $guess AND name LIKE '%StreamWaitEvent%' THEN 5 ELSE 0 END)::BIGINT AS waits
        FROM launches WHERE start_ns >= $since AND start_ns < $until)
    SELECT c.event, c.thread, c.start_ns, c.dur_ns, c.waits, y.stream, (hash(c.name) >> 1)::BIGINT AS label
    FROM calls c LEFT JOIN syncs y ON c.waits = 2 AND y.correlation = c.correlation
    WHERE c.waits > 0 OR c.work_events > 0
"""
_RECORDED_WAITS = "StreamWaitEvent|EventRecord"
_STREAM_WAITS = f"""
    WITH {_STREAMS},
    waits AS (
        SELECT pid, stream, wait_on_stream, correlation,
               TRY_CAST(args->>'$.wait_on_cuda_event_record_corr_id' AS BIGINT) AS recorded
        FROM other_events WHERE category = 'cuda_sync' AND wait_on_stream IS NOT NULL),
    calls AS (SELECT correlation, max(start_ns) AS start_ns FROM launches WHERE correlation IS NOT NULL
              AND (name LIKE '%StreamWaitEvent%' OR name LIKE '%EventRecord%') GROUP BY correlation)
    SELECT s.thread AS stream, o.thread AS other, c.start_ns AS waited_at,
           coalesce(r.start_ns, c.start_ns) AS recorded_at
    FROM waits w JOIN streams s ON s.device_name = w.pid AND s.stream = w.stream
    JOIN streams o ON o.device_name = w.pid AND o.stream = w.wait_on_stream
    JOIN calls c ON c.correlation = w.correlation LEFT JOIN calls r ON r.correlation = w.recorded
"""
_BUSY = f"""
    SELECT thread, start_ns, dur_ns FROM (
        SELECT thread, start_ns, dur_ns FROM ops WHERE parent IS NULL
        UNION ALL SELECT thread, start_ns, dur_ns FROM launches WHERE op IS NULL
        UNION ALL SELECT thread, start_ns, dur_ns FROM annotations WHERE {_COMMUNICATES})
    WHERE start_ns >= $since AND start_ns < $until AND dur_ns > 0
"""
_ENGINE, _COMMUNICATION = 1, 2
_ROLES = f"""
    SELECT thread, min(role) AS role FROM (
        SELECT thread, {_ENGINE} AS role FROM ops WHERE forward_thread > 0
        UNION ALL SELECT thread, {_COMMUNICATION} FROM annotations
        WHERE category = 'user_annotation' AND {_COMMUNICATES}) GROUP BY thread
"""


def dependencies(trace: Trace, window: tuple[int, int] = ALL) -> _native.Dependencies:
    """The graph of what begins in a window; some 150 bytes for each piece of device work and each launch."""
    if not trace.is_small:  # a large graph is not kept
        return _dependencies(trace, window)
    return trace.once(  # type: ignore[no-any-return]
        ("dependencies", window), lambda: _dependencies(trace, window)
    )


def _dependencies(trace: Trace, window: tuple[int, int]) -> _native.Dependencies:
    within = {"since": window[0], "until": window[1]}
    graph = _native.Dependencies(NEAR_NS, QUEUE_DEPTH, LEAST_SAMPLES, BLOCKING_PERCENT)
    recorded = trace.arrow(_STREAM_WAITS) if trace.may_have_name(_RECORDED_WAITS) else None
    if recorded:
        graph.add_stream_waits(*map(view, recorded.columns))
    for batch in trace.batches(_WORKS, **within):
        graph.add_works(*map(view, batch.columns))
    for batch in trace.batches(_CALLS, guess=not recorded, **_waiting(trace), **within):
        graph.add_calls(*map(view, batch.columns))
    for batch in trace.batches(_BUSY, **within):
        graph.add_busy(*map(view, batch.columns))
    graph.build()
    return graph


def _waiting(trace: Trace) -> dict[str, Any]:
    """The names of calls that wait, by what they wait for; to free memory is to wait for the device."""
    names = call_names(trace)
    found: dict[str, list[str]] = {"device": list(names.freeing), "stream": [], "event": [], "copy": []}
    for name in names.waiting:
        what = next((word for word in ("Stream", "Event") if f"{word}Synchroni" in name), None)
        found["copy" if "Memcpy" in name else what.lower() if what else "device"].append(name)
    return found


def roles(trace: Trace) -> dict[int, int]:
    """Which threads the engine runs on, and which communicate."""
    rows = trace.once("roles", lambda: trace.rows(_ROLES))
    return {row["thread"]: row["role"] for row in rows}
