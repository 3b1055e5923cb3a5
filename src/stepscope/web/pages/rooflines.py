"""Rooflines: how far operators are from what the hardware can do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope import units
from stepscope.present._blocks import block
from stepscope.present._markup import Markup, joined
from stepscope.present._printable import printable
from stepscope.web.grids import MOST_ROWS, RowLink, grid
from stepscope.web.page import page
from stepscope.web.parts import beginning, heading, section, sections, table_of

if TYPE_CHECKING:
    from stepscope.tables import Table
    from stepscope.web.page import Request

__all__ = ["rooflines"]

_COLUMNS = (
    "op",
    "shapes",
    "data_type",
    "work_ns",
    "calls",
    "tflops_per_s",
    "peak_share",
    "gb_per_s",
    "bandwidth_share",
    "bound",
)
_COLOURS = {"compute": "device", "memory": "copy", "latency": "calls", "unknown": "other"}
_MOST_POINTS = 2000


@page(title="Rooflines", order=32)
def rooflines(request: Request) -> Markup:
    """Compares operators with the peaks of the device."""
    table = table_of(request, "rooflines")
    points = _points(table)
    links = [RowLink("Kernels that it launches", beginning(request, "kernels", "op"), "op")]
    chart = {
        "points": points,
        "roofs": _roofs(table),
        "x": "FLOPs per byte",
        "y": "TFLOP/s",
        "colours": _COLOURS,
        "grid": "rooflines",
    }
    return joined(
        [
            heading(
                "Rooflines",
                "Each point is an operator with its shapes; large ones take more device time. The line is "
                "what the hardware can do.",
            ),
            block("scatter", chart, label="Operators under the roofs of the device") if points else None,
            grid(table, "rooflines", sort="work_ns", bar="work_ns", columns=_COLUMNS, more={"links": links}),
            sections(
                [
                    section(request, "By step", "rooflines", options={"by": "step"},
                            columns=("step", "step_ns", "work_ns", "tflops_per_s", "mfu_share", "hfu_share",
                                     "covered_share")),
                    section(request, "Measured against estimated", "measured_rooflines", sort="trace_ns"),
                    section(request, "Data types", "precision"),
                    section(request, "Attention", "attention"),
                ]
            ),
        ]
    )  # fmt: skip


def _points(table: Table[Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for row, one in enumerate(table):
        if row >= MOST_ROWS or len(found) >= _MOST_POINTS:
            break
        if one.flops_per_byte and one.tflops_per_s:
            name = printable((one.op or one.family or "work")[:200])
            shapes = printable(one.shapes[:300]) if one.shapes else ""
            peak = f", {units.share(one.peak_share)} of the peak" if one.peak_share is not None else ""
            figures = (
                f"{units.number(one.tflops_per_s)} TFLOP/s{peak}, {one.bound}, {units.duration(one.work_ns)}"
            )
            found.append(
                {
                    "x": one.flops_per_byte,
                    "y": one.tflops_per_s,
                    "size": one.work_ns,
                    "name": name,
                    "kind": one.bound,
                    "row": row,
                    "says": f"{name} {shapes}\n{figures}".replace("  ", " "),
                }
            )
    return found


def _roofs(table: Table[Any]) -> list[dict[str, Any]]:
    """The peaks that the table compares with: what is reached over its share of the peak."""
    slopes = [one.gb_per_s / one.bandwidth_share for one in table if one.gb_per_s and one.bandwidth_share]
    slope = max(slopes, default=0) / 1e3
    peaks: dict[str, float] = {}
    for one in table:
        if one.data_type and one.peak_share and one.tflops_per_s:
            peaks.setdefault(one.data_type, one.tflops_per_s / one.peak_share)
    if not slope:
        return []
    ordered = sorted(peaks.items(), key=lambda pair: -pair[1])
    return [
        {"name": f"{name}: {units.number(peak)} TFLOP/s", "peak": peak, "slope": slope}
        for name, peak in ordered
    ]
