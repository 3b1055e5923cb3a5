"""The trace at a glance: devices, steps, phases, use over time, what was recorded, and what that cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope import units
from stepscope.present._blocks import block
from stepscope.present._markup import Markup, el, joined
from stepscope.present._phrases import PARTS
from stepscope.present._pieces import COLOURS, grid, notes, panel
from stepscope.present.report._details import steps
from stepscope.present.report._overview import facts, parts, phases, tiles
from stepscope.web.links import link
from stepscope.web.page import page
from stepscope.web.parts import table_of

if TYPE_CHECKING:
    from stepscope.web.page import Request

__all__ = ["overview"]


@page(title="Overview", order=11)
def overview(request: Request) -> Markup:
    """Shows devices, steps, phases, use over time, and what was recorded."""
    report = request.trace.report()
    by_step = table_of(request, "steps", by="any")
    return joined(
        [
            el("h1", "Overview"),
            tiles(report),
            _over_time(request),
            el("div", parts(report.overview), phases(report.overview), class_="beside"),
            steps(by_step) if by_step else None,
            _devices(request),
            el("div", _profiler(request), _throughput(request), class_="beside"),
            panel("What was recorded", facts(report)),
        ]
    )


def _over_time(request: Request) -> Markup:
    """What the time went to, slice by slice; a click shows the slice in the timeline."""
    table = table_of(request, "time_slices")
    if not table:
        return panel("What the time went to", notes(table))
    columns: dict[str, list[int]] = {name: table.arrow[name].to_pylist() for name in table.arrow.column_names}
    base_ns = request.trace.trace.meta.base_ns
    columns["start_ns"] = [start - base_ns for start in columns["start_ns"]]  # as addresses have them
    data = {
        "columns": columns,
        "timeline": link(request.opened, "timeline", request.trace.key),
        "parts": [[f"{part}_ns", COLOURS[part], name] for part, name in PARTS.items()],
    }
    return panel("What the time went to", block("slices", data, label="What the time went to"))


def _devices(request: Request) -> Markup | None:
    table = table_of(request, "devices")
    if not table:
        return panel("Devices", notes(table))
    heads = (
        ("device", ""),
        ("window", ""),
        ("length", "number"),
        ("kernels", "number"),
        ("busy", "number"),
        ("communication", "number roomy"),
        ("exposed", "number roomy"),
        ("copies", "number roomy"),
        ("multiprocessors in use", "number"),
        ("occupancy", "number roomy"),
    )
    rows = [
        (
            f"{row.device} {row.name or ''}".strip(),
            row.window,
            units.duration(row.window_ns),
            units.share(row.utilization_share),
            units.share(row.busy_ns / row.window_ns if row.window_ns else None),
            units.duration(row.communication_ns),
            units.duration(row.exposed_communication_ns),
            units.duration(row.memcpy_ns),
            units.share(row.sm_efficiency_share),
            units.share(row.occupancy_share),
        )
        for row in table
    ]
    return panel("Devices", grid(heads, rows), notes(table))


def _profiler(request: Request) -> Markup | None:
    """The step with the profiler and without it."""
    table = table_of(request, "profiler_costs")
    overview = request.trace.report().overview
    if not overview.steps:
        return None
    measured = request.trace.trace.measured
    rows = [
        ("recorded", units.duration(overview.steady_step_ns)),
        ("without the profiler, estimated", units.between(*overview.unprofiled_step_ns)),
    ]
    if measured:
        rows[1] = ("without the profiler, measured", measured.said)
    return panel(
        "The step with and without the profiler", grid((("", ""), ("step", "number")), rows), notes(table)
    )


def _throughput(request: Request) -> Markup:
    table = table_of(request, "throughput")
    rows = [(row.unit, units.number(row.per_second), units.number(row.per_step), row.basis) for row in table]
    heads = (("unit", ""), ("per second", "number"), ("per step", "number"), ("basis", "muted"))
    return panel("Throughput, as recorded", grid(heads, rows), notes(table))
