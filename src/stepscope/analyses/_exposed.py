"""The collectives of a trace in order, and the stretches of steps in which nothing else ran."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.analyses._windows import threads_that_drive
from stepscope.schema import COMMUNICATION_RANGE, NOT_HOST
from stepscope.store.trace import Reads, Trace

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ASKING", "COMPUTING", "EXPOSED_READS", "NUMBERED_CALLS", "driving_threads", "exposed"]

_RANGE = ("event", "name", "category", "phase", "start_ns", "dur_ns", "thread")
_HOST_RANGES = " UNION ALL ".join(
    f"SELECT event, name, start_ns, dur_ns FROM {table} WHERE regexp_matches(name, '{COMMUNICATION_RANGE}')"
    " AND dur_ns > 0 AND phase = 'X' AND (category IS NULL OR NOT list_contains($not_host, category))"
    for table in ("annotations", "ops", "other_events")
)
NUMBERED_CALLS = f"""
    SELECT row_number() OVER (ORDER BY start_ns, dur_ns, name, event) - 1 AS call, event, start_ns, dur_ns,
           start_ns + dur_ns AS end_ns
    FROM (SELECT event, name, start_ns, coalesce(dur_ns, 0) AS dur_ns FROM device_work WHERE communicates
          UNION ALL {_HOST_RANGES})
    WHERE start_ns IS NOT NULL
"""
"""All collectives, device and host, numbered in the order of their starts; takes `$not_host`."""

_WORK = """
    SELECT start_ns, start_ns + dur_ns AS end_ns FROM device_work WHERE NOT communicates AND dur_ns > 0
"""
ASKING = r"^(_?c10d(_functional)?::|record_param_comms$)"
"""Operators of torch.distributed: they ask for a collective, or wait for one."""
# An operator that waits for a collective computes nothing, although it is open.
COMPUTING = f"""
    SELECT now_ns AS start_ns, until AS end_ns FROM (
        SELECT now_ns, lead(now_ns) OVER calls AS until, sum(ops) OVER calls AS ops,
               sum(waits) OVER calls AS waits
        FROM (
            SELECT thread, now_ns, sum(op) AS ops, sum(wait) AS waits FROM (
                SELECT thread, unnest([start_ns, start_ns + dur_ns]) AS now_ns,
                       unnest([1, -1]) AS op, unnest([1, -1]) * asks AS wait
                FROM (SELECT thread, start_ns, dur_ns, regexp_matches(name, '{ASKING}')::INT AS asks
                      FROM ops WHERE dur_ns > 0 AND list_contains($threads, thread)))
            GROUP BY thread, now_ns)
        WINDOW calls AS (PARTITION BY thread ORDER BY now_ns))
    WHERE ops > 0 AND waits = 0 AND until > now_ns
