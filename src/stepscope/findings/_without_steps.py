"""What can be said of a file that has no steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from stepscope import units
from stepscope.findings._phrases import times
from stepscope.findings.facts import Facts
from stepscope.tables import Table

__all__ = ["without_steps"]


def without_steps(facts: Facts, tables: Mapping[str, Table[Any]]) -> str:
    """The sentence of the verdict: what kind of file it is, and the most that it says."""
    said = _OF_KINDS[facts.kind](tables) if facts.kind in _OF_KINDS else ""
    return said or "The profile has no steps, so there is nothing to judge."


def _compile_log(tables: Mapping[str, Table[Any]]) -> str:
    told = "A compile log has no steps: it says what torch.compile did, not what a step takes."
    rows = [row for row in tables.get("compile_units", ()) if row.kind != "runtime"]
    total = sum(row.dur_ns or 0 for row in rows)
    if not rows:
        return told
    ranks = len({row.rank for row in rows})
    where = f" on {units.count(ranks)} ranks" if ranks > 1 else ""
    took = f" took {units.duration(total)}" if total else ", whose time it does not have"
    longest = max(rows, key=lambda row: row.dur_ns or 0)
    most = (
        f", {units.duration(longest.dur_ns)} of that for region {longest.region}"
        if total and len(rows) > 1
        else ""
    )
    return f"{told} {times(len(rows), 'compilation')}{where}{took}{most}."


_NO_TIMES = "has no times of kernels: nothing is said about speed."


def _snapshot(tables: Mapping[str, Table[Any]]) -> str:
    allocators = tables.get("allocators")
    held = max(allocators or (), key=lambda one: one.peak_bytes or one.active_bytes, default=None)
    if held is None or allocators is None:
        return ""
    if any("is cut" in note for note in allocators.notes):
        known = f"The file is cut: at least {units.size(held.active_bytes)} is in use."
    elif held.peak_bytes is None:
        known = f"At its end {units.size(held.active_bytes)} is in use; the peak is not known."
    else:
        known = f"At most {units.size(held.peak_bytes)} was in use."
    return f"A memory snapshot {_NO_TIMES} {known}"


def _memory_timeline(tables: Mapping[str, Table[Any]]) -> str:
    rows = list(tables.get("timeline_kinds", ()))
    peak = sum(row.at_peak_bytes for row in rows)
    most = max(rows, key=lambda row: row.at_peak_bytes, default=None)
    if most is None:
        return ""
    return (
        f"A memory timeline {_NO_TIMES} At most {units.size(peak)} was allocated, most of it {most.category}."
    )


_OF_KINDS: Mapping[str, Callable[[Mapping[str, Table[Any]]], str]] = {
    "compile_log": _compile_log,
    "memory_timeline": _memory_timeline,
    "snapshot": _snapshot,
}
