"""The tables of a trace as charts: steps, kernels, idle time, kinds of work, memory, lines of code."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stepscope import units
from stepscope.present._charts import Piece, Point, area, bar, columns, stacked, ticks
from stepscope.present._markup import Markup, el, joined, shortened
from stepscope.present._phrases import PARTS
from stepscope.present._pieces import COLOURS, grid, notes, panel
from stepscope.tables import Table

if TYPE_CHECKING:
    from stepscope.analyses.allocator_curves import AllocatorPoint
    from stepscope.analyses.idle_gaps import IdleGap
    from stepscope.analyses.kernel_families import KernelFamily
    from stepscope.analyses.kernels import Kernel
    from stepscope.analyses.lines import Line
    from stepscope.analyses.memory_curves import MemoryPoint
    from stepscope.analyses.steps import Step

__all__ = ["TABLES", "details", "steps"]

TABLES = (
    "steps_by_any",
    "kernel_families",
    "idle_gaps",
    "kernels",
    "memory_curves",
    "allocator_curves",
    "lines",
)
"""The analyses that are shown, if they have rows."""
_BARS = 12
"""Up to this many steps are drawn below one another; more are drawn side by side."""
_STEPS = 60
_ROWS = 12
_CAUSES = 8
_DEVICES = 4
_LEAST = 0.001
"""Memory of less than this part of the highest peak is not drawn."""
_SIDES = {"host": "host", "launch": "calls", "device": "device"}


def details(tables: Mapping[str, Table[Any]]) -> Markup | None:
    """One panel for each table that has rows; None where none has."""

    def shown(name: str, draw: Callable[[Table[Any]], Markup]) -> Markup | None:
        table = tables.get(name)
        return draw(table) if table else None

    beside = [shown("kernel_families", _families), shown("idle_gaps", _idle)]
    panels = [
        shown("steps_by_any", steps),
        el("div", *beside, class_="pair") if all(beside) else joined(beside),
        shown("kernels", _kernels),
        shown("memory_curves", _memory),
        shown("allocator_curves", _allocator),
        shown("lines", _lines),
    ]
    if not any(panels):
        return None
    return el("section", el("h2", "Details"), *panels, id="details")


def steps(table: Table[Step]) -> Markup:
    """Each step divided into its parts."""
    rows = list(table)
    every = -(-len(rows) // _STEPS)
    # Of every stretch the longest step stays: no outlier is lost.
    chosen = [max(rows[i : i + every], key=lambda row: row.dur_ns) for i in range(0, len(rows), every)]
    bars = [(str(row.step), _pieces(row)) for row in chosen]
    longest = max(row.dur_ns for row in chosen)
    says = f"{units.counted(len(chosen), 'step')}, each divided into its parts; the longest took "
    says += units.duration(longest)
    if len(chosen) <= _BARS:
        chart = _bars(chosen, bars, longest)
    else:
        chart = columns(bars, [(tick, units.duration(tick)) for tick in ticks(longest)], says)
    more = [f"The longest of every {every} steps."] if every > 1 else []
    used = {piece.colour for _, pieces in bars for piece in pieces}
    keys = [
        el("li", el("span", class_=f"swatch {COLOURS[part]}"), name)
        for part, name in PARTS.items()
        if COLOURS[part] in used
    ]
    return panel("Step by step", chart, el("ul", *keys, class_="legend keys"), notes(table, *more))


def _pieces(row: Step) -> list[Piece]:
    return [
        Piece(COLOURS[part], ns, f"step {row.step}, {name}: {units.duration(ns)}")
        for part, name in PARTS.items()
        if (ns := getattr(row, f"{part}_ns"))
    ]


def _bars(rows: Sequence[Step], bars: Sequence[tuple[str, Sequence[Piece]]], longest: float) -> Markup:
    cells: list[Markup] = []
    for row, (label, pieces) in zip(rows, bars, strict=True):
        took = units.duration(row.dur_ns)
        cells += (
            el("span", f"step {label}", class_="number"),
            stacked(pieces, longest, f"step {label}: {took}", height=18),
            el("span", took, class_="number"),
        )
    return el("div", *cells, class_="rows steps")


def _families(table: Table[KernelFamily]) -> Markup:
    rows = list(table)
    most = _most(rows)
    cells = [
        (
            el("span", row.family, title=row.longest),
            bar(row.share or 0, _family(row.family), f"{row.family}: {units.share(row.share)}", of=most),
            units.share(row.share),
            units.duration(row.exclusive_ns),
            units.count(row.calls),
        )
        for row in rows
    ]
    heads = (("kind", ""), ("", "bar roomy"), ("share", "number"), ("time", "number"), ("calls", "number"))
    return panel("Kinds of device work, over all steps", grid(heads, cells), notes(table))


def _family(name: str) -> str:
    """The colour of a kind of work."""
    return name if name in ("copy", "communication", "other") else "device"


def _most(rows: Sequence[KernelFamily | IdleGap | Kernel]) -> float:
    """The largest share, by which the bars are drawn."""
    return max(row.share or 0.0 for row in rows) or 1.0


def _idle(table: Table[IdleGap]) -> Markup:
    """Of the busiest device."""
    idle: dict[str, int] = defaultdict(int)
    for row in table:
        idle[row.device] += row.idle_ns
    device = min(idle, key=lambda name: (idle[name], name))
    chosen = [row for row in table if row.device == device]
    most = _most(chosen)
    rows = [
        (
            _cause(row),
            bar(
                row.share or 0,
                _SIDES.get(row.side, "other"),
                f"{row.spent_in}: {units.share(row.share)}",
                of=most,
            ),
            units.share(row.share),
            units.duration(row.idle_ns),
            units.count(row.gaps),
        )
        for row in chosen[:_CAUSES]
    ]
    heads = (("cause", ""), ("", "bar roomy"), ("share", "number"), ("idle", "number"), ("gaps", "number"))
    return panel(f"Why device {device} was idle", grid(heads, rows), notes(table, *_rest(chosen, _CAUSES)))


def _cause(row: IdleGap) -> Markup:
    drained = f", after {row.drained_by}" if row.drained_by else ""
    frame = (
        el("div", shortened(row.user_frame, 60), class_="small muted", title=row.user_frame)
        if row.user_frame
        else None
    )
    return joined((f"{row.side}: {row.spent_in}{drained}", frame))


def _kernels(table: Table[Kernel]) -> Markup:
    chosen = list(table)
    most = _most(chosen)
    rows = [
        (
            el("code", shortened(row.name or units.ABSENT, 76), title=row.name),
            bar(row.share or 0, _family(row.family), f"{units.share(row.share)} of kernel time", of=most),
            units.share(row.share),
            units.duration(row.total_ns),
            units.count(row.calls),
            units.duration(row.mean_ns),
        )
        for row in chosen[:_ROWS]
    ]
    heads = (
        ("kernel", "name"),
        ("", "bar roomy"),
        ("share", "number"),
        ("time", "number"),
        ("calls", "number roomy"),
        ("mean", "number roomy"),
    )
    return panel("Top kernels, over the whole profile", grid(heads, rows), notes(table, *_rest(chosen)))


def _memory(table: Table[MemoryPoint]) -> Markup:
    by_device: dict[str, list[MemoryPoint]] = defaultdict(list)
    for row in table:
        by_device[row.device].append(row)
    peaks = {device: max(p.allocated_bytes for p in points) for device, points in by_device.items()}
    highest = sorted(peaks, key=lambda device: (-peaks[device], device))
    drawn = [one for one in highest[:_DEVICES] if peaks[one] >= _LEAST * peaks[highest[0]]]
    charts = [_curve(device, by_device[device]) for device in drawn]
    left = [
        f"Not drawn: {_named(one)}, at most {units.size(peaks[one])}." for one in highest if one not in drawn
    ]
    keys = (
        el("li", el("span", class_="swatch device"), "allocated"),
        el("li", el("span", class_="swatch dash other"), "reserved"),
    )
    return panel("Memory", *charts, el("ul", *keys, class_="legend keys"), notes(table, *left))


def _named(device: str) -> str:
    return "host" if device == "cpu" else f"device {device}"


def _curve(device: str, points: Sequence[MemoryPoint]) -> Markup:
    peak = max(point.allocated_bytes for point in points)
    top = max(peak, *(point.reserved_bytes or 0 for point in points))
    scale = [(tick, units.size(tick)) for tick in ticks(top, binary=True)]
    start = points[0].start_ns
    drawn = [Point(p.start_ns - start, p.allocated_bytes, p.reserved_bytes) for p in points]
    name = _named(device)
    says = f"Memory of {name} over time, at most {units.size(peak)} allocated"
    caption = el("figcaption", f"{name}: at most {units.size(peak)} allocated", class_="small muted")
    ends = ("0", units.duration(points[-1].start_ns - start))
    return el("figure", caption, area(drawn, scale, ends, says))


def _allocator(table: Table[AllocatorPoint]) -> Markup:
    by_device: dict[int, list[AllocatorPoint]] = defaultdict(list)
    for row in table:
        by_device[row.device].append(row)
    charts = [_events_curve(device, points) for device, points in list(by_device.items())[:_DEVICES]]
    keys = (
        el("li", el("span", class_="swatch device"), "in use"),
        el("li", el("span", class_="swatch dash other"), "reserved"),
    )
    return panel("Memory of the snapshot", *charts, el("ul", *keys, class_="legend keys"), notes(table))


def _events_curve(device: int, points: Sequence[AllocatorPoint]) -> Markup:
    peak = max(point.active_bytes for point in points)
    top = max(peak, *(point.reserved_bytes for point in points))
    scale = [(tick, units.size(tick)) for tick in ticks(top, binary=True)]
    drawn = [Point(point.nth, point.active_bytes, point.reserved_bytes) for point in points]
    says = f"Memory of device {device} by event, at most {units.size(peak)} in use"
    caption = el("figcaption", f"device {device}: at most {units.size(peak)} in use", class_="small muted")
    ends = ("first event", f"event {units.count(points[-1].nth)}")
    return el("figure", caption, area(drawn, scale, ends, says))


def _lines(table: Table[Line]) -> Markup:
    chosen = list(table)
    rows = [
        (
            _place(row),
            units.duration(row.idle_ns),
            units.duration(row.device_ns),
            units.share(row.device_share),
            units.duration(row.host_ns),
            units.count(row.launches),
        )
        for row in chosen[:_ROWS]
    ]
    heads = (
        ("function", "name"),
        ("device waited", "number"),
        ("device worked", "number"),
        ("share of work", "number roomy"),
        ("host", "number roomy"),
        ("launches", "number roomy"),
    )
    return panel("Your code, over all steps", grid(heads, rows), notes(table, *_rest(chosen)))


def _place(row: Line) -> Markup:
    if row.file is None:
        return el("span", "outside your code", class_="muted")
    place = f"{row.file}:{row.line}"
    where = el("div", shortened(place, 60), class_="small muted", title=place)
    return joined((el("code", row.function), where))


def _rest(rows: Sequence[object], shown: int = _ROWS) -> list[str]:
    return [f"Top {shown} of {units.count(len(rows))}."] if len(rows) > shown else []
