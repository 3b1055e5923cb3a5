"""Kernels by name, with their time, shapes and limits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.present._markup import Markup, joined
from stepscope.web.grids import RowLink, grid
from stepscope.web.page import page
from stepscope.web.parts import (
    address,
    beginning,
    chosen_row,
    heading,
    launches,
    section,
    sections,
    table_of,
    tabs,
)

if TYPE_CHECKING:
    from stepscope.web.page import Request

__all__ = ["kernels"]

_COLUMNS = ("name", "exclusive_ns", "share", "calls", "mean_ns", "max_ns", "family", "grid", "block")
_FAMILIES = ("family", "exclusive_ns", "share", "calls", "kernels", "longest")
_MEASURED = (
    "kernel",
    "trace_ns",
    "bound",
    "memory_share",
    "compute_share",
    "occupancy_share",
    "gb_per_s",
    "tflops_per_s",
)


@page(title="Kernels", order=31)
def kernels(request: Request) -> Markup:
    """Lists device work by kernel name."""
    op = request.options.get("op")
    if op is not None:
        return _of_operator(request, op)
    by = "shape" if request.options.get("by") == "shape" else "name"
    table = table_of(request, "kernels", by=by)
    links = (RowLink("Operators that launch it", beginning(request, "operators", "kernel"), "name"),)
    chosen = chosen_row(table, "name", request.options.get("kernel"))
    ways = [
        ("By name", address(request, "kernels"), by == "name"),
        ("By name and launch shape", address(request, "kernels", by="shape"), by == "shape"),
    ]
    return joined(
        [
            heading("Kernels", "What ran on the device, over the whole trace."),
            tabs("What a row is", ways),
            grid(
                table,
                "kernels",
                sort="exclusive_ns",
                bar="share",
                columns=_COLUMNS,
                more={"tall": True, "links": links, **chosen},
            ),
            sections(
                [
                    section(request, "Kinds of work", "kernel_families", sort="exclusive_ns", bar="share",
                            columns=_FAMILIES, told="In the steps."),
                    section(request, "Measured with Nsight Compute", "measured_kernels", sort="trace_ns",
                            columns=_MEASURED),
                    section(request, "What warps waited for", "stall_reasons"),
                    section(request, "Slower or faster with time", "kernel_trends", sort="last_ns"),
                ]
            ),
        ]
    )  # fmt: skip


def _of_operator(request: Request, op: str) -> Markup:
    ways = [
        ("All kernels", address(request, "kernels"), False),
        (op, address(request, "kernels", op=op), True),
    ]
    drawn = launches(request, "op", op, "kind")
    told = f"What {op} launches as the innermost operator, over the whole trace."
    return joined([heading("Kernels", told), tabs("Which kernels", ways), drawn])
