"""Modules of the model: their tree, and boxes as large as their time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.present._blocks import block
from stepscope.present._markup import Markup, joined
from stepscope.present._printable import printable
from stepscope.web.grids import MOST_ROWS, RowLink, grid
from stepscope.web.page import page
from stepscope.web.parts import beginning, heading, table_of

if TYPE_CHECKING:
    from stepscope.tables import Table
    from stepscope.web.page import Request

__all__ = ["modules"]

_COLUMNS = (
    "name",
    "calls",
    "device_share",
    "device_forward_total_ns",
    "device_backward_total_ns",
    "host_forward_total_ns",
    "host_backward_total_ns",
    "device_forward_self_ns",
)


@page(title="Modules", order=21)
def modules(request: Request) -> Markup:
    """Shows the tree of modules with host and device time."""
    table = table_of(request, "modules")
    title = heading("Modules", "In the steps. Backward counts for the module whose forward it belongs to.")
    links = [RowLink("Operators in it", beginning(request, "operators", "module"), "name")]
    drawn = grid(
        table,
        "modules",
        bar="device_share",
        columns=_COLUMNS,
        more={"tall": True, "tree": "depth", "links": links},
    )
    if not len(table):
        return joined([title, drawn])
    return joined([title, block("treemap", _boxes(table), label="Modules by their time"), drawn])


def _boxes(table: Table[Any]) -> dict[str, Any]:
    columns = table.arrow.slice(0, MOST_ROWS).to_pydict()
    measures = [
        {"name": side, "unit": "ns", "values": _summed(columns, side)}
        for side in ("device", "host")
        if any(_summed(columns, side))
    ]
    return {
        "names": [printable(name[:200]) for name in columns["name"]],
        "depths": columns["depth"],
        "measures": measures or [{"name": "device", "unit": "ns", "values": _summed(columns, "device")}],
        "grid": "modules",
    }


def _summed(columns: dict[str, list[Any]], side: str) -> list[int]:
    """Forward and backward together."""
    both = zip(columns[f"{side}_forward_total_ns"], columns[f"{side}_backward_total_ns"], strict=True)
    return [forward + backward for forward, backward in both]
