"""What a rank's own time was spent on: the device worked, or why it was idle."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stepscope.analyses._exposed import COMPUTING, EXPOSED_READS, driving_threads
from stepscope.analyses._regions import COMPILERS, NAMED, ROOTS, TIMED
from stepscope.analyses._windows import claimed, reads_of_all
from stepscope.schema import DATALOADER_RANGE, NOT_HOST
from stepscope.simulation.device_calls import WAITING_CALLS, WAITING_READS, call_names
from stepscope.store.trace import Reads, Trace

__all__ = ["CAUSES", "CAUSE_READS", "causes_of"]

CAUSES = ("compute", "copies", "input", "memory", "collector", "compiling", "sync", "host", "other")
"""What own time of a rank is spent on."""

_WITH_DEVICE = (
    "compute", "copies", "other", "input", "memory", "collector", "compiling", "sync", "host",
)  # fmt: skip
"""In the order in which they claim an instant. What was launched before the device fell idle waited there:
whatever the host did meanwhile, it was not waited for."""
_WITHOUT_DEVICE = ("input", "collector", "compiling", "compute", "host")
"""The same where the host computes: its loader and its compiler may run operators, too."""

_SCHEDULING_NS = 3000
"""A device takes so long from work to work without any reason."""
_RANGE = ("name", "category", "phase", "start_ns", "dur_ns", "thread")
_RANGES = ("annotations", "ops", "other_events")
_LOADING = " UNION ALL ".join(
    f"SELECT start_ns, dur_ns FROM {table} WHERE regexp_matches(name, '{DATALOADER_RANGE}')"
    " AND phase = 'X' AND (category IS NULL OR NOT list_contains($not_host, category))"
    for table in _RANGES
)
_WAITED_ON_DEVICE = f"""
    SELECT start_ns, dur_ns FROM gaps
    WHERE launch IS NOT NULL AND launch_delay_ns = 0 AND dur_ns < {_SCHEDULING_NS}
    UNION ALL
    SELECT g.start_ns, g.dur_ns FROM gaps g JOIN launches l ON l.event = g.launch
    WHERE g.launch_delay_ns = 0 AND g.dur_ns >= {_SCHEDULING_NS}
      AND l.start_ns + coalesce(l.dur_ns, 0) <= g.start_ns
"""
_SYNCHRONISING = """
    SELECT start_ns, dur_ns FROM waits
    UNION ALL
    SELECT g.start_ns, g.dur_ns
    FROM (FROM gaps WHERE launch_delay_ns > 0) g
    ASOF JOIN waits w ON w.thread = g.thread AND g.start_ns >= w.start_ns
    WHERE g.start_ns < w.start_ns + w.dur_ns
"""
_ALLOCATING = """
    SELECT start_ns, dur_ns FROM launches
    WHERE list_contains($allocating, name) AND list_contains($threads, thread)
"""
_HOST = """
    SELECT start_ns, dur_ns FROM annotations
    WHERE category = 'user_annotation' AND phase = 'X' AND list_contains($threads, thread)
    UNION ALL
    SELECT start_ns, dur_ns FROM ops WHERE depth = 0 AND list_contains($threads, thread)
"""
_LATE = """
    SELECT start_ns, dur_ns FROM gaps WHERE launch_delay_ns > 0
    UNION ALL
    SELECT start_ns, dur_ns FROM launches WHERE list_contains($threads, thread)
"""
_CLAIMS = """
    WITH {ctes}claims AS ({claims})
    SELECT start_ns, dur_ns, label::BIGINT AS label FROM claims
    WHERE dur_ns > 0 AND start_ns < $until AND start_ns + dur_ns > $since ORDER BY start_ns
"""

CAUSE_READS: Reads = reads_of_all(
    EXPOSED_READS,
    WAITING_READS,
    {
        "device_work": ("start_ns", "dur_ns", "kind", "communicates"),
        "gaps": ("start_ns", "dur_ns", "thread", "launch", "launch_delay_ns"),
        "collector_pauses": ("start_ns", "dur_ns"),
        "python_frames": NAMED,
        **dict.fromkeys(_RANGES, (*_RANGE, "event")),
    },
)
"""What `causes_of` reads."""


def causes_of(trace: Trace, starts: list[int], ends: list[int]) -> dict[str, list[int]]:
    """For stretches of time, in order, how much of each had which of the `CAUSES`; they sum to it.

    Nothing but communication may run on the device outside of these stretches.
    """
    params: dict[str, Any] = {"not_host": list(NOT_HOST), "threads": driving_threads(trace)}
    queries = dict(_queries(trace, params))
    order = _WITH_DEVICE if trace.has("device_work") else _WITHOUT_DEVICE
    ctes = [f"waits AS MATERIALIZED ({WAITING_CALLS})"] if "sync" in queries else []
    if "compiling" in queries:
        ctes += [TIMED, ROOTS]
    claims = " UNION ALL ".join(
        f"SELECT start_ns, dur_ns, {order.index(cause)} AS label FROM ({sql})"
        for cause, sql in queries.items()
    )
    windows = [{"start_ns": start, "end_ns": end} for start, end in zip(starts, ends, strict=True)]
    sql = _CLAIMS.format(ctes="".join(f"{one}, " for one in ctes), claims=claims)
    found = claimed(trace, sql, windows, len(order), **params)
    times = {cause: [0] * len(starts) for cause in CAUSES}
    for place, cause in enumerate((*order, "other")):
        times[cause] = [had + one[place] for had, one in zip(times[cause], found, strict=True)]
    return times


def _queries(trace: Trace, params: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """SQL of when each cause was there; what it asks for is added to the parameters."""
    if trace.has("device_work"):
        yield "compute", "SELECT start_ns, dur_ns FROM device_work WHERE kind = 'kernel' AND NOT communicates"
        yield "copies", "SELECT start_ns, dur_ns FROM device_work WHERE kind <> 'kernel'"
        yield "other", _WAITED_ON_DEVICE
        yield "host", f"{_HOST} UNION ALL {_LATE}"
    else:
        yield "compute", f"SELECT start_ns, end_ns - start_ns AS dur_ns FROM ({COMPUTING})"
        yield "host", _HOST
    yield "input", _LOADING
    if trace.has("collector_pauses"):
        yield "collector", "SELECT start_ns, dur_ns FROM collector_pauses"
    if trace.may_have_name(COMPILERS):
        yield "compiling", "SELECT start_ns, end_ns - start_ns AS dur_ns FROM roots"
    if trace.has("device_work") and trace.has("launches"):
        names = call_names(trace)
        params |= {"waiting": names.waiting + names.freeing, "allocating": names.allocating}
        yield "sync", _SYNCHRONISING
        yield "memory", _ALLOCATING
