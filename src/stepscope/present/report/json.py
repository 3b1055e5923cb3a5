"""A report as JSON, for other programs: the schema `stepscope.report/1`."""

from __future__ import annotations

import dataclasses
from json import dumps
from typing import Any

from stepscope.findings import Finding
from stepscope.findings.report import SCHEMA, Passes, Report, RunFacts
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
    if report.pictures:
        written["pictures"] = [dataclasses.asdict(one) for one in report.pictures]
    if report.passes:
        written["passes"] = _passes(report.passes)
    if report.run:
        written["run"] = _run(report.run)
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


_TABLES_OF_RUNS = {"groups": "process_groups", "clocks": "clocks", "stragglers": "stragglers"}


def _run(told: RunFacts) -> dict[str, Any]:
    """What was seen of all ranks."""
    tables = {
        name: told.tables[table].arrow.to_pylist() if table in told.tables else None
        for name, table in _TABLES_OF_RUNS.items()
    }
    return {
        "name": told.name,
        "ranks": list(told.ranks),
        "missing_ranks": list(told.missing),
        "failed": list(told.failed),
        "hosts": {host: list(ranks) for host, ranks in told.hosts.items()},
        "steps": told.steps,
        "step_ns": told.step_ns,
        "judged_rank": told.judged_rank,
        "judged_because": told.judged_because,
        "compared_rank": told.compared_rank,
        "notes": list(told.notes),
        **tables,
    }


def _finding(finding: Finding) -> dict[str, Any]:
    advice = finding.advice
    only = {"ranks": list(finding.ranks)} if finding.ranks else {}
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
        **only,
    }
