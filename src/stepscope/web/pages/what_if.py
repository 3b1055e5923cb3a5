"""How long a step would be under changes: switches and sliders over the simulation."""

from __future__ import annotations

import json
import time
from itertools import combinations
from typing import TYPE_CHECKING, Any

from stepscope.present._blocks import block
from stepscope.present._markup import Markup, el, joined
from stepscope.simulation.changes import CHANGES
from stepscope.web.answers.whatif import whatif
from stepscope.web.page import page

if TYPE_CHECKING:
    from stepscope.web.page import Request

__all__ = ["what_if"]

_NAMES = 60
_KERNELS = f"SELECT name FROM device_work GROUP BY name ORDER BY sum(dur_ns) DESC NULLS LAST LIMIT {_NAMES}"
_RANGES = f"""
    SELECT name FROM (
        SELECT name, dur_ns FROM ops UNION ALL
        SELECT name, dur_ns FROM annotations WHERE category = 'user_annotation')
    GROUP BY name ORDER BY sum(dur_ns) DESC NULLS LAST LIMIT {_NAMES}
"""
_TITLES = {
    "no_sync": "No waiting for the device",
    "no_explicit_sync": "No explicit synchronize",
    "no_reads": "No scalar reads",
    "graph": "One CUDA graph per step",
    "no_loader": "No waiting for data",
    "overlap_copies": "Copies beside compute",
    "no_driver_memory": "No driver allocations",
}


_FILE_S = 10
"""How long a file may take to be made: it holds as many combinations of changes as that allows."""


def _in_file(request: Request) -> dict[str, Any]:
    """What the changes with a name make of the step: none, each alone, then ever more together."""
    opened, key, until = request.opened, request.trace.key, time.monotonic() + _FILE_S
    found = {"whatif each": whatif(opened, {"trace": key, "each": "1"})}
    for together in range(len(CHANGES) + 1):
        for names in combinations(CHANGES, together):
            body = json.dumps({"named": names})
            found[f"whatif {','.join(names)}"] = whatif(opened, {"trace": key, "body": body})
            if time.monotonic() > until:
                return found
    return found


@page(title="What if", order=42, asks=_in_file)
def what_if(request: Request) -> Markup:
    """Simulates the steps under changes as they are switched on."""
    opened, trace = request.opened, request.trace
    ranks = list(opened.many.ranks) if opened.many is not None else None
    reads = trace.trace.reading(
        {
            "device_work": ("name", "dur_ns"),
            "ops": ("name", "dur_ns"),
            "annotations": ("name", "dur_ns", "category"),
        }
    )
    data = {
        "trace": trace.key,
        "changes": [
            {"name": name, "title": _TITLES.get(name, name.replace("_", " ")), "help": named.help}
            for name, named in CHANGES.items()
        ],
        "kernels": [row["name"] for row in reads.rows(_KERNELS) if row["name"]],
        "ranges": [row["name"] for row in reads.rows(_RANGES) if row["name"]],
        "ranks": ranks,
    }
    said = (
        "All ranks are played together, and wait for one another in their collectives."
        if ranks
        else "The recorded steps are played again: work takes as long as recorded, except for the changes."
    )
    return joined(
        [
            el("h1", "What if"),
            el("p", said, class_="muted"),
            block("whatif", data, label="Changes and what they make of the step"),
        ]
    )
