"""Why devices were idle: every gap divided among what the host, the launch or the device did in it."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal

from stepscope import _native
from stepscope.analyses._windows import launching_threads, windows_of_steps
from stepscope.records import dataclass
from stepscope.schema import STANDS_STILL_NS
from stepscope.simulation.device_calls import WAITING_CALLS, WAITING_READS, call_names
from stepscope.store.call_tree import handing_threads
from stepscope.store.columns import arrays, view
from stepscope.store.host_time import ALLOCATION, WAIT, HostKind, host_time
from stepscope.store.trace import Reads, Trace

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "CAUSES",
    "IDLE_READS",
    "Division",
    "GapPart",
    "Idle",
    "Side",
    "SpentIn",
    "Window",
    "idle_time",
    "side_of",
]

Window = Literal["steps", "span"]


class Side(StrEnum):
    """What an idle device waited for."""

    HOST = "host"
    LAUNCH = "launch"
    DEVICE = "device"
    UNKNOWN = "unknown"


class SpentIn(StrEnum):
    """What the time of a gap can have gone to: what the host did comes first, in the order of its kinds."""

    DATALOADER = HostKind.DATALOADER.value
    SYNCHRONISING_CALL = HostKind.SYNCHRONISING_CALL.value
    ALLOCATION_CALL = HostKind.ALLOCATION_CALL.value
    RUNTIME_CALL = HostKind.RUNTIME_CALL.value
    HOST_OP = HostKind.OP.value
    HOST_COMMUNICATION = HostKind.COMMUNICATION.value
    PYTHON = HostKind.PYTHON.value
    NOTHING_RECORDED = "nothing recorded"
    LAUNCH_LATENCY = "launch latency"
    OTHER_STREAM = "waited for another stream"
    COLLECTIVE = "waited for a collective"
    WAITED_ON_DEVICE = "waited on the device"
    DEVICE_SCHEDULING = "device scheduling"
    GRAPH_LATENCY = "graph latency"
    LAUNCH_NOT_RECORDED = "launch not recorded"
    NO_WORK_FOLLOWED = "no work followed"
    UNRECORDED_WORK = "unrecorded work"


CAUSES = tuple(SpentIn)
"""The same by number, for sweeps and SQL."""
_LATENCY = CAUSES.index(SpentIn.LAUNCH_LATENCY)
_STREAM, _COLLECTIVE, _DEVICE, _SCHEDULING, _GRAPH, _UNLINKED, _LAST, _UNRECORDED = range(
    _LATENCY + 1, len(CAUSES)
)
_SCHEDULING_NS = 3000

IDLE_READS: Reads = {
    "steps": ("step", "source", "start_ns", "end_ns", "host_end_ns", "thread"),
    "gaps": (
        "device_name",
        "start_ns",
        "dur_ns",
        "before",
        "after",
        "launch",
        "thread",
        "launch_delay_ns",
    ),
    "launches": WAITING_READS["launches"],
    "device_work": (*WAITING_READS["device_work"], "event", "device_name", "stream", "communicates"),
}
"""What `idle_time` reads."""


def side_of(cause: int) -> Side:
    """Who was waited for, given a place in `CAUSES`."""
    if cause < _LATENCY:
        return Side.HOST
    if cause == _LATENCY:
        return Side.LAUNCH
    return Side.UNKNOWN if cause in (_UNLINKED, _LAST, _UNRECORDED) else Side.DEVICE


@dataclass(frozen=True, slots=True)
class GapPart:
    """What the gaps of one device lost to one cause after one kind of blocking call."""

    device: str
    cause: int
    drained_by: str | None
    gaps: int
    idle_ns: int
    longest_ns: int
    after: int | None
    """Event of the work that ended the gap with the longest such part."""
    drained: int | None
    """Event of the blocking call that this gap followed."""


@dataclass(frozen=True, slots=True)
class Idle:
    """The idle time of all devices in a window."""

    parts: list[GapPart]
    starved: pa.Table
    """Per blocking call and device: event, device, gaps, starved_ns."""
    longest: pa.Table
    """The longest gaps: device, after, start_ns, idle_ns, cause (of most of it), drained (blocking call)."""
    gaps: int
    waits: pa.Table
    """The blocking calls: event, name, thread, start_ns, dur_ns, op."""


def idle_time(trace: Trace, window: Window, longest: int = 0) -> Idle:
    """Divides every gap of every device inside the steps, or from first to last work; kept with the trace."""
    asked = ("idle_time", window, longest)
    found: Idle = trace.once(asked, lambda: Division(trace, window, longest).divide())
    return found


# ---------------------------------------------------------------- gaps

# Of each device: from when to when it worked, and the first thing it did.
_SPANS = """
    WITH timed AS (
        SELECT device_name, start_ns, start_ns + coalesce(dur_ns, 0) AS end_ns, event, launch
        FROM device_work WHERE start_ns IS NOT NULL),
    spans AS (
        SELECT device_name, min(start_ns) AS low, max(end_ns) AS high,
               arg_min(event, (start_ns, event)) AS first
        FROM timed GROUP BY device_name)
    SELECT s.*, l.thread, l.start_ns AS launch_start_ns,
           l.start_ns + coalesce(l.dur_ns, 0) AS launch_end_ns,
           (SELECT arg_max_null(CASE WHEN host_end_ns = end_ns THEN thread END, end_ns)
            FROM steps) AS ended_by
    FROM spans s JOIN device_work w ON w.event = s.first LEFT JOIN launches l ON l.event = w.launch
    ORDER BY s.device_name
