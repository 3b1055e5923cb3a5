"""Where the host waited for the device, and what that cost the device."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

from stepscope import units
from stepscope.analyses import analysis
from stepscope.analyses._blame import BLAME_READS, callers
from stepscope.analyses._idle import IDLE_READS, idle_time
from stepscope.analyses._windows import how_steps_were_found
from stepscope.records import dataclass
from stepscope.simulation.device_calls import WAITING_CALLS, CallNames, call_names
from stepscope.store.trace import Reads, Trace
from stepscope.tables import Table

__all__ = ["HostSync", "host_syncs"]


@dataclass(frozen=True, slots=True)
class HostSync:
    """Blocking calls of one function, operator and line that began in a step; with `longest`, one call."""

    call: Annotated[str | None, "The blocking function of the runtime or driver."]
    op: Annotated[str | None, "Innermost operator that called it; NULL outside any."]
    user_frame: Annotated[str | None, "Function of the user's code that led to it; needs with_stack=True."]
    calls: Annotated[int, "How often it was called."]
    per_step: Annotated[float, "The same per step, on average."]
    waited_ns: Annotated[int, "How long the host was in these calls."]
    waited_share: Annotated[float | None, "The same as a share of the steps."]
    starved_ns: Annotated[
        int,
        "Time for which devices were starved, in gaps that began while such a call was open.",
    ]
    starved_share: Annotated[
        float | None, "The same as a share of the steps; with several devices it may exceed 1."
    ]
    gaps: Annotated[int, "How many such gaps there were."]
    devices: Annotated[str | None, "The devices that starved."]
    longest_ns: Annotated[int, "The longest of these calls."]
    step: Annotated[int, "Step of that call."]
    start_ns: Annotated[int, "When that call began."]
    blame: Annotated[str | None, "That call with all its operators, and how long devices starved after it."]


_READS: Reads = {
    **BLAME_READS,
    **IDLE_READS,
    "steps": (*IDLE_READS["steps"], "host_start_ns"),
    "launches": tuple({*IDLE_READS["launches"], *BLAME_READS["launches"]}),
}
_MARKED = "SELECT count(*) AS steps, sum(end_ns - start_ns)::BIGINT AS length_ns FROM steps"
# The profiler waits for the device when it stops: nobody's operator, after the steps, and nothing follows.
_OWN = """
    SELECT l.event, l.name, l.dur_ns FROM launches l
    WHERE l.op IS NULL AND list_contains($device_waiting, l.name)
      AND l.start_ns >= (SELECT coalesce(max(host_end_ns) FILTER (source = 'mark'), l.start_ns) FROM steps)
      AND l.start_ns >= (SELECT coalesce(max(start_ns), l.start_ns) FROM launches WHERE work_events > 0)
    ORDER BY l.start_ns DESC, l.event DESC LIMIT 1
"""
_EACH = f"""
    WITH waits AS ({WAITING_CALLS}),
    starving AS (
        SELECT unnest($events::BIGINT[]) AS event, unnest($devices::VARCHAR[]) AS device,
               unnest($starved::BIGINT[]) AS starved_ns, unnest($gaps::BIGINT[]) AS gaps),
    starved AS (
        SELECT event, sum(starved_ns) AS starved_ns, sum(gaps) AS gaps, list(device) AS devices
        FROM starving GROUP BY event)
    SELECT w.event, w.name AS call, o.name AS op, f.name AS user_frame, w.start_ns, w.dur_ns,
           CASE WHEN w.start_ns < s.host_end_ns THEN s.step END AS step,
           coalesce(g.starved_ns, 0)::BIGINT AS starved_ns, coalesce(g.gaps, 0)::BIGINT AS gaps, g.devices
    FROM waits w ASOF LEFT JOIN steps s ON w.start_ns >= s.host_start_ns
    LEFT JOIN starved g ON g.event = w.event LEFT JOIN ops o ON o.event = w.op
    LEFT JOIN call_sites p ON p.event = w.event LEFT JOIN call_tree f ON f.node = p.user_frame
    WHERE w.event IS DISTINCT FROM $own
