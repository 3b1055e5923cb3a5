"""A slow, plain reading of the definitions, to check the product against.

It shares no code with stepscope. Input: the parsed JSON of one profile; output: the six tables with the
required columns, the op tree and the host tree, and the links of device work to its launch and of the launch
to its op. Numbers must have been parsed with `parse_float=Decimal`, as `read` does, for doubles lose
nanoseconds.
"""

from __future__ import annotations

import gzip
import heapq
import json
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from decimal import ROUND_HALF_EVEN, Decimal
from pathlib import Path
from typing import Any

from tests.spans import Cover, Span, both, minus, size, union

Row = dict[str, Any]
Thread = tuple[Any, Any]

KERNEL = {"kernel", "Kernel", "mtia_ccp_events"}
MEMCPY = {"gpu_memcpy", "Memcpy"}
MEMSET = {"gpu_memset", "Memset"}
WORK = KERNEL | MEMCPY | MEMSET
RUNTIME = {"cuda_runtime", "cuda_driver", "mtia_runtime", "xpu_runtime", "privateuse1_runtime", "Runtime"}
OP = {"cpu_op", "Operator"}
# Not host events: device work, and ranges on the device that are no work.
NOT_HOST = WORK | {"gpu_user_annotation", "cuda_sync", "cuda_event"}

COMMUNICATION = re.compile(
    r"nccl|rccl|oneccl|nvshmem|deep[-_ ]?ep|cross[-_ ]?device[-_ ]?reduce|multimem"
    r"|all[-_ ]?reduce|all[-_ ]?gather|reduce[-_ ]?scatter|all[-_ ]?(to|2)[-_ ]?all",
    re.IGNORECASE,
)
MARK = re.compile(r"ProfilerStep#(\d+)")
HOST_COMMUNICATION = ("gloo:", "mpi:", "ucc:")
DATALOADER = ("enumerate(DataLoader)#", "enumerate(DataPipe)#")


@dataclass(eq=False)
class Event:
    """One event of the file, its times in ns, and where the oracle found it to stand."""

    index: int
    category: str | None
    phase: str | None
    name: str
    thread: Thread
    start: int
    dur: int
    args: dict[str, Any]
    # host tree and op tree: parent event, depth, self time; the op tree is filled for ops only
    host_parent: Event | None = None
    host_depth: int = 0
    host_self: int = 0
    op_parent: Event | None = None
    op_depth: int = 0
    op_self: int = 0
    op_self_no_runtime: int = 0
    # device work: its launch; a launch: the ops open at its start, outermost first
    launch: Event | None = None
    open_ops: list[Event] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.start + self.dur

    @property
    def span(self) -> Span:
        return self.start, self.end

    @property
    def order(self) -> tuple[int, int, int]:
        """Outer before inner: earlier start, then longer, then earlier in the file."""
        return self.start, -self.dur, self.index


# ---------------------------------------------------------------- reading


