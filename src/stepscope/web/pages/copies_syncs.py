"""Copies, and calls in which the host waits for the device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.present._markup import Markup, joined
from stepscope.web.page import page
from stepscope.web.parts import address, heading, in_timeline, section, sections, tabs

if TYPE_CHECKING:
    from stepscope.web.page import Request

__all__ = ["copies_syncs"]

_WAYS = {"direction": "By direction", "op": "By operator", "frame": "By line"}
_COPIES = (
    "direction",
    "place",
    "host_memory",
    "calls",
    "bytes",
    "total_ns",
    "gb_per_s",
    "exposed_ns",
    "blocked_ns",
    "call",
)
_SYNCS = (
    "call",
    "op",
    "user_frame",
    "calls",
    "waited_ns",
    "waited_share",
    "starved_ns",
    "starved_share",
    "longest_ns",
)
_ONE = ("call", "op", "user_frame", "step", "start_ns", "waited_ns", "starved_ns")


@page(title="Copies & syncs", order=33)
def copies_syncs(request: Request) -> Markup:
    """Shows what copies cost and where the host waits."""
    by = request.options.get("by", "direction")
    by = by if by in _WAYS else "direction"
    ways = [(title, address(request, "copies_syncs", by=way), way == by) for way, title in _WAYS.items()]
    waits = section(
        request,
        "The host waits for the device",
        "host_syncs",
        told="Calls that block, and how long the device had nothing to do afterwards.",
        sort="starved_ns",
        bar="waited_ns",
        columns=_SYNCS,
    )
    longest = section(
        request,
        "The most expensive single waits",
        "host_syncs",
        options={"longest": 50},
        sort="starved_ns",
        columns=_ONE,
        links=[in_timeline(request, "start_ns", "from")],
    )
    copied = section(
        request,
        "Copies",
        "copies",
        told="In the steps. Exposed: no kernel ran on the device meanwhile.",
        options={"by": by},
        sort="exposed_ns",
        bar="total_ns",
        columns=[one for one in _COPIES if one != "place" or by != "direction"],
    )
    calls = section(
        request, "Calls into the runtime and driver", "runtime_calls", sort="total_ns", bar="total_ns"
    )
    return joined(
        [
            heading("Copies & syncs", "What moves data, and what stops the host until the device is done."),
            tabs("Copies by", ways),
            sections([copied, waits, longest, calls]),
        ]
    )
