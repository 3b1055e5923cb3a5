"""A report as annotations of a job on GitHub, at the lines of code that findings are about."""

from __future__ import annotations

from stepscope.findings import Finding
from stepscope.findings.report import Report
from stepscope.present._phrases import passes, worth
from stepscope.present._workflow import command, lines
from stepscope.present.formats import format

__all__ = ["github"]

_LEVELS = {"high": "warning", "medium": "warning", "low": "notice"}


@format(ending=".github.txt", job_summary="markdown")
def github(report: Report) -> str:
    """Annotations for GitHub Actions at the lines to change; adds a page to the job summary.

    One workflow command per finding, at its first location if it has one, and one for the verdict.
    """
    verdict = report.verdict
    said = " ".join(filter(None, (verdict.sentence, verdict.promise, from_where(report)))).strip()
    commands = [command("notice", verdict.word, said), *(_annotation(finding) for finding in report.findings)]
    return lines(commands)


def from_where(report: Report) -> str:
    """Of a run, which figures come from where, as a sentence."""
    told = "; ".join(filter(None, passes(report)))
    return f"{told[0].upper()}{told[1:]}." if told else ""


def _annotation(finding: Finding) -> str:
    advice = finding.advice
    title = f"{advice.title} ({worth(finding)})"
    first = advice.locations[0] if advice.locations else None
    return command(_LEVELS[finding.severity], title, f"{advice.because}\n{advice.fix}".strip(), first)
