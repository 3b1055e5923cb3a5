"""Sides and changes of a comparison as JSON objects."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from stepscope.compare import RanksOfSide, Side, StepChange, StepPart
from stepscope.compare.ranks import paired_ranks
from stepscope.findings import Finding

__all__ = ["change_of", "side_of"]


def side_of(side: Side) -> dict[str, Any]:
    """A side with its runs."""
    overview = side.report.overview
    measured = {} if side.measured_ns is None else {"measured_step_ns": side.measured_ns}
    ranks = {} if side.ranks is None else {"run": _together(side.ranks)}
    return {
        "name": side.name,
        "step_ns": side.step_ns,
        **measured,
        **ranks,
        "unprofiled_step_ns": list(side.unprofiled_step_ns),
        "steps": side.steps,
        "rates": side.rates,
        "per_step": side.per_step,
        "utilization_share": overview.utilization_share,
        "peak_memory_bytes": overview.peak_memory_bytes,
        "verdict": side.report.verdict.word,
        "runs": [
            {"trace": dataclasses.asdict(run.report.facts), "step_lengths_ns": list(run.lengths_ns)}
            for run in side.runs
        ],
    }


def _together(ranks: RanksOfSide) -> dict[str, Any]:
    """All ranks of a side; each of them stands in the changes, beside its counterpart."""
    told = dataclasses.asdict(ranks)
    del told["each"]
    return told


def change_of(change: StepChange, sides: Sequence[Side]) -> dict[str, Any]:
    """A change; `before` and `after` are places in the list of sides."""
    ranks = paired_ranks(change)
    return {
        "before": _place(sides, change.before),
        "after": _place(sides, change.after),
        "word": change.word,
        "change_ns": change.change_ns,
        "change_share": change.share,
        "interval": dataclasses.asdict(change.truth) if change.truth else None,
        **({"measured": True, "recorded_change_ns": change.recorded_change_ns} if change.measured else {}),
        "parts": [_part(part) for part in change.parts],
        "phases": [_part(part) for part in change.phases],
        "ops": [_part(part) for part in change.ops],
        "findings": {
            "resolved": [_finding(one) for one in change.resolved],
            "new": [_finding(one) for one in change.appeared],
            "kept": [{"before": _finding(one), "after": _finding(now)} for one, now in change.kept],
        },
        "caveats": list(change.caveats),
        **({} if ranks is None else {"ranks": dataclasses.asdict(ranks)}),
    }


def _place(sides: Sequence[Side], side: Side) -> int:
    return next(place for place, one in enumerate(sides) if one is side)


def _part(part: StepPart) -> dict[str, Any]:
    written: dict[str, Any] = {
        "name": part.name,
        "before_ns": part.before_ns,
        "after_ns": part.after_ns,
        "change_ns": part.change_ns,
        "state": part.state,
    }
    if part.calls is not None:
        written |= {
            "calls_before": part.calls[0],
            "calls_after": part.calls[1],
            "more_often_ns": part.more_often_ns,
            "slower_ns": part.slower_ns,
            "op": part.op,
        }
    if any(part.names):
        written |= {"names_before": list(part.names[0]), "names_after": list(part.names[1])}
    if part.parts:
        written["parts"] = [_part(inner) for inner in part.parts]
    return written


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "id": finding.id,
        "title": finding.advice.title,
        "severity": finding.severity,
        "gain": dataclasses.asdict(finding.gain),
    }
