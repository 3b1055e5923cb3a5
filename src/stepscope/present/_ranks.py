"""How all formats of a report tell about the ranks of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stepscope import units
from stepscope.findings.report import RunFacts
from stepscope.records import dataclass
from stepscope.tables import Table

__all__ = ["RankLine", "clock_sentence", "rank_lines", "run_figures", "the_rest"]

_MOST_LATE = 5
"""So many late ranks are listed."""
_ALL_LISTED = 8
"""Runs of so many ranks are listed whole."""
_LEAST_LOST = 0.01
"""A rank is called late if the others lose this part of the step to it, on average."""
_MEANS = ("step_ns", "own_ns", "exposed_wait_ns", "exposed_transfer_ns")


@dataclass(frozen=True, slots=True)
class RankLine:
    """One rank in its mean step."""

    rank: int
    host: str
    step_ns: float
    own_ns: float
    """Without exposed communication."""
    wait_ns: float
    """Exposed, waiting for others."""
    transfer_ns: float
    late_ns: float
    """How late it comes to its collectives, of a straggler; else 0."""
    last_share: float | None
    """Of a straggler, at how many of its collectives it came last."""
    cause: str
    """What makes it late, most of it first: `host 12 ms, input 3 ms`."""


def rank_lines(run: RunFacts) -> list[RankLine]:
    """All ranks, those first that are late, most late first."""
    steps = run.tables.get("rank_steps")
    if not steps:
        return []
    means = steps.arrow.group_by(["rank", "host"]).aggregate([(name, "mean") for name in _MEANS])
    least_ns = _LEAST_LOST * run.step_ns * max(1, len(run.ranks) - 1)
    late = {
        rank: rows
        for rank, rows in _late(run.tables.get("stragglers")).items()
        if sum(row.exposed_cost_ns for row in rows) >= least_ns
    }
    found = [_line(row, late.get(row["rank"], [])) for row in means.to_pylist()]
    return sorted(found, key=lambda line: (-line.late_ns, line.rank))


def _late(stragglers: Table[Any] | None) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = {}
    for row in stragglers or ():
        found.setdefault(row.rank, []).append(row)
    return found


def _line(row: dict[str, Any], late: list[Any]) -> RankLine:
    causes = sorted((one for one in late if one.late_ns > 0), key=lambda one: -one.late_ns)
    whole = sum(one.late_ns for one in causes)
    said = [
        f"{one.cause} {units.duration(one.late_ns)}" if len(causes) > 1 else one.cause
        for one in causes
        if one.late_ns >= 0.1 * whole
    ]
    return RankLine(
        rank=row["rank"],
        host=row["host"] or "",
        step_ns=row["step_ns_mean"],
        own_ns=row["own_ns_mean"],
        wait_ns=row["exposed_wait_ns_mean"],
        transfer_ns=row["exposed_transfer_ns_mean"],
        late_ns=whole,
        last_share=max((one.last_share for one in late), default=None),
        cause=", ".join(said),
    )


def the_rest(lines: Sequence[RankLine], run: RunFacts) -> tuple[list[RankLine], str]:
    """The ranks to list, and a sentence about the others; empty if all are listed."""
    if len(lines) <= _ALL_LISTED:
        return list(lines), ""
    shown = [line for line in lines if line.late_ns][:_MOST_LATE]
    shown += [
        line for line in lines if line.rank in (run.compared_rank, run.judged_rank) and line not in shown
    ]
    others = [line for line in lines if line not in shown]
    own = units.between(min(one.own_ns for one in others), max(one.own_ns for one in others))
    wait = units.between(min(one.wait_ns for one in others), max(one.wait_ns for one in others))
    return shown, f"{units.count(len(others))} other ranks: {own} of own time, {wait} waiting for others"


def run_figures(run: RunFacts) -> list[str]:
    """What the run is, in short pieces."""
    size = len(run.ranks) + len(run.missing)
    ranks = units.counted(size, "rank") if not run.missing else f"{len(run.ranks)} of {size} ranks"
    hosts = [host for host in run.hosts if host]
    where = f"{ranks} on {units.counted(len(hosts), 'host')}" if hosts else ranks
    pieces = [where, f"step of the run {units.duration(run.step_ns)}"]
    return [*pieces, clock_sentence(run)] if clock_sentence(run) else pieces


def clock_sentence(run: RunFacts) -> str:
    """How well the clocks of the ranks agree."""
    clocks = list(run.tables.get("clocks") or ())
    errors = [one.error_ns for one in clocks if one.error_ns is not None]
    lost = [one.rank for one in clocks if one.state == "unaligned"]
    said = f"clocks agree within {units.duration(max(errors))}" if errors and max(errors) else ""
    if lost and len(clocks) > 1:
        said = f"{said}; " if said else ""
        said += f"clocks of {units.counted(len(lost), 'rank')} not aligned"
    return said
