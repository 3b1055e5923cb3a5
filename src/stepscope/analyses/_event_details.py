"""One event of a trace with all that is known of it: arguments, links, stack, others of its name.

What needs a table that is made at first use waits until it is there, or is asked to be made (`wait`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.analyses._event_rows import (
    Ref,
    arguments,
    in_short,
    inputs_of,
    kind_of,
    names_of,
    ref_of,
    reference,
    row_at,
)
from stepscope.analyses._kernel_limits import limits_of
from stepscope.patterns import late_pattern
from stepscope.store.phases import PHASES, is_user_frame, own_phases
from stepscope.store.places import HOST_EVENTS, HOST_TABLES, places_of

if TYPE_CHECKING:
    from stepscope.store.trace import Trace

__all__ = ["event_details"]

_FIRST = 50
_DEEPEST = 100
_MANY_ROWS = 1_000_000
"""In a table of so many rows to look at all of one name takes longer than a click should."""
_MANY_INSIDE = 300_000
_FRAME = late_pattern(r"(.+)\((\d+)\): (.+)")
_FIRST_LOOK_NS = 20_000_000


def event_details(trace: Trace, event: int, *, wait: bool = False) -> dict[str, Any]:
    """All that is known of an event; `pending` names what has to be made first."""
    return _Details(trace, event, wait=wait).told()


class _Details:
    """The questions about one event."""

    def __init__(self, trace: Trace, event: int, *, wait: bool) -> None:
        self._trace, self._wait = trace, wait
        self._places = places_of(trace)
        self._place = self._places.of(event)
        self._row = row_at(trace, self._place)
        self._pending: list[str] = []
        self._made: set[str] = trace.once("what was waited for", set)

    def told(self) -> dict[str, Any]:
        """The answer."""
        row = self._row
        args = arguments(row)
        launch = self._launch()
        host = launch or (row if row["table"] in (*HOST_TABLES, "memory_events") else None)
        site = self._site(host)
        stack, whose = self._stack(host, site)
        frames = [one for one in stack if one["kind"] == "python_frame"]
        user = next((one for one in frames if one["user"]), None)
        bytes_ = row.get("bytes")
        return {
            **reference(row),
            "table": row["table"],
            "category": row["category"],
            "pid": row["pid"],
            "tid": row["tid"],
            "self_ns": self._self_ns(),
            "recorded_ns": row.get("recorded_ns"),
            "args": args,
            "inputs": inputs_of(args) if row["table"] == "ops" else [],
            "module": _module(stack) or site.get("module"),
            "phase": site.get("phase") or self._phase(host, stack),
            "step": self._step(),
            "stack": frames[:_DEEPEST],
            "stack_of": whose if frames else None,
            "user_frame": {key: user[key] for key in ("file", "line", "function")} if user else None,
            "links": self._links(launch, stack, site),
            "queue_ns": _less(row["start_ns"], launch["start_ns"]) if launch else None,
            "device": None if row.get("device") is None else str(row["device"]),
            "bytes": bytes_,
            "gb_per_s": bytes_ / row["dur_ns"] if self._is_work and bytes_ and row["dur_ns"] else None,
            "roofline": self._roofline(host),
            "alike": self._alike(),
            "pending": self._pending,
        }

    @property
    def _is_work(self) -> bool:
        return bool(self._row["table"] == "device_work")

    def _may(self, *fields: str, needs: str = "") -> bool:
        """Whether something expensive may be asked now; if not, the fields are told as pending."""
        if self._wait or self._trace.is_small or needs in self._made or needs in self._trace.derived:
            if needs:
                self._made.add(needs)
            return True
        self._pending += fields
        return False

    # ------------------------------------------------ where it comes from

    def _launch(self) -> dict[str, Any] | None:
        if not self._is_work:
            return None
        place = self._places.known(self._row["launch"], ("launches",))
        return row_at(self._trace, place) if place else None

    def _site(self, host: dict[str, Any] | None) -> dict[str, Any]:
        """Phase, module and forward operator of a call, by the tree of all calls."""
        if host is None or host["table"] not in ("ops", "launches", "memory_events"):
            return {}
        if not self._may("phase", "module", "forward", "backward", needs="call_sites"):
            return {}
        found = self._trace.reading(None).rows(
            """SELECT c.phase, c.forward, m.name AS module FROM stored.call_sites c
               LEFT JOIN stored.call_tree m ON m.node = c.module WHERE c.event = $event""",
            event=host["event"],
        )
        if not found:
            return {}
        module = found[0]["module"]
        return {**found[0], "module": module.removeprefix("nn.Module: ") if module else None}

    def _stack(
        self, host: dict[str, Any] | None, site: dict[str, Any]
    ) -> tuple[list[dict[str, Any]], str | None]:
        """What is around the event on its thread, innermost first, or around its forward operator."""
        if host is None:
            return [], None
        found = self._around(host)
        whose = "op" if self._is_work else "event"
        forward = self._places.known(site.get("forward"), ("ops",))
        if forward and not any(one["kind"] == "python_frame" for one in found):
            before = self._around(row_at(self._trace, forward))
            found, whose = [*found, *before], "forward"
        return found, whose

    def _around(self, row: dict[str, Any]) -> list[dict[str, Any]]:
        if row["start_ns"] is None:
            return []
        end = row["start_ns"] + (row["dur_ns"] or 0)
        rows = [
            one
            for one in self._places.around(row["thread"], row["start_ns"], end)
            if one["event"] != row["event"] and not _is_inside(one, row)
        ]
        texts = names_of(self._trace, (one["name"] for one in rows))
        called = [texts.get(one["name"]) for one in rows]
        users = _users(called)
        return [
            {**_frame_ref(one, name, row["thread"]), **_parts(name), "user": user}
            for one, name, user in zip(rows, called, users, strict=True)
        ][::-1]

    def _phase(self, host: dict[str, Any] | None, stack: list[dict[str, Any]]) -> str | None:
        """The phase that the calls around it begin, where the tree of all calls does not know the event."""
        import pyarrow as pa

        if host is None:
            return None
        chain = [reference(host), *stack]
        found = own_phases(pa.array([one["name"] or "" for one in chain], pa.string())).to_pylist()
        phase = next((one for one in found if one is not None), None)
        if phase is not None:
            return PHASES[phase]
        return "forward" if any(one["kind"] == "op" for one in chain) else None

    def _step(self) -> dict[str, Any] | None:
        at = self._row["start_ns"]
        if at is None or not self._may("step", needs="steps"):
            return None
        start, end = ("start_ns", "end_ns") if self._is_work else ("host_start_ns", "host_end_ns")
        found = self._trace.reading(None).rows(
            f"""SELECT step, start_ns, end_ns FROM stored.steps
                WHERE {start} <= $at AND {end} > $at ORDER BY {start} DESC LIMIT 1""",
            at=at,
        )
        return found[0] if found else None

    # ------------------------------------------------ links

    def _links(
        self,
        launch: dict[str, Any] | None,
        stack: list[dict[str, Any]],
        site: dict[str, Any],
    ) -> dict[str, Any]:
        row = self._row
        own = [] if self._is_work else [one for one in stack if one["track"] == row["thread"]]
        op = row.get("op") if row["table"] in ("launches", "device_work") else None
        call = reference(launch) if launch else None
        replays = launch is not None and "GraphLaunch" in (launch["called"] or "")
        forward = site.get("forward") if row["table"] == "ops" else None
        return {
            "parent": _short(own[0]) if own else None,
            "op": ref_of(self._trace, op, ("ops",)),
            "launch": call,
            "graph": call if replays else None,
            "forward": ref_of(self._trace, forward, ("ops",)),
            "backward": self._backward(),
            "kernels": self._kernels(),
        }

    def _backward(self) -> dict[str, Any]:
        if self._row["table"] != "ops" or not ("call_sites" in self._made or self._trace.is_small):
            return {"count": 0, "first": []}
        rows = self._trace.reading(None).rows(
            "SELECT event FROM stored.call_sites WHERE forward = $event ORDER BY event",
            event=self._row["event"],
        )
        first = [ref_of(self._trace, one["event"], ("ops",)) for one in rows[:_FIRST]]
        return {"count": len(rows), "first": [one for one in first if one]}

    def _kernels(self) -> dict[str, Any]:
        """The device work that was launched while the event was open on its thread."""
        row = self._row
        none = {"count": 0, "total_ns": 0, "first": []}
        if row["table"] not in HOST_TABLES or row["start_ns"] is None:
            return none
        inside = "thread = $thread AND start_ns >= $start AND start_ns < $end AND work_events > 0"
        given = {"thread": row["thread"], "start": row["start_ns"]}
        given["end"] = row["start_ns"] + max(row["dur_ns"] or 0, 1)
        if row["table"] == "launches":
            inside += " AND event = $event"
            given["event"] = row["event"]
        asked = self._trace.reading(None)
        (sums,) = asked.rows(
            f"""SELECT coalesce(sum(work_events), 0)::BIGINT AS count,
                       coalesce(sum(work_ns), 0)::BIGINT AS total_ns
                FROM stored.launches WHERE {inside}""",
            **given,
        )
        if not sums["count"]:
            return none
        calls = asked.rows(
            f"SELECT event, start_ns FROM stored.launches WHERE {inside} ORDER BY start_ns LIMIT {_FIRST}",
            **given,
        )
        return {**sums, "first": self._work_of(calls, min(sums["count"], _FIRST))}

    def _work_of(self, calls: list[dict[str, Any]], wanted: int) -> list[Ref]:
        """The first work of some launches: it is looked for in a time that grows until it is found."""
        first, last = calls[0]["start_ns"], calls[-1]["start_ns"]
        reach = _FIRST_LOOK_NS
        while True:
            found = in_short(
                self._trace,
                "device_work",
                "list_contains($calls, t.launch) AND t.start_ns >= $since AND t.start_ns < $until",
                _FIRST,
                calls=[one["event"] for one in calls],
                since=first - _FIRST_LOOK_NS,  # clocks of host and device may differ a little
                until=last + reach,
            )
            if len(found) >= wanted or reach > 1 << 60:
                return found
            reach *= 32

    # ------------------------------------------------ how it compares

    def _self_ns(self) -> int | None:
        """Time in which it was the innermost event of its thread."""
        row = self._row
        if row["table"] not in HOST_TABLES or row["start_ns"] is None or row["dur_ns"] is None:
            return None
        if row["table"] in ("annotations", "other_events") and not self._is_host():
            return None
        start, end = row["start_ns"], row["start_ns"] + row["dur_ns"]
        many = self._places.rows_between(row["thread"], start, end) > _MANY_INSIDE
        if many and not self._may("self_ns"):
            return None
        (found,) = self._trace.reading(None).rows(
            _INSIDE, thread=row["thread"], start=start, end=end, event=row["event"]
        )
        return int(row["dur_ns"]) - int(found["covered"])

    def _is_host(self) -> bool:
        row = self._row
        at = self._places.around(row["thread"], row["start_ns"], row["start_ns"] + row["dur_ns"])
        return any(one["event"] == row["event"] for one in at)

    def _roofline(self, host: dict[str, Any] | None) -> dict[str, Any] | None:
        row = self._row
        if not self._is_work or row["dur_ns"] is None:
            return None
        if not self._may("roofline", needs="limits of kernels"):
            return None
        chain = []
        op = self._places.known(row["op"], ("ops",))
        if op and host:
            first = row_at(self._trace, op)
            around = [one for one in self._around(first) if one["kind"] == "op"]
            above = [self._places.known(one["event"], ("ops",)) for one in around]
            chain = [first, *(row_at(self._trace, one) for one in above if one)]
        return limits_of(self._trace, [(one["called"], one["args"]) for one in chain], row["called"])

    def _alike(self) -> dict[str, Any] | None:
        """The events of its table with the same name."""
        row = self._row
        if row["name"] is None or row["start_ns"] is None or row["dur_ns"] is None:
            return None
        many = self._trace.meta.rows.get(row["table"], 0) > _MANY_ROWS
        if many and not self._may("alike"):
            return None
        (found,) = self._trace.reading(None).rows(
            _ALIKE.replace("OF_TABLE", f"stored.{row['table']}"),
            name=row["name"],
            start=row["start_ns"],
            event=row["event"],
            dur=row["dur_ns"],
        )
        kind = kind_of(row)
        refs = {
            key: {**found[key], "name": row["called"], "kind": kind} if found[key] else None
            for key in ("first", "last", "longest", "previous", "next")
        }
        others = found["calls"] - 1
        return {
            "calls": found["calls"],
            "total_ns": int(found["total_ns"]),
            "mean_ns": int(found["total_ns"]) // found["calls"],
            "faster_than_share": found["longer"] / others if others else None,
            **refs,
        }


# What is around the event is not inside it: of two that begin and end together the first one is outside.
_INSIDE = f"""
    WITH {HOST_EVENTS},
    inside AS (
        SELECT start_ns, least(start_ns + dur_ns, $end) AS end_ns FROM host_events
        WHERE thread = $thread AND start_ns >= $start AND start_ns < $end AND dur_ns > 0 AND event != $event
          AND NOT (start_ns = $start AND (start_ns + dur_ns > $end
                                          OR start_ns + dur_ns = $end AND event < $event))),
    swept AS (
        SELECT start_ns, end_ns, max(end_ns) OVER (ORDER BY start_ns, end_ns
                                                   ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
        FROM inside)
    SELECT coalesce(sum(greatest(0, end_ns - greatest(start_ns, coalesce(before, start_ns)))), 0)::BIGINT
           AS covered
    FROM swept
"""
_ONE = "{'event': event, 'track': thread, 'start_ns': start_ns, 'dur_ns': dur_ns}"
_BEFORE = "(start_ns < $start OR start_ns = $start AND event < $event)"
_AFTER = "(start_ns > $start OR start_ns = $start AND event > $event)"
_ALIKE = f"""
    SELECT count(*) AS calls, sum(dur_ns) AS total_ns, count(*) FILTER (dur_ns > $dur) AS longer,
           arg_min({_ONE}, (start_ns, event)) AS first,
           arg_max({_ONE}, (start_ns, event)) AS last,
           arg_max({_ONE}, (dur_ns, -event)) AS longest,
           arg_max({_ONE}, (start_ns, event)) FILTER ({_BEFORE}) AS previous,
           arg_min({_ONE}, (start_ns, event)) FILTER ({_AFTER}) AS next
    FROM OF_TABLE WHERE name = $name AND dur_ns IS NOT NULL AND start_ns IS NOT NULL
"""


def _is_inside(one: dict[str, Any], row: dict[str, Any]) -> bool:
    """Whether an event of the same start and end comes after the other: then it is not around it."""
    alike = one["start_ns"] == row["start_ns"] and one["dur_ns"] == (row["dur_ns"] or 0)
    return bool(alike and one["event"] > row["event"])


def _frame_ref(one: dict[str, Any], name: str | None, thread: int) -> Ref:
    kinds = {"python_frames": "python_frame", "ops": "op", "launches": "launch", "annotations": "annotation"}
    return {
        "event": one["event"],
        "track": thread,
        "name": name,
        "kind": kinds.get(one["table"], "other"),
        "start_ns": one["start_ns"],
        "dur_ns": one["dur_ns"],
    }


def _short(one: dict[str, Any]) -> Ref:
    return {key: one[key] for key in ("event", "track", "name", "kind", "start_ns", "dur_ns")}


def _parts(name: str | None) -> dict[str, Any]:
    found = _FRAME.fullmatch(name or "")
    if not found or len(found[2]) > 9:
        return {"file": None, "line": None, "function": None}
    return {"file": found[1], "line": int(found[2]), "function": found[3]}


def _users(names: list[str | None]) -> list[bool]:
    import pyarrow as pa

    return [
        bool(one) for one in is_user_frame(pa.array([name or "" for name in names], pa.string())).to_pylist()
    ]


def _module(stack: list[dict[str, Any]]) -> str | None:
    """The modules around, from the outermost."""
    found = [one["name"] for one in stack if (one["name"] or "").startswith("nn.Module: ")]
    return ".".join(name.removeprefix("nn.Module: ") for name in reversed(found)) or None


def _less(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one - other
