"""A report as JSON, for other programs: the schema `stepscope.report/1`."""

from __future__ import annotations

import dataclasses
from json import dumps
from typing import Any

from stepscope.findings import Finding
from stepscope.findings.report import SCHEMA, Passes, Report
from stepscope.present.formats import format

__all__ = ["json"]


@format(ending=".json")
def json(report: Report) -> str:
    """JSON for other programs: numbers are not rounded, unknown is null."""
    written: dict[str, Any] = {
        "schema": SCHEMA,
        "trace": dataclasses.asdict(report.facts),
        "trust": [dataclasses.asdict(doubt) for doubt in report.trust],
        "overview": dataclasses.asdict(report.overview),
        "verdict": dataclasses.asdict(report.verdict),
        "findings": [_finding(finding) for finding in report.findings],
        "replaced": [dataclasses.asdict(one) for one in report.replaced],
        "not_run": [dataclasses.asdict(one) for one in report.not_run],
        "checklist": [dataclasses.asdict(check) for check in report.checklist],
        "next_steps": [dataclasses.asdict(step) for step in report.next_steps],
    }
    if report.passes:
        written["passes"] = _passes(report.passes)
    return dumps(written, indent=2, ensure_ascii=False) + "\n"


def _passes(told: Passes) -> dict[str, Any]:
    """Which figures come from where: the step, times, and places."""
    measured = dataclasses.asdict(told.measured) if told.measured else None
    if measured:
        del measured["lengths_ns"]
    return {
        "run": told.run,
        "rank": told.rank,
        "ranks": list(told.ranks),
        "unprofiled_step": "measured" if measured else "estimated",
        "measured_step": measured,
        "times": dataclasses.asdict(told.times),
        "places": dataclasses.asdict(told.places),
        "step": told.step,
        "notes": list(told.notes),
    }


def _finding(finding: Finding) -> dict[str, Any]:
    advice = finding.advice
    return {
        "id": finding.id,
        "category": finding.category.value,
        "title": advice.title,
        "severity": finding.severity,
        "certainty": advice.certainty,
        "risk": advice.risk,
        "gain": dataclasses.asdict(finding.gain),
        "because": advice.because,
        "locations": [dataclasses.asdict(location) for location in advice.locations],
        "evidence": dict(advice.evidence),
        "fix": advice.fix,
        "check": advice.check,
        "shares_time_with": list(finding.shares_time_with),
    }
