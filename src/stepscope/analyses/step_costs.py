"""What the steps cost, divided to the last nanosecond: what a device did, and what it waited for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from stepscope import _native
from stepscope.analyses import analysis
from stepscope.analyses._device_time import HASHES_NUMBERED, Windows, step_windows
from stepscope.analyses._own_time import OWN_READS, own_times
from stepscope.analyses._windows import claimed
from stepscope.analyses._work_families import WORK, WORK_READS
from stepscope.analyses.idle_gaps import IdleGap, Side, SpentIn, idle_gaps
from stepscope.analyses.steps import Step, steps
from stepscope.costs.families import family_of
from stepscope.records import dataclass
from stepscope.store.columns import view
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["StepCost", "step_costs"]


@dataclass(frozen=True, slots=True)
class StepCost:
    """Time of the steps that went to one thing; all rows together are the steps."""

    rank: Annotated[int, "Rank that recorded the profile."]
    device: Annotated[str | None, "The device with the most work, by its index; NULL where there is none."]
    part: Annotated[
        str,
        "What ran: kernels, copies, fills or collectives. What an idle device waited for: data, syncs, host, "
        "launches, device or unknown. Without a device: collectives, data, operators, calls or other.",
    ]
    kind: Annotated[str, "Of work its family, as in `kernel_families`; of waiting what it was spent in."]
    name: Annotated[str | None, "The kernel or copy; or the blocking call that had drained the queue."]
    op: Annotated[str | None, "Innermost operator that launched it; NULL outside of all, and for waiting."]
    calls: Annotated[int, "How often it ran in the steps, or how many gaps have such a part."]
    cost_ns: Annotated[int, "Time of the steps that it took, over all steps."]
    share: Annotated[float | None, "Share of the steps; all rows sum to 1. NULL for steps without length."]


_WORK = f"""
    SELECT * REPLACE (coalesce(w.dur_ns, 0) AS dur_ns) FROM ({WORK}) w
    WHERE w.start_ns < $until AND w.start_ns + coalesce(w.dur_ns, 0) > $since
"""
_BUSIEST = """
    SELECT device_name, sum(dur_ns) AS ns FROM device_work
    WHERE start_ns < $until AND start_ns + coalesce(dur_ns, 0) > $since
    GROUP BY device_name ORDER BY ns DESC, device_name LIMIT 1
"""
_GROUPS = f"""
    SELECT grouped, any_value(kind) AS kind, bool_or(communicates) AS communicates, any_value(name) AS name,
           any_value(op_name) AS op, count(*) AS calls, sum(dur_ns) AS ns
    FROM ({_WORK}) WHERE device_name = $device GROUP BY grouped
    ORDER BY ns DESC, kind, name NULLS FIRST, op NULLS FIRST
"""
_COMPUTING = f"""
    SELECT start_ns, dur_ns, number
    FROM ({_WORK}) JOIN {HASHES_NUMBERED} USING (grouped) WHERE device_name = $device
    ORDER BY start_ns, dur_ns DESC, number
"""
_EXPOSED = f"""
    SELECT start_ns, dur_ns, coalesce(number, $rest) AS label
    FROM ({_WORK}) LEFT JOIN {HASHES_NUMBERED} USING (grouped) WHERE device_name = $device AND dur_ns > 0
    ORDER BY start_ns
