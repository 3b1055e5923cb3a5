"""What notebooks show: traces and runs as what they are, tables, reports and comparisons as in the window."""

from __future__ import annotations

from typing import Any

from stepscope import units
from stepscope.compare import Comparison
from stepscope.findings.report import Report
from stepscope.present import cells
from stepscope.runs.many import ManyRanks
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["drawn"]

_MOST = 9
"""So many of a kind are named."""


def drawn(value: Any) -> str:
    """A value as inert HTML."""
    if isinstance(value, Table):
        return cells.table_cell(value)
    if isinstance(value, Report):
        return cells.report_cell(value)
    if isinstance(value, Comparison):
        return cells.comparison_cell(value)
    if isinstance(value, ManyRanks):
        return _run(value)
    if isinstance(value, Trace):
        return _trace(value)
    raise TypeError(f"a notebook cannot show a {type(value).__name__}")


def _trace(trace: Trace) -> str:
    told = trace.meta.metadata.get("deviceProperties")
    known = told if isinstance(told, list) else []
    devices = dict.fromkeys(str(one.get("name", "")) for one in known if isinstance(one, dict))
    tables = [f"{name} ({units.count(rows)})" for name, rows in trace.meta.rows.items() if rows]
    facts = [
        ("Events", units.count(trace.meta.events)),
        ("Rank", units.count(trace.rank)),
        ("Devices", ", ".join(list(devices)[:_MOST])),
        ("Tables", ", ".join(tables)),
        ("Store", str(trace.folder)),
    ]
    return cells.facts_cell(f"Trace of {trace.path}", facts, f"stepscope open {trace.path}")


def _run(run: ManyRanks) -> str:
    failed = [f"rank {one.rank}" for one in run.failed[:_MOST]]
    facts = [
        ("Ranks", f"{units.count(len(run.ranks))} of {units.count(run.world_size or len(run.ranks))}"),
        ("Could not be read", ", ".join(failed)),
        ("Notes", " ".join(run.notes)),
    ]
    return cells.facts_cell(f"Run {run.name}", facts, f"stepscope open {run.name}")