"""
"""When operators of some threads computed; takes `$threads`."""
_FAR = 1 << 62
_PAUSES = """
    SELECT coalesce(before, -{far}) AS start_ns, start_ns AS end_ns
    FROM (SELECT start_ns, max(end_ns) OVER (ORDER BY start_ns, end_ns
                                             ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
          FROM work)
    WHERE before IS NULL OR start_ns > before
    UNION ALL
    SELECT coalesce(max(end_ns), -{far}), {far} FROM work
"""
# Of several collectives at once the last to end is waited for: whoever will end after all before it leads
# from its start on, until the next such one begins.
_FOREMOST = """
    SELECT call, start_ns,
           least(end_ns, coalesce(lead(start_ns) OVER (ORDER BY start_ns, call), end_ns)) AS end_ns
    FROM (SELECT *, max(end_ns) OVER (ORDER BY start_ns, call
                                      ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
          FROM {among})
    WHERE before IS NULL OR end_ns > before
"""
# Where three sets of disjoint stretches overlap: it begins where one of them does, inside of the others.
_ON_DEVICE = f"alone AS ({_FOREMOST.format(among='timed')}), free AS (FROM pauses)"
# The host waits for what ends before it goes on. After a pause in which nothing ends it goes on by itself.
# The range of a collective ends when its thread gets to say so: if cores are scarce, after the host went on.
_ON_HOST = f"""
    near AS (
        SELECT p.start_ns, p.end_ns
        FROM pauses p ASOF JOIN (SELECT DISTINCT end_ns AS ends_ns FROM timed) e ON p.start_ns < e.ends_ns
        WHERE e.ends_ns <= p.end_ns OR e.ends_ns - p.end_ns <= p.end_ns // 2 - p.start_ns // 2),
    waited AS (
        SELECT call, arg_max(since, until - since) AS start_ns, arg_max(until, until - since) AS end_ns
        FROM (SELECT c.call, c.end_ns, greatest(c.start_ns, p.start_ns) AS since,
                      least(c.end_ns, p.end_ns) AS until
               FROM timed c JOIN near p ON p.start_ns < c.end_ns AND p.end_ns > c.start_ns)
        WHERE until + (until - since) // 2 >= end_ns GROUP BY call),
    alone AS ({_FOREMOST.format(among="waited")}),
    free AS (SELECT -{_FAR} AS start_ns, {_FAR} AS end_ns)
"""
_EXPOSED = """
    WITH calls AS ({calls}),
    timed AS (FROM calls WHERE dur_ns > 0),
    work AS ({work}),
    pauses AS ({pauses}),
    {alone},
    windows AS (SELECT step, start_ns, end_ns FROM steps),
    begins AS (
        SELECT start_ns AS begin_ns FROM alone WHERE start_ns < end_ns
        UNION SELECT start_ns FROM free UNION SELECT start_ns FROM windows)
    SELECT s.step, a.call, b.begin_ns AS start_ns,
           least(a.end_ns, s.end_ns, f.end_ns) - b.begin_ns AS dur_ns
    FROM begins b
    ASOF JOIN (FROM alone WHERE start_ns < end_ns) a ON b.begin_ns >= a.start_ns
    ASOF JOIN free f ON b.begin_ns >= f.start_ns
    ASOF JOIN windows s ON b.begin_ns >= s.start_ns
    WHERE b.begin_ns < a.end_ns AND b.begin_ns < f.end_ns AND b.begin_ns < s.end_ns
    ORDER BY b.begin_ns
"""

EXPOSED_READS: Reads = {
    "device_work": ("event", "name", "start_ns", "dur_ns", "communicates"),
    "launches": ("thread", "work_events"),
    "ops": (*_RANGE, "forward_thread"),
    "annotations": _RANGE,
    "other_events": _RANGE,
    "steps": ("step", "source", "start_ns", "end_ns", "thread"),
}
"""What `exposed` reads."""


def exposed(trace: Trace) -> pa.Table:
    """Stretches of steps in which nothing but collectives ran: step, call (its number), start_ns, dur_ns.

    On the device everything else that runs there counts, so that these are the communication of `steps`.
    Without a device operators count, for the host computes beside its threads that communicate, and of the
    pauses between them those at whose end a collective had ended.
    """

    def find() -> pa.Table:
        params: dict[str, Any] = {"not_host": list(NOT_HOST)}
        work, alone = _WORK, _ON_DEVICE
        if not trace.has("device_work"):
            work, alone, params["threads"] = COMPUTING, _ON_HOST, driving_threads(trace)
        pauses = _PAUSES.format(far=_FAR)
        sql = _EXPOSED.format(calls=NUMBERED_CALLS, work=work, pauses=pauses, alone=alone)
        return trace.arrow(sql, **params)

    return trace.once("exposed communication", find)


def driving_threads(trace: Trace) -> list[int]:
    """The threads that drive the work; where nothing tells them, all that run operators."""
    all_of_them = "SELECT DISTINCT thread FROM ops"
    return sorted(threads_that_drive(trace) or [row["thread"] for row in trace.rows(all_of_them)])