"""
_GROUPED = f"""
    SELECT call, op, user_frame, step IS NULL AS outside, count(*) AS calls, sum(dur_ns)::BIGINT AS waited_ns,
           sum(starved_ns)::BIGINT AS starved_ns, sum(gaps)::BIGINT AS gaps,
           list_sort(list_distinct(flatten(list(devices) FILTER (devices IS NOT NULL)))) AS devices,
           max(dur_ns) AS longest_ns, arg_max(step, (dur_ns, -event)) AS step,
           arg_max(start_ns, (dur_ns, -event)) AS start_ns, arg_max(event, (dur_ns, -event)) AS event,
           arg_max(starved_ns, (dur_ns, -event)) AS then_ns
    FROM ({_EACH}) GROUP BY call, op, user_frame, outside
    ORDER BY sum(dur_ns) + sum(starved_ns) DESC, call, op, user_frame
"""
_SINGLE = f"""
    SELECT *, step IS NULL AS outside, 1 AS calls, dur_ns AS waited_ns, dur_ns AS longest_ns,
           starved_ns AS then_ns
    FROM ({_EACH}) WHERE step IS NOT NULL ORDER BY dur_ns + starved_ns DESC, event LIMIT $longest
"""


@analysis(reads=_READS)
def host_syncs(
    trace: Trace, *, longest: Annotated[int, "list this many of the most expensive single calls instead"] = 0
) -> Table[HostSync]:
    """Lists calls in which the host waited for the device, and how long the device starved afterwards.

    Window: calls that began in the mark of a step. A call waits if its name says so (…Synchronize, a plain
    copy, a free), or if it copied pageable memory and did not return before that was done. The profiler's
    own call when it stops is left out. Most expensive first: host waiting plus device starving.
    """
    marked = trace.rows(_MARKED)[0]
    if not trace.has("launches") or not marked["steps"]:
        return Table.of(HostSync, [], ["No calls into a device's runtime in the profile."])
    names = call_names(trace)
    own = trace.rows(_OWN, device_waiting=names.device_waiting) if names.device_waiting else []
    found = _found(trace, names, own[0]["event"] if own else None, max(longest, 0))
    inside = [row for row in found if not row["outside"]]
    notes = _notes(own, [row for row in found if row["outside"]], inside)
    return Table.of(HostSync, _rows(trace, inside, marked), notes + how_steps_were_found(trace))


def _found(trace: Trace, names: CallNames, own: int | None, longest: int) -> list[dict[str, Any]]:
    waiting = names.waiting + names.freeing
    if not waiting and not trace.may_have_name("Pageable"):
        return []
    starved = idle_time(trace, "steps").starved
    params = {
        "waiting": waiting,
        "own": own,
        "events": starved["event"].to_pylist(),
        "devices": starved["device"].to_pylist(),
        "starved": starved["starved_ns"].to_pylist(),
        "gaps": starved["gaps"].to_pylist(),
    }
    if longest:
        params["longest"] = longest
    rows: list[dict[str, Any]] = trace.rows(_SINGLE if longest else _GROUPED, **params)
    return rows


def _rows(trace: Trace, found: list[dict[str, Any]], marked: dict[str, int]) -> Iterable[HostSync]:
    who = callers(trace, {row["event"] for row in found})
    for row in found:
        caller = who.get(row["event"])
        yield HostSync(
            call=row["call"],
            op=row["op"],
            user_frame=row["user_frame"],
            calls=row["calls"],
            per_step=row["calls"] / marked["steps"],
            waited_ns=row["waited_ns"],
            waited_share=row["waited_ns"] / marked["length_ns"] if marked["length_ns"] else None,
            starved_ns=row["starved_ns"],
            starved_share=row["starved_ns"] / marked["length_ns"] if marked["length_ns"] else None,
            gaps=row["gaps"],
            devices=", ".join(row["devices"]) if row["devices"] else None,
            longest_ns=row["longest_ns"],
            step=row["step"],
            start_ns=row["start_ns"],
            blame=f"{caller.chain} → {units.duration(row['then_ns'])}" if caller else None,
        )


def _notes(own: list[dict[str, Any]], outside: list[dict[str, Any]], inside: list[Any]) -> list[str]:
    notes = [] if inside else ["No call waited for the device in a step."]
    if own:
        took = units.duration(own[0]["dur_ns"])
        notes.append(f"Left out: the profiler's own {own[0]['name']} when it stopped ({took}).")
    if outside:
        calls, waited = (sum(row[key] for row in outside) for key in ("calls", "waited_ns"))
        starved = sum(row["starved_ns"] for row in outside)
        notes.append(
            f"Outside the marks of steps: {units.counted(calls, 'call')}, waited {units.duration(waited)}"
            + (f", devices starved {units.duration(starved)}." if starved else ".")
        )
    return notes
