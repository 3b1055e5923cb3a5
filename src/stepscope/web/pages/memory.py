"""Memory: how it rises and falls, its peak, what lives then, and who holds it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope import units
from stepscope.present._blocks import block
from stepscope.present._markup import Markup, el, joined
from stepscope.present._printable import printable
from stepscope.web.page import page
from stepscope.web.parts import (
    Part,
    beginning,
    clock,
    heading,
    in_timeline,
    section,
    sections,
    table_of,
    tiles,
)

if TYPE_CHECKING:
    from stepscope.tables import Table
    from stepscope.web.page import Request

__all__ = ["memory"]

_POINTS = 2000
_LEAST = 0.001
"""Memory of less than this part of the highest peak is not drawn."""
_MOST_CURVES = 8


@page(title="Memory", order=34)
def memory(request: Request) -> Markup:
    """Shows the memory of each device over time, its peak and what was live."""
    profile, snapshot = table_of(request, "memory"), table_of(request, "allocators")
    parts = [*_of_profile(request), *_of_snapshot(request)]
    head = heading("Memory", "How it rises and falls, what lives at the peak, and who holds it.")
    return joined(
        [
            head,
            _tiles(profile, snapshot),
            *_curves(request, "memory_curves", "start_ns", "Allocated over time"),
            *_curves(request, "allocator_curves", "nth", "Allocator's history, by event"),
            sections(parts),
        ]
    )


def _tiles(profile: Table[Any], snapshot: Table[Any]) -> Markup | None:
    figures = [
        (f"Peak of {_device(row.device)}", units.size(row.peak_bytes), _reserved(row.reserved_peak_bytes))
        for row in list(profile)[:6]
    ]
    figures += [
        (
            f"Peak of {_device(row.device)}, snapshot",
            units.size(row.peak_bytes),
            _reserved(row.reserved_peak_bytes),
        )
        for row in list(snapshot)[:6]
    ]
    return tiles(figures) if figures else None


def _device(name: object) -> str:
    return "the host" if name == "cpu" else f"device {name}"


def _reserved(n_bytes: int | None) -> str:
    return "" if n_bytes is None else f"{units.size(n_bytes)} reserved"


def _curves(request: Request, name: str, along: str, title: str) -> list[Markup]:
    table = table_of(request, name, points=_POINTS)
    if not len(table):
        return []
    base, first = clock(request)
    by_device: dict[object, list[dict[str, Any]]] = {}
    for row in table.records():
        by_device.setdefault(row["device"], []).append(row)
    drawn = [el("h2", title)]
    timed = along == "start_ns"
    value = "allocated_bytes" if timed else "active_bytes"
    peaks = {device: max(row[value] for row in rows) for device, rows in by_device.items()}
    for device, rows in list(by_device.items())[:_MOST_CURVES]:
        if peaks[device] < _LEAST * max(peaks.values()):
            continue
        lines = [
            {"name": "in use", "colour": "device", "dashed": False, "values": [row[value] for row in rows]}
        ]
        if any(row["reserved_bytes"] is not None for row in rows):
            reserved = [row["reserved_bytes"] for row in rows]
            lines.append({"name": "reserved", "colour": "other", "dashed": True, "values": reserved})
        data = {
            "at": [row[along] - base if timed else row[along] for row in rows],
            "lines": lines,
            "marks": _steps(request) if timed else [],
            "unit": "bytes",
            "along": "ns" if timed else "",
            "zero": first - base if timed else 0,
            "to": beginning(request, "timeline", "from") if timed else "",
        }
        drawn += [
            el("p", printable(_device(device)), class_="small muted"),
            block("curve", data, label=title),
        ]
    return drawn


def _steps(request: Request) -> list[dict[str, Any]]:
    """Where steps begin on the host, few enough to be read."""
    base, _ = clock(request)
    found = table_of(request, "steps").records()
    every = max(1, len(found) // 12)
    return [{"at": row["start_ns"] - base, "name": f"step {row['step']}"} for row in found[::every]]


def _of_profile(request: Request) -> list[Part]:
    at = [in_timeline(request, "peak_ns", "from")]
    return [
        section(request, "What lives at the peak", "memory_peaks", sort="bytes", bar="share",
                columns=("category", "module", "op", "phase", "freed_in", "blocks", "bytes", "share",
                         "device"),
                more={"group": "category"}),
        section(request, "Devices", "memory", sort="peak_bytes", bar="peak_bytes", links=at,
                columns=("device", "peak_bytes", "peak_step", "reserved_peak_bytes", "unused_at_peak_bytes",
                         "allocations", "frees", "growth_per_step_bytes")),
        section(request, "Step by step", "memory_steps",
                columns=("step", "device", "start_bytes", "peak_bytes", "end_bytes", "growth_bytes",
                         "allocations", "allocated_bytes", "unused_end_bytes")),
        section(request, "Allocations after the first step", "allocations", sort="host_ns",
                columns=("source", "call", "op", "user_frame", "allocations", "frees", "per_step",
                         "allocated_bytes", "host_ns")),
        section(request, "Kinds of tensors, by an exported memory timeline", "timeline_kinds",
                sort="at_peak_bytes", bar="share"),
    ]  # fmt: skip


def _of_snapshot(request: Request) -> list[Part]:
    return [
        section(request, "Snapshot: in use at the peak", "allocator_peaks", sort="bytes", bar="share",
                columns=("category", "site", "module", "phase", "freed_in", "blocks", "bytes", "share"),
                more={"group": "category"}),
        section(request, "Snapshot: who holds memory at the end", "allocator_holders", sort="bytes",
                bar="share",
                columns=("site", "category", "module", "blocks", "bytes", "share", "largest_bytes")),
        section(request, "Snapshot: steps", "allocator_steps",
                columns=("step", "start_bytes", "peak_bytes", "end_bytes", "growth_bytes", "kept_bytes",
                         "kept_site", "kept_site_bytes")),
        section(request, "Snapshot: the allocator", "allocators"),
        section(request, "Snapshot: reserved and free", "allocator_pools", sort="reserved_bytes"),
        section(request, "Snapshot: segments that few blocks hold", "fragmented_segments", sort="free_bytes",
                bar="free_bytes", columns=("site", "kind", "bytes", "active_bytes", "free_bytes",
                                           "free_share", "blocks")),
        section(request, "Snapshot: allocations that failed", "allocation_failures", sort="holder_bytes"),
    ]  # fmt: skip