def read(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Metadata and events of a profile, plain or gzip, every decimal kept as it was written."""
    raw = path.read_bytes()
    if raw[:2] == b"\x1f\x8b":
        raw = gzip.decompress(raw)
    return parse(raw.decode("utf-8", "replace"))


def parse(text: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Metadata and events of the text of a profile."""
    root = json.loads(text, parse_float=Decimal, strict=False)
    if isinstance(root, list):
        return {}, root
    events = root.pop("traceEvents", [])
    return root, events


def nanoseconds(value: Any) -> int:
    """Microseconds as written, in ns, rounded half to even; 0 where there is no number."""
    if value is None or value == "":
        return 0
    number = Decimal(str(value))
    return int((number * 1000).to_integral_value(ROUND_HALF_EVEN)) if number.is_finite() else 0


def integer(value: Any) -> int | None:
    """An id that may be written as a number or as a string."""
    try:
        return int(Decimal(str(value)))
    except (ArithmeticError, ValueError):
        return None


def events_of(metadata: dict[str, Any], raw_events: Iterable[dict[str, Any]]) -> list[Event]:
    """The events with times in ns; negative durations are 0."""
    base = integer(metadata.get("baseTimeNanoseconds")) or 0
    return [
        Event(
            index=index,
            category=raw.get("cat"),
            phase=raw.get("ph"),
            name=str(raw.get("name", "")),
            thread=(raw.get("pid"), raw.get("tid")),
            start=base + nanoseconds(raw.get("ts")),
            dur=max(0, nanoseconds(raw.get("dur"))),
            args=raw.get("args") or {},
        )
        for index, raw in enumerate(raw_events)
    ]


# ---------------------------------------------------------------- nesting


def by_thread(events: Iterable[Event]) -> dict[Thread, list[Event]]:
    threads: dict[Thread, list[Event]] = defaultdict(list)
    for event in events:
        threads[event.thread].append(event)
    return threads


def parents(events: list[Event]) -> list[tuple[Event, Event | None, int]]:
    """Each event of a thread with the innermost event open at its start, and how many are open then."""
    found = []
    opened: list[tuple[tuple[int, int, int], Event]] = []
    for event in sorted(events, key=lambda e: e.order):
        opened = [entry for entry in opened if entry[1].end > event.start]
        found.append((event, max(opened, key=lambda entry: entry[0])[1] if opened else None, len(opened)))
        opened.append((event.order, event))
    return found


def innermost_spans(events: list[Event]) -> Iterator[tuple[Event, int, int]]:
    """The pieces of time of one thread, each with the open event that started last."""
    opened: list[tuple[tuple[int, int, int], Event]] = []
    ordered = sorted(events, key=lambda e: e.order)
    now = ordered[0].start if ordered else 0
    last = max((event.end for event in ordered), default=0)
    for number, event in enumerate(ordered):
        heapq.heappush(opened, ((-event.order[0], -event.order[1], -event.order[2]), event))
        until = ordered[number + 1].start if number + 1 < len(ordered) else last
        now = event.start
        while opened and now < until:
            owner = opened[0][1]
            if owner.end <= now:
                heapq.heappop(opened)
                continue
            stop = min(owner.end, until)
            yield owner, now, stop
            now = stop


def nest(events: list[Event]) -> None:
    """Fill in the host tree and the op tree."""
    host = by_thread(e for e in events if is_host(e))
    for in_thread in host.values():
        for event, parent, depth in parents(in_thread):
            event.host_parent, event.host_depth = parent, depth
        for owner, start, stop in innermost_spans(in_thread):
            owner.host_self += stop - start
        ops = [e for e in in_thread if e.category in OP]
        calls = Cover(union(e.span for e in in_thread if e.category in RUNTIME))
        for event, parent, depth in parents(ops):
            event.op_parent, event.op_depth = parent, depth
        for owner, start, stop in innermost_spans(ops):
            owner.op_self += stop - start
            owner.op_self_no_runtime += stop - start - calls.within(start, stop)


def is_host(event: Event) -> bool:
    return event.phase == "X" and event.category not in NOT_HOST


# ---------------------------------------------------------------- links


def link(events: list[Event]) -> None:
    """Give device work its launch, and every launch the ops open at its start."""
    calls: dict[int, list[Event]] = defaultdict(list)
    for event in events:
        correlation = integer(event.args.get("correlation"))
        if event.phase == "X" and event.category in RUNTIME and correlation is not None:
            calls[correlation].append(event)
    launches = {}
    for work in works_of(events):
        correlation = integer(work.args.get("correlation"))
        candidates = calls.get(correlation, []) if correlation is not None else []
        if len(candidates) > 1:
            candidates = [call for call in candidates if call.start <= work.start]
        if candidates:
            work.launch = max(candidates, key=lambda call: (call.start, call.index))
            launches[work.launch.index] = work.launch
    ops = by_thread(e for e in events if e.phase == "X" and e.category in OP)
    for thread, in_thread in by_thread(launches.values()).items():
        find_open_ops(in_thread, ops.get(thread, []))


def find_open_ops(launches: list[Event], ops: list[Event]) -> None:
    waiting = sorted(ops, key=lambda e: e.order)
    at = 0
    opened: list[Event] = []
    for launch in sorted(launches, key=lambda e: e.start):
        while at < len(waiting) and waiting[at].start <= launch.start:
            opened.append(waiting[at])
            at += 1
        opened = [op for op in opened if op.end > launch.start]
        launch.open_ops = sorted(opened, key=lambda e: e.order)


def works_of(events: Iterable[Event]) -> list[Event]:
    return [e for e in events if e.phase == "X" and e.category in WORK]


def device_of(work: Event) -> str:
    """The device argument; a peer-to-peer copy has none, and its process id is the device then."""
    device = work.args.get("device")
    return str(work.thread[0] if device is None else device)


def is_communication(work: Event) -> bool:
    return work.category in KERNEL and bool(COMMUNICATION.search(work.name))


# ---------------------------------------------------------------- the oracle


class Oracle:
    """Every table of one profile, each computed when asked for."""

    def __init__(self, metadata: dict[str, Any], raw_events: Iterable[dict[str, Any]]) -> None:
        self.metadata = metadata
        self.events = events_of(metadata, raw_events)
        self.work = works_of(self.events)
        nest(self.events)
        link(self.events)
        self.windows = self._step_windows()

    @classmethod
    def of(cls, path: Path) -> Oracle:
        return cls(*read(path))

    def tables(self) -> dict[str, Any]:
        """All tables, in the form of the expected files."""
        return {
            "categories": self.categories(),
            "kernels": self.kernels(),
            "runtime_calls": self.runtime_calls(),
            "ops": self.ops(),
            "steps": self.steps(),
            "devices": self.devices(),
            "device_ns_outside_any_op": self.device_ns_outside_any_op(),
        }

    # ------------------------------------------------ tables over events

    def categories(self) -> list[Row]:
        groups: dict[tuple[str | None, str | None], list[Event]] = defaultdict(list)
        for event in self.events:
            groups[event.category, event.phase].append(event)
        return [
            {
                "category": category,
                "phase": phase,
                "events": len(group),
                "total_ns": sum(e.dur for e in group) if phase == "X" else None,
            }
            for (category, phase), group in groups.items()
        ]

    def kernels(self) -> list[Row]:
        groups: dict[str, list[int]] = defaultdict(list)
        for work in self.work:
            if work.category in KERNEL:
                groups[work.name].append(work.dur)
        whole = sum(sum(durations) for durations in groups.values())
        return [
            {
                "name": name,
                "calls": len(durations),
                "total_ns": sum(durations),
                "mean_ns": sum(durations) / len(durations),
                "min_ns": min(durations),
                "max_ns": max(durations),
                "share": sum(durations) / whole if whole else None,
            }
            for name, durations in groups.items()
        ]

    def runtime_calls(self) -> list[Row]:
        groups: dict[str, list[int]] = defaultdict(list)
        for event in self.events:
            if event.phase == "X" and event.category in RUNTIME:
                groups[event.name].append(event.dur)
        return [{"name": name, "calls": len(group), "total_ns": sum(group)} for name, group in groups.items()]

    def ops(self) -> list[Row]:
        groups: dict[str, list[Event]] = defaultdict(list)
        for event in self.events:
            if event.phase == "X" and event.category in OP:
                groups[event.name].append(event)
        device_self: dict[str, int] = defaultdict(int)
        device_total: dict[str, int] = defaultdict(int)
        for work in self.work:
            if work.launch and work.launch.open_ops:
                device_self[work.launch.open_ops[-1].name] += work.dur
                for name in {op.name for op in work.launch.open_ops}:
                    device_total[name] += work.dur
        return [
            {
                "name": name,
                "calls": len(group),
                "host_total_ns": sum(size(union(e.span for e in one)) for one in by_thread(group).values()),
                "host_self_ns": sum(e.op_self for e in group),
                "host_self_no_runtime_ns": sum(e.op_self_no_runtime for e in group),
                "device_self_ns": device_self[name],
                "device_total_ns": device_total[name],
            }
            for name, group in groups.items()
        ]

    def device_ns_outside_any_op(self) -> int:
        """Work that is linked to a launch which was made outside any op."""
        return sum(work.dur for work in self.work if work.launch and not work.launch.open_ops)

    # ------------------------------------------------ steps

    def _marks(self) -> list[Event]:
        marks = [e for e in self.events if is_host(e) and MARK.fullmatch(e.name)]
        return sorted(marks, key=lambda e: e.order)

    def _step_windows(self) -> list[tuple[Event, int, int]]:
        linked = [work for work in self.work if work.launch]
        first_linked = min((work.start for work in linked), default=None)
        windows: list[tuple[Event, int, int]] = []
        for mark in self._marks():
            before = [work.end for work in linked if work.launch and work.launch.start < mark.start]
            if not windows and first_linked is not None:
                before += [w.end for w in self.work if not w.launch and w.start < first_linked]
            start = max([mark.start, *before, *([windows[-1][2]] if windows else [])])
            inside = [w.end for w in linked if w.launch and mark.start <= w.launch.start < mark.end]
            windows.append((mark, start, max([start, mark.end, *inside])))
        return windows

    def steps(self) -> list[Row]:
        layers = self._step_layers() if self.windows else []
        rows = []
        for mark, start, end in self.windows:
            match = MARK.fullmatch(mark.name)
            row: Row = {"step": int(match[1]) if match else None, "name": mark.name}
            row |= {"start_ns": start, "dur_ns": end - start}
            rest = [(start, end)] if end > start else []
            for part, instants in layers:
                row[part] = size(both(rest, instants))
                rest = minus(rest, instants)
            row["other_ns"] = size(rest)
            rows.append(row)
        return rows

    def _step_layers(self) -> list[tuple[str, list[Span]]]:
        """The parts of a step, first that applies first."""
        threads = {mark.thread for mark, _, _ in self.windows}
        threads |= {work.launch.thread for work in self.work if work.launch}
        host = [e for e in self.events if is_host(e)]
        ours = [e for e in host if e.thread in threads]
        collectives = [e.span for e in host if e.name.startswith(HOST_COMMUNICATION)]
        collectives += [w.span for w in self.work if is_communication(w)]
        return [
            ("kernel_ns", spans_of(self.work, KERNEL, communication=False)),
            ("memcpy_ns", spans_of(self.work, MEMCPY)),
            ("memset_ns", spans_of(self.work, MEMSET)),
            ("communication_ns", union(collectives)),
            ("runtime_ns", spans_of(ours, RUNTIME)),
            ("dataloader_ns", union(e.span for e in host if e.name.startswith(DATALOADER))),
            ("cpu_ns", spans_of(ours, OP)),
        ]

    # ------------------------------------------------ devices

    def devices(self) -> list[Row]:
        groups: dict[str, list[Event]] = defaultdict(list)
        for work in self.work:
            groups[device_of(work)].append(work)
        rows = []
        for device, its_work in groups.items():
            span = [(min(w.start for w in its_work), max(w.end for w in its_work))]
            rows.append({"device": device, "window": "span", **device_figures(its_work, span)})
            if self.windows:
                steps = union((start, end) for _, start, end in self.windows)
                rows.append({"device": device, "window": "steps", **device_figures(its_work, steps)})
        return rows


def spans_of(events: Iterable[Event], categories: set[str], communication: bool | None = None) -> list[Span]:
    return union(
        e.span
        for e in events
        if e.category in categories and (communication is None or is_communication(e) == communication)
    )


def device_figures(work: list[Event], window: list[Span]) -> Row:
    """The figures of one device inside one window."""
    window_ns = size(window)
    busy = size(both(union(w.span for w in work), window))
    kernel = size(both(spans_of(work, KERNEL), window))
    compute = both(spans_of(work, KERNEL, communication=False), window)
    communication = both(spans_of(work, KERNEL, communication=True), window)
    overlap = size(both(communication, compute))
    return {
        "window_ns": window_ns,
        "busy_ns": busy,
        "idle_ns": window_ns - busy,
        "kernel_ns": kernel,
        "compute_ns": size(compute),
        "communication_ns": size(communication),
        "exposed_communication_ns": size(communication) - overlap,
        "overlap_share": overlap / size(communication) if communication else None,
        "memcpy_ns": size(both(spans_of(work, MEMCPY), window)),
        "memset_ns": size(both(spans_of(work, MEMSET), window)),
        "unlinked_ns": sum(w.dur for w in work if not w.launch),
        "utilization_share": kernel / window_ns if window_ns else None,
        "sm_efficiency_share": sm_efficiency(work, window),
    }


def sm_efficiency(work: list[Event], window: list[Span]) -> float | None:
    """Integral of min(1, sum of blocks per SM of what runs) over the window; None where no kernel says."""
    known = []
    for one in work:
        blocks = blocks_per_sm(one)
        if blocks is not None:
            known.append((one, blocks))
    if not known or not size(window):
        return None
    changes: dict[int, float] = defaultdict(float)
    counts: dict[int, int] = defaultdict(int)
    for one, blocks in known:
        changes[one.start] += blocks
        changes[one.end] -= blocks
        counts[one.start] += 1
        counts[one.end] -= 1
    total, level, running, previous = 0.0, 0.0, 0, 0
    for instant in sorted(changes):
        if running:
            total += min(1.0, level) * size(both([(previous, instant)], window))
        level += changes[instant]
        running += counts[instant]
        previous = instant
    return total / size(window)


def blocks_per_sm(work: Event) -> float | None:
    if work.category not in KERNEL:
        return None
    try:
        value = float(work.args.get("blocks per SM"))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    return value if math.isfinite(value) and value > 0 else None