"""
# How long work stood still is looked up only for gaps that are long enough: most launches take microseconds.
_LATE_GAP = "g.device_name, g.start_ns, g.dur_ns, g.launch_delay_ns, g.thread, g.after"
_STOOD = f"g.launch_delay_ns > 0 AND g.dur_ns - g.launch_delay_ns > {STANDS_STILL_NS}"
_LATE = f"""
    SELECT {_LATE_GAP}, 0::BIGINT AS held_ns FROM gaps g WHERE g.launch_delay_ns > 0 AND NOT ({_STOOD})
    UNION ALL
    SELECT {_LATE_GAP}, g.start_ns + g.dur_ns - l.start_ns - coalesce(l.dur_ns, 0) AS held_ns
    FROM gaps g JOIN launches l ON l.event = g.launch WHERE {_STOOD}
"""
# Where the call that launches was open still, the launch was on its way; otherwise the work had to wait. Only
# where the launch does not decide it is the work itself looked at: that is expensive.
_MADE_BEFORE = f"""
    WITH linked AS (
        SELECT g.device_name, g.start_ns, g.dur_ns, g.before, g.after, g.launch,
               CASE WHEN l.start_ns IS NULL THEN {_UNLINKED}
                    WHEN l.work_events > 1 THEN NULL
                    WHEN l.start_ns + coalesce(l.dur_ns, 0) > g.start_ns THEN {_LATENCY}
                    WHEN g.dur_ns < {_SCHEDULING_NS} THEN {_SCHEDULING} END AS cause,
               l.start_ns + coalesce(l.dur_ns, 0) AS returned_ns
        FROM gaps g LEFT JOIN launches l ON l.event = g.launch WHERE g.launch_delay_ns = 0),
    open AS (SELECT * FROM linked WHERE cause IS NULL),
    around AS (
        SELECT w.event, w.launch, w.communicates, w.stream FROM device_work w
        SEMI JOIN (SELECT before AS event FROM open UNION ALL SELECT after FROM open) o ON o.event = w.event)
    SELECT device_name, start_ns, dur_ns, after, cause::BIGINT AS cause FROM linked WHERE cause IS NOT NULL
    UNION ALL
    SELECT g.device_name, g.start_ns, g.dur_ns, g.after,
           (CASE WHEN b.launch = g.launch THEN {_GRAPH}
                 WHEN g.returned_ns > g.start_ns THEN {_LATENCY}
                 WHEN g.dur_ns < {_SCHEDULING_NS} THEN {_SCHEDULING}
                 WHEN b.communicates OR a.communicates THEN {_COLLECTIVE}
                 WHEN $alone AND g.dur_ns > {STANDS_STILL_NS} THEN {_UNRECORDED}
                 WHEN b.stream IS DISTINCT FROM a.stream THEN {_STREAM}
                 ELSE {_DEVICE} END)::BIGINT
    FROM open g JOIN around b ON b.event = g.before JOIN around a ON a.event = g.after