"""
_PARTS = {"memcpy": "copies", "memset": "fills"}
_MOST_LABELS = 64
"""As many as a sweep can tell apart: all compute is one, and what is left over is one."""


@analysis(
    reads={
        **OWN_READS,
        "device_work": (*WORK_READS["device_work"], "device_name", "start_ns", "dur_ns"),
        "ops": (*WORK_READS["ops"], *OWN_READS["ops"]),
        "steps": ("start_ns", "end_ns", *OWN_READS["steps"]),
    }
)
def step_costs(trace: Trace) -> Table[StepCost]:
    """Divides all steps exactly: by kernel, copy and collective, and by what the device waited for.

    It looks at the device with the most work. Of what runs at once, a copy counts only while no kernel
    computes, and a collective while nothing else runs; kernels that compute at once share the time. So the
    rows sum to the steps to the nanosecond, and two traces can be compared row by row. Without device work
    the steps are divided among operators, data, collectives and the rest.
    """
    windows = step_windows(trace)
    whole = sum(windows.ends) - sum(windows.starts)
    device = _busiest(trace, windows)
    if device is None:
        found = list(_of_host(trace))
    else:
        found = [*_of_work(trace, windows, device), *_of_waiting(trace, device)]
    rows = [
        StepCost(trace.rank, device, *one, share=one[-1] / whole if whole else None)
        for one in sorted(found, key=lambda one: (-one[-1], *map(str, one)))
    ]
    nothing = () if rows else ("The profile holds no events with a time.",)
    return Table.of(StepCost, rows, (*nothing, *windows.notes))


Cost = tuple[str, str, str | None, str | None, int, int]
"""Part, kind, name, operator, calls and time."""


def _busiest(trace: Trace, windows: Windows) -> str | None:
    if not windows.starts:
        return None
    found = trace.rows(_BUSIEST, **_between(windows))
    return found[0]["device_name"] if found else None


def _between(windows: Windows) -> dict[str, int]:
    return {"since": windows.starts[0], "until": max(windows.ends)}


def _of_work(trace: Trace, windows: Windows, device: str) -> Iterator[Cost]:
    """What ran on the device: first come kernels that compute, then copies, fills and collectives."""
    groups = trace.rows(_GROUPS, device=device, **_between(windows))
    computing = [one for one in groups if one["kind"] == "kernel" and not one["communicates"]]
    others = [one for one in groups if one["kind"] != "kernel" or one["communicates"]]
    shared = _shared(trace, windows, device, computing)
    for group, time, calls in zip(computing, *shared, strict=True):
        if calls:
            yield "kernels", family_of(group["name"], group["op"]), group["name"], group["op"], calls, time
    order = ("memcpy", "memset", "kernel")
    others.sort(key=lambda one: order.index(one["kind"]))
    kept, rest = others[: _MOST_LABELS - 2], others[_MOST_LABELS - 2 :]
    times = _exposed(trace, windows, device, computing, kept)
    for group, time in zip(kept, times, strict=False):
        part = _PARTS.get(group["kind"], "collectives")
        yield (
            part,
            "communication" if part == "collectives" else "copy",
            group["name"],
            group["op"],
            group["calls"],
            time,
        )
    if rest:
        calls = sum(one["calls"] for one in rest)
        yield "collectives", "communication", "other copies and collectives", None, calls, times[len(kept)]


def _shared(
    trace: Trace, windows: Windows, device: str, groups: list[dict[str, Any]]
) -> tuple[list[int], list[int]]:
    """For each group of kernels that compute its time, those that run at once sharing it, and its runs."""
    sweep = _native.ExclusiveSweep(windows.starts, windows.ends, len(groups))
    params: dict[str, Any] = {
        "groups": [one["grouped"] for one in groups],
        "numbers": list(range(len(groups))),
    }
    for batch in trace.batches(_COMPUTING, device=device, **params, **_between(windows)):
        sweep.push(*(view(batch[column]) for column in ("start_ns", "dur_ns", "number")))
    sweep.finish()
    return sweep.exclusive_ns, sweep.calls


def _exposed(
    trace: Trace,
    windows: Windows,
    device: str,
    computing: list[dict[str, Any]],
    others: list[dict[str, Any]],
) -> list[int]:
    """For each other group the time in which nothing before it ran; then that of all the rest together."""
    numbers = {one["grouped"]: 0 for one in computing}
    numbers |= {one["grouped"]: number for number, one in enumerate(others, 1)}
    rows = [
        {"start_ns": start, "end_ns": end} for start, end in zip(windows.starts, windows.ends, strict=True)
    ]
    by_window = claimed(
        trace,
        _EXPOSED,
        rows,
        len(others) + 2,
        device=device,
        groups=list(numbers),
        numbers=list(numbers.values()),
        rest=len(others) + 1,
    )
    return [sum(column) for column in list(zip(*by_window, strict=True))[1:]]


_PARTS_OF_SIDES: dict[str, str] = {Side.HOST: "host", Side.LAUNCH: "launches", Side.DEVICE: "device"}


def _of_waiting(trace: Trace, device: str) -> Iterator[Cost]:
    for gap in idle_gaps(trace):
        if gap.device == device:
            yield _waited_for(gap), gap.spent_in, gap.drained_by, None, gap.gaps, gap.idle_ns


def _waited_for(gap: IdleGap) -> str:
    """Who is to blame: data and peers first, then a call that drained the queue, then the host itself."""
    if gap.spent_in == SpentIn.DATALOADER:
        return "data"
    if gap.spent_in == SpentIn.HOST_COMMUNICATION:
        return "collectives"
    if gap.drained_by or gap.spent_in == SpentIn.SYNCHRONISING_CALL:
        return "syncs"
    return _PARTS_OF_SIDES.get(gap.side, "unknown")


def _of_host(trace: Trace) -> Iterator[Cost]:
    """Without a device: the parts of the steps, and among them operators one by one."""
    rows: list[Step] = list(steps(trace, by="any"))
    parts = {"communication": "collectives", "dataloader": "data", "runtime": "calls", "other": "other"}
    for part, name in parts.items():
        time = sum(getattr(row, f"{part}_ns") for row in rows)
        if time:
            yield name, name, None, None, len(rows), time
    whole = sum(row.cpu_ns for row in rows)
    own = [one for one in own_times(trace) if one.op is not None] if whole else []
    ran = sum(one.own_ns for one in own)
    left = whole
    for one in own:
        # Operators of several threads at once share the time of the step.
        cost = one.own_ns if ran == whole else one.own_ns * whole // max(1, ran)
        left -= cost
        if cost:
            yield "operators", SpentIn.HOST_OP.value, one.op, one.op, one.calls, cost
    if left:
        yield "operators", SpentIn.HOST_OP.value, None, None, 0, left
