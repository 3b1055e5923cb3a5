"""What a compile log adds to the rules on compiled code: lines, reasons and guards."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from stepscope.findings import Location, locations_of
from stepscope.findings._phrases import times

if TYPE_CHECKING:
    from stepscope.analyses.graph_break_lines import GraphBreakLine
    from stepscope.analyses.graph_skips import GraphSkip
    from stepscope.analyses.recompile_guards import RecompileGuard

__all__ = ["break_places", "breaks_said", "guards_said", "skips_said"]

_SHOWN = 2


def breaks_said(lines: Iterable[GraphBreakLine] | None) -> str:
    """The lines that break the graph, as the log names them; nothing without a log."""
    rows = list(lines or ())
    if not rows:
        return ""
    named = "; ".join(f"{_short(row.place)}: {_clipped(row.reason)}" for row in rows[:_SHOWN])
    more = f"; and {times(len(rows) - _SHOWN, 'other line')}" if len(rows) > _SHOWN else ""
    skipped = sum(row.skipped for row in rows)
    left = f" {times(skipped, 'function')} {'runs' if skipped == 1 else 'run'} uncompiled because of it."
    return f" The log names what breaks the graph: {named}{more}.{left if skipped else ''}"


def break_places(lines: Iterable[GraphBreakLine] | None) -> tuple[Location, ...]:
    """The same as places."""
    return locations_of((row.place, f"breaks the graph: {_clipped(row.reason)}") for row in lines or ())


def guards_said(guards: Iterable[RecompileGuard] | None) -> str:
    """The guards that failed; nothing without a log."""
    rows = list(guards or ())
    if not rows:
        return ""
    named = "; ".join(f"{_short(row.function)}: {_clipped(row.guard)}" for row in rows[:_SHOWN])
    more = f"; and {times(len(rows) - _SHOWN, 'other guard')}" if len(rows) > _SHOWN else ""
    gave_up = [row for row in rows if row.gave_up]
    left = f" Torch gave up on {_short(gave_up[0].function)}, which runs uncompiled since." if gave_up else ""
    return f" The log names the guards that failed: {named}{more}.{left}"


def skips_said(skips: Iterable[GraphSkip] | None) -> str:
    """Why CUDA graphs were skipped; nothing without a log."""
    rows = list(skips or ())
    if not rows:
        return ""
    named = "; ".join(
        _clipped(row.reason) + (f" ({_short(row.place)})" if row.place else "") for row in rows[:_SHOWN]
    )
    return f" The log says why graphs were skipped: {named}."


def _short(place: str | None) -> str:
    """The end of a path, so that a sentence stays readable."""
    return "an unknown line" if place is None else place.rpartition("/")[2]


def _clipped(text: str) -> str:
    return text if len(text) <= 90 else f"{text[:89]}…"
