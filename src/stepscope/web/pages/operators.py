"""Operators: their time on the host, and the device work they launched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.present._markup import Markup, el, joined
from stepscope.web.grids import RowLink, grid
from stepscope.web.page import page
from stepscope.web.parts import (
    address,
    beginning,
    chosen_row,
    heading,
    launches,
    only,
    section,
    sections,
    table_of,
    tabs,
)

if TYPE_CHECKING:
    from stepscope.tables import Table
    from stepscope.web.page import Request

__all__ = ["operators"]

_WAYS = {
    "name": ("By name", ()),
    "shape": ("By shape", ("input_dims", "input_types")),
    "user_frame": ("By line", ("user_frame",)),
    "module": ("By module", ("module",)),
}
_COLUMNS = ("name", "calls", "host_self_ns", "host_total_ns", "device_self_ns", "device_total_ns")
_STEP_COLUMNS = ("name", "phase", "within", "per_step", "host_ns", "starved_ns", "device_ns", "user_frame")


@page(title="Operators", order=20)
def operators(request: Request) -> Markup:
    """Lists operators with host and device time."""
    kernel = request.options.get("kernel")
    if kernel is not None:
        return _that_launch(request, kernel)
    for way in ("module", "user_frame"):
        if way in request.options:
            return _inside(request, way, request.options[way])
    by = request.options.get("by", "name")
    by = by if by in _WAYS else "name"
    table = table_of(request, "ops", by=by)
    chosen = chosen_row(table, "name", request.options.get("op"))
    ways = [(title, address(request, "operators", by=way), way == by) for way, (title, _) in _WAYS.items()]
    return joined(
        [
            heading("Operators", "Over the whole trace. Own time leaves out the operators inside."),
            tabs("What a row is", ways),
            _grid(request, table, by, chosen),
            sections(
                [
                    section(request, "In the steps, by phase and caller", "step_ops", sort="host_ns",
                            bar="host_ns", columns=_STEP_COLUMNS, links=_links(request)[:1]),
                    section(request, "With which inputs", "op_inputs"),
                ]
            ),
        ]
    )  # fmt: skip


def _links(request: Request) -> tuple[RowLink, ...]:
    return (RowLink("Kernels that it launches", beginning(request, "kernels", "op"), "name"),)


def _grid(request: Request, table: Table[Any], by: str, more: dict[str, int]) -> Markup:
    return grid(
        table,
        "ops",
        sort="device_self_ns" if request.trace.trace.has("device_work") else "host_self_ns",
        bar="device_self_ns",
        columns=(_COLUMNS[0], *_WAYS[by][1], *_COLUMNS[1:]),
        more={"tall": True, "links": _links(request), **more},
    )


def _inside(request: Request, way: str, value: str) -> Markup:
    """The operators of one module or line."""
    table = only(table_of(request, "ops", by=way), way, value)
    ways = [
        ("All operators", address(request, "operators"), False),
        (value, address(request, "operators", **{way: value}), True),
    ]
    told = f"Operators in {value}; backward counts where its forward was."
    return joined(
        [heading("Operators", told), tabs("Which operators", ways), _grid(request, table, "name", {})]
    )


def _that_launch(request: Request, kernel: str) -> Markup:
    ways = [("All operators", address(request, "operators"), False), ("Of one kernel", "", True)]
    name = el("p", el("code", kernel), class_="small")
    return joined(
        [
            heading("Operators", "Operators that launch this kernel:"),
            name,
            tabs("Which operators", ways),
            launches(request, "kernel", kernel),
        ]
    )
