"""Builds a comparison: a report and the division of the step for every run, then one change at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from statistics import mean
from typing import Any

from stepscope.compare import Comparison, RanksOfSide, Run, Side, StepChange
from stepscope.compare.attribution import Spent, by_op, by_part, by_phase
from stepscope.compare.caveats import caveats_between
from stepscope.compare.held import COMPARED
from stepscope.compare.intervals import interval_of
from stepscope.errors import StepscopeError
from stepscope.findings import Finding
from stepscope.findings.build import build_report
from stepscope.findings.report import Report
from stepscope.findings.thresholds import Thresholds
from stepscope.patterns import late_pattern
from stepscope.store.trace import Trace
from stepscope.streams import Progress
from stepscope.tables import Table

__all__ = ["compare", "names_of"]

_TABLES = ("steps_by_any", "step_costs", "phases", "starving_ops", "throughput", "step_classes", *COMPARED)
_ENDING = late_pattern(r"(\.pt)?(\.trace)?\.json(\.gz|\.zst)?$")
_DIVIDING = ("step_costs", "phases", "starving_ops")


def compare(
    sides: Sequence[tuple[str, Sequence[Trace]]],
    *,
    thresholds: Thresholds | None = None,
    ranks: Sequence[RanksOfSide | None] = (),
    progress: Progress | None = None,
) -> Comparison:
    """Compares sides in their order; each has a name and is one trace, or several of the same program.

    `ranks` is what is known of all ranks of each side, if the traces are of one among many.
    """
    built = [
        _side(
            name,
            [
                _run(build_report(trace, thresholds=thresholds, tables=_TABLES, progress=progress), trace)
                for trace in traces
            ],
        )
        for name, traces in sides
    ]
    built = _measured(built)
    if ranks:
        built = [replace(side, ranks=known) for side, known in zip(built, ranks, strict=True)]
    changes = tuple(_change(before, after) for before, after in pairwise(built))
    overall = _change(built[0], built[-1]) if len(built) > 2 else None
    return Comparison(tuple(built), changes, overall)


def _measured(sides: list[Side]) -> list[Side]:
    """The sides with their measured steps, if all of them have one: steps of two kinds do not compare."""
    found = [[run.measured for run in side.runs if run.measured] for side in sides]
    if not all(len(known) == len(side.runs) for known, side in zip(found, sides, strict=True)):
        return sides
    means = [round(mean(one.mean_ns for one in known)) for known in found]
    return [replace(side, measured_ns=step_ns) for side, step_ns in zip(sides, means, strict=True)]


def _run(report: Report, trace: Trace) -> Run:
    missing = [one for one in report.not_run if one.id in _TABLES]
    if missing:
        raise StepscopeError(
            f"{report.facts.source} cannot be compared: {missing[0].id}: {missing[0].reason}"
        )
    lengths = tuple(row.dur_ns for row in report.tables["steps_by_any"])
    return Run(report, lengths, trace.measured)


def _side(name: str, runs: Sequence[Run]) -> Side:
    ranks = sorted({run.report.facts.rank for run in runs})
    if len(ranks) > 1:
        raise StepscopeError(
            f"{name} holds ranks {', '.join(map(str, ranks))} of a run, not repetitions of one rank",
            hint="name the traces of one rank",
        )
    known = [run for run in runs if run.lengths_ns]
    means = [Fraction(sum(run.lengths_ns), len(run.lengths_ns)) for run in known]
    ends = [[run.report.overview.unprofiled_step_ns[end] for run in known] for end in (0, 1)]
    return Side(
        name=name,
        runs=tuple(runs),
        step_ns=round(sum(means, Fraction()) / len(means)) if means else 0,
        unprofiled_step_ns=(round(mean(ends[0])), round(mean(ends[1]))) if known else (0, 0),
        rates=_told_by_all([run.report.overview.rates for run in runs]),
        per_step=_told_by_all([_per_step(run.report.tables["throughput"]) for run in runs]),
    )


def _told_by_all(told: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: mean(one[name] for one in told) for name in told[0] if all(name in one for one in told)}


def _per_step(throughput: Table[Any]) -> dict[str, float]:
    return {row.unit: row.per_step for row in throughput if row.unit != "steps" and row.per_step is not None}


def _change(before: Side, after: Side) -> StepChange:
    sides = (before, after)
    interval = interval_of(*([run.lengths_ns for run in side.runs] for side in sides))
    spent = [[_spent(run) for run in side.runs if run.lengths_ns] for side in sides]
    ends = (before.step_ns, after.step_ns)
    known = interval is not None
    found = [_findings(side) for side in sides]
    return StepChange(
        before=before,
        after=after,
        interval=interval,
        parts=by_part(spent[0], spent[1], ends) if known else (),
        phases=by_phase(spent[0], spent[1], ends) if known else (),
        ops=by_op(spent[0], spent[1], ends) if known else (),
        resolved=tuple(one for name, one in found[0].items() if name not in found[1]),
        appeared=tuple(one for name, one in found[1].items() if name not in found[0]),
        kept=tuple((one, found[1][name]) for name, one in found[0].items() if name in found[1]),
        caveats=tuple(caveats_between(before, after)),
        measured=interval_of(before.true_lengths_ns, after.true_lengths_ns) if after.measured_ns else None,
    )


def _spent(run: Run) -> Spent:
    return Spent(len(run.lengths_ns), *(run.report.tables[name] for name in _DIVIDING))


def _findings(side: Side) -> dict[str, Finding]:
    """What at least half of the runs of a side have, as the first of them says it."""
    found: dict[str, list[Finding]] = {}
    for run in side.runs:
        for finding in run.report.findings:
            found.setdefault(finding.id, []).append(finding)
    return {name: ones[0] for name, ones in found.items() if 2 * len(ones) >= len(side.runs)}


def names_of(words: Iterable[str]) -> list[str]:
    """Short names of sides that tell them apart: file names, with as much of their folders as needed."""
    sides = [[_ENDING.sub("", one.rstrip("/")).split("/") for one in word.split(",")] for word in words]
    longest = max((len(one) for side in sides for one in side), default=1)
    for size in range(1, longest + 1):
        named = [_joined(["/".join(one[-size:]) for one in side]) for side in sides]
        if len(set(named)) == len(named):
            return named
    return [f"{_joined(['/'.join(one) for one in side])} ({place})" for place, side in enumerate(sides, 1)]


def _joined(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 2 else f"{names[0]} … {names[-1]}"