"""
_ALLOCATIONS = """
    SELECT thread, start_ns, dur_ns FROM launches WHERE list_contains($allocating, name) AND dur_ns > 0
"""


class Division:
    """One pass over the gaps of a trace; a batch of them and the sums are held."""

    def __init__(self, trace: Trace, window: Window, longest: int) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        self._trace, self._window, self._wanted = trace, window, longest
        self._spans = trace.rows(_SPANS)
        self._devices = pa.array([span["device_name"] for span in self._spans], pa.string())
        self._windows = self._steps() if window == "steps" else self._span()
        self._names = call_names(trace)
        waiting = self._names.waiting + self._names.freeing
        self._waits = trace.arrow(WAITING_CALLS, waiting=waiting).combine_chunks()
        self._wait_names = pa.array(sorted(set(self._waits["name"].to_pylist())), pa.string())
        # For each blocking call the number of its name, from 1.
        named = pc.index_in(self._waits["name"], self._wait_names).cast(pa.int64())
        self._call_numbers = pc.add(named, 1)
        self._host = self._host_time()
        self._tally = _native.Tally(len(self._devices) * len(CAUSES) * (len(self._wait_names) + 1))
        self._starved: list[pa.Table] = []
        self._longest: list[pa.Table] = []
        self._gaps = 0

    def divide(self) -> Idle:
        """Divides all gaps, and the time in the window before the first work and after the last."""
        heads, ends, tails = self._edges()
        self._divide_late(heads, drained=False)
        self._divide_late(ends)
        for batch in self._trace.batches(_LATE):
            self._divide_late(batch)
        self._divide_other(tails)
        for batch in self._trace.batches(_MADE_BEFORE, alone=len(self._devices) == 1):
            self._divide_other(batch)
        return Idle(
            list(self._parts()), self._all_starved(), self._most(self._longest), self._gaps, self._waits
        )

    # ------------------------------------------------ what is needed

    def _steps(self) -> tuple[list[int], list[int]]:
        rows = windows_of_steps(self._trace)
        return [row["start_ns"] for row in rows], [row["end_ns"] for row in rows]

    def _span(self) -> tuple[list[int], list[int]]:
        """Gaps lie inside the span of their device: one window is as good as one for each."""
        ends = [span["high"] for span in self._spans]
        return [min(span["low"] for span in self._spans)] if ends else [], [max(ends)] if ends else []

    def _host_time(self) -> _native.HostTime:
        import pyarrow as pa
        import pyarrow.compute as pc

        self._threads = launching_threads(self._trace)
        host = host_time(self._trace, self._threads, handing_threads(self._trace), self._windows)
        frees = pc.is_in(self._waits["name"], pa.array(self._names.freeing, pa.string()))
        allocations = self._trace.arrow(_ALLOCATIONS, allocating=self._names.allocating).combine_chunks()
        for calls, kind in ((self._waits.filter(pc.invert(frees)), WAIT), (allocations, ALLOCATION)):
            thread, start, dur = _views(calls, "thread", "start_ns", "dur_ns")
            host.add(thread, start, dur, _repeated(kind, calls.num_rows))
        host.add_waits(*_views(self._waits, "thread", "start_ns", "dur_ns", "event"))
        host.build()
        return host

    def _edges(self) -> tuple[pa.Table, pa.Table, pa.Table]:
        """Time in the windows before a device's first work and after its last, as late gaps, and the rest.

        After the last work of a device the step goes on until its thread ends it: that is the host's time.
        """
        import pyarrow as pa

        starts, ends = self._windows
        heads, lasts, tails = [], [], []
        for span in self._spans if starts and self._window == "steps" else []:
            device = {"device_name": span["device_name"]}
            idle = span["low"] - starts[0]
            if idle > 0 and span["launch_start_ns"] is not None:
                late = min(max(span["launch_start_ns"] - starts[0], 0), idle)
                edge = {
                    "start_ns": starts[0],
                    "dur_ns": idle,
                    "launch_delay_ns": late,
                    "thread": span["thread"],
                    "held_ns": min(idle, span["low"] - span["launch_end_ns"]),
                }
                heads.append(device | edge | {"after": span["first"]})
            elif idle > 0:
                edge = {"start_ns": starts[0], "dur_ns": idle, "after": span["first"], "cause": _UNLINKED}
                tails.append(device | edge)
            left = ends[-1] - span["high"]
            edge = {"start_ns": span["high"], "dur_ns": left, "after": None}
            if left > 0 and span["ended_by"] in self._threads:
                late = {"launch_delay_ns": left, "thread": span["ended_by"], "held_ns": 0}
                lasts.append(device | edge | late)
            elif left > 0:
                tails.append(device | edge | {"cause": _LAST})
        numbers = [(name, pa.int64()) for name in ("start_ns", "dur_ns")]
        late = [(name, pa.int64()) for name in ("launch_delay_ns", "thread", "held_ns", "after")]
        columns = [("device_name", pa.string()), *numbers]
        return (
            pa.Table.from_pylist(heads, pa.schema([*columns, *late])),
            pa.Table.from_pylist(lasts, pa.schema([*columns, *late])),
            pa.Table.from_pylist(tails, pa.schema([*columns, ("after", pa.int64()), ("cause", pa.int64())])),
        )

    # ------------------------------------------------ dividing

    def _divide_late(self, batch: Any, *, drained: bool = True) -> None:
        """The launch came late: until it began the time is what its thread did, from then on latency.

        Work that still stood in the queue long after waited for something that was not recorded.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        thread, start, dur, late = _views(batch, "thread", "start_ns", "dur_ns", "launch_delay_ns")
        (idle,) = arrays([self._host.inside(start, dur)])
        spent = arrays(self._host.charged(thread, start, late))
        latency = idle
        for column in spent:
            latency = pc.subtract(latency, column)
        held = self._held(batch, latency)
        call = pa.nulls(batch.num_rows, pa.int64())
        if drained:
            (call,) = arrays([self._host.waits_at(thread, start)])
        parts = dict(enumerate([*spent, pc.subtract(latency, held)])) | {_UNRECORDED: held}
        self._count(batch, idle, parts, call)
        idle = pc.subtract(idle, held)
        columns = {"event": call, "device": batch["device_name"], "starved_ns": idle}
        starved = pa.table(columns).filter(pc.and_(pc.is_valid(call), pc.greater(idle, 0)))
        if starved.num_rows:
            self._starved.append(starved)

    def _held(self, batch: Any, latency: pa.Array) -> pa.Array:
        """For how long of its latency launched work stood still in each gap."""
        import pyarrow.compute as pc

        held = pc.if_else(pc.greater(batch["held_ns"], STANDS_STILL_NS), batch["held_ns"], 0)
        since = pc.subtract(pc.add(batch["start_ns"], batch["dur_ns"]), held)
        (inside,) = arrays([self._host.inside(view(since), view(held))])
        return pc.min_element_wise(inside, latency)

    def _divide_other(self, batch: Any) -> None:
        """The whole gap has one cause."""
        import pyarrow as pa
        import pyarrow.compute as pc

        (idle,) = arrays([self._host.inside(*_views(batch, "start_ns", "dur_ns"))])
        causes = batch["cause"]
        parts = {
            cause: pc.if_else(pc.equal(causes, cause), idle, 0) for cause in pc.unique(causes).to_pylist()
        }
        self._count(batch, idle, parts, pa.nulls(batch.num_rows, pa.int64()))

    def _count(self, batch: Any, idle: pa.Array, parts: dict[int, pa.Array], drained: pa.Array) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        self._gaps += pc.sum(pc.greater(idle, 0)).as_py() or 0
        device = pc.index_in(batch["device_name"], self._devices).cast(pa.int64())
        call = pc.fill_null(pc.take(self._call_numbers, pc.index_in(drained, self._waits["event"])), 0)
        width = len(self._wait_names) + 1
        items = view(pc.fill_null(batch["after"], _NO_EVENT))
        (since,) = _views(batch, "start_ns")
        first = pc.add(pc.multiply(device, len(CAUSES) * width), call)
        for cause, amount in parts.items():
            group = pc.add(first, cause * width)
            self._tally.add(view(group), view(amount), since, items, view(drained))
        if self._wanted:
            self._keep_longest(batch, idle, parts, drained)

    def _keep_longest(
        self, batch: Any, idle: pa.Array, parts: dict[int, pa.Array], drained: pa.Array
    ) -> None:
        """The longest gaps so far, each with what took most of it."""
        import pyarrow as pa
        import pyarrow.compute as pc

        most = pc.max_element_wise(*parts.values()) if parts else idle
        cause = pa.nulls(batch.num_rows, pa.int64())
        for number, amount in parts.items():
            cause = pc.coalesce(
                cause, pc.if_else(pc.equal(amount, most), number, pa.scalar(None, pa.int64()))
            )
        columns = {"device": batch["device_name"], "after": batch["after"], "start_ns": batch["start_ns"]}
        found = pa.table(columns | {"idle_ns": idle, "cause": cause, "drained": drained})
        self._longest = [self._most([*self._longest, found.filter(pc.greater(idle, 0))])]

    # ------------------------------------------------ what was found

    def _most(self, tables: list[pa.Table]) -> pa.Table:
        import pyarrow as pa
        import pyarrow.compute as pc

        if not tables:
            return pa.table({})
        whole = pa.concat_tables(tables)
        order = [("idle_ns", "descending"), ("start_ns", "ascending"), ("device", "ascending")]
        return whole.take(pc.sort_indices(whole, sort_keys=order)[: self._wanted])

    def _parts(self) -> Iterator[GapPart]:
        width = len(self._wait_names) + 1
        found = self._tally
        columns = found.count, found.sum, found.largest, found.item, found.other
        for number, (gaps, idle, longest, item, drained) in enumerate(zip(*columns, strict=True)):
            if not gaps:
                continue
            rest, call = divmod(number, width)
            device, cause = divmod(rest, len(CAUSES))
            yield GapPart(
                device=self._devices[device].as_py(),
                cause=cause,
                drained_by=self._wait_names[call - 1].as_py() if call else None,
                gaps=gaps,
                idle_ns=idle,
                longest_ns=longest,
                after=None if item == _NO_EVENT else item,
                drained=None if drained == _native.NULL else drained,
            )

    def _all_starved(self) -> pa.Table:
        import pyarrow as pa

        empty = pa.table({"event": pa.array([], pa.int64()), "device": pa.array([], pa.string())})
        empty = empty.append_column("starved_ns", pa.array([], pa.int64()))
        whole = pa.concat_tables([empty, *self._starved])
        summed = whole.group_by(["event", "device"]).aggregate(
            [("starved_ns", "sum"), ("starved_ns", "count")]
        )
        return summed.rename_columns({"starved_ns_sum": "starved_ns", "starved_ns_count": "gaps"})


_NO_EVENT = -1


def _views(rows: Any, *names: str) -> list[memoryview]:
    return [view(rows[name]) for name in names]


def _repeated(value: int, rows: int) -> memoryview:
    import pyarrow as pa

    return view(pa.repeat(pa.scalar(value, pa.int64()), rows))
