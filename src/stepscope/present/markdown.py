"""A report in Markdown, for a pull request or a wiki."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from stepscope import units
from stepscope.findings import Finding
from stepscope.findings.report import Report
from stepscope.present._printable import printable
from stepscope.present.phrases import PARTS, gain, headline, not_judged, sharing

__all__ = ["code", "escaped", "rows", "text"]

_SIGNS = {"pass": "✓", "fail": "✗", "not known": "?"}


def text(report: Report) -> str:
    """The report as a page of Markdown."""
    return "\n".join(_lines(report)) + "\n"


def escaped(said: str) -> str:
    """Text in which nothing is markup: names in a profile are anybody's."""
    one_line = printable(" ".join(said.split()))
    for sign in "\\`*_[]<>|#":
        one_line = one_line.replace(
            sign, f"\\{sign}" if sign not in "<>" else {"<": "&lt;", ">": "&gt;"}[sign]
        )
    return one_line


def code(said: str) -> str:
    """A name or a short piece of code inside a line."""
    one_line = printable(" ".join(said.split())).replace("|", "\\|")
    fence = "`" * (1 + max((len(run) for run in _runs(one_line)), default=0))
    padding = " " if fence != "`" else ""
    return f"{fence}{padding}{one_line}{padding}{fence}"


def _runs(said: str) -> list[str]:
    """The runs of back-ticks in a text."""
    return [run for run in "".join(sign if sign == "`" else " " for sign in said).split() if run]


def rows(heads: Iterable[str], lines: Iterable[Iterable[str]], right: int = 0) -> Iterator[str]:
    """A table; its last `right` columns hold numbers. Cells are Markdown already."""
    names = list(heads)
    yield f"| {' | '.join(names)} |"
    yield f"|{'|'.join('---' if place < len(names) - right else '---:' for place in range(len(names)))}|"
    for line in lines:
        yield f"| {' | '.join(line)} |"


def _lines(report: Report) -> Iterator[str]:
    verdict = report.verdict
    yield f"# {verdict.word.capitalize()}: {escaped(report.facts.source)}"
    yield ""
    yield escaped(" · ".join(headline(report)))
    yield ""
    yield f"**{escaped(verdict.sentence)}** {escaped(verdict.promise)}".rstrip()
    yield ""
    yield from _step(report)
    if report.findings:
        yield "## Findings"
        yield ""
        yield from _overview_of_findings(report)
        for place, finding in enumerate(report.findings, 1):
            yield from _finding(report, place, finding)
    yield from _trust(report)
    yield "## Checklist"
    yield ""
    checks = ([_SIGNS[one.state], one.name, escaped(one.value), one.target] for one in report.checklist)
    yield from rows(["", "point", "this trace", "wanted"], checks)
    yield ""
    yield from _not_judged(report)
    yield from _next(report)


def _step(report: Report) -> Iterator[str]:
    overview = report.overview
    whole = sum(overview.parts.values())
    low, high = overview.unprofiled_step_ns
    recorded = units.duration(overview.step_ns)
    yield f"Mean step: **{recorded}** as recorded, {units.between(low, high)} unprofiled."
    yield ""
    if whole:
        shown = [(PARTS[part], ns) for part, ns in overview.parts.items() if ns]
        cells = ([name, units.duration(ns), units.share(ns / whole)] for name, ns in shown)
        yield from rows(["the step goes to", "time", "share"], cells, right=2)
        yield ""
    if overview.phases:
        cells = (
            [one.phase, units.share(one.share), units.share(one.device_share)] for one in overview.phases
        )
        yield from rows(["phase", "of the step", "of device work"], cells, right=2)
        yield ""


def _overview_of_findings(report: Report) -> Iterator[str]:
    cells = (
        [
            str(place),
            escaped(finding.advice.title),
            "risk" if finding.advice.risk else gain(finding.gain),
            f"{units.share(finding.gain.low_share)} … {units.share(finding.gain.high_share)}",
            finding.severity,
        ]
        for place, finding in enumerate(report.findings, 1)
    )
    yield from rows(["", "finding", "gain", "of the step", "severity"], cells)
    yield ""


def _finding(report: Report, place: int, finding: Finding) -> Iterator[str]:
    advice = finding.advice
    yield f"### {place}. {escaped(advice.title)}"
    yield ""
    yield escaped(advice.because)
    yield ""
    for location in advice.locations:
        note = f": {escaped(location.note)}" if location.note else ""
        yield f"- {code(f'{location.file}:{location.line}')} {escaped(location.function)}{note}"
    if advice.locations:
        yield ""
    fence = "`" * max(3, 1 + max((len(run) for run in _runs(advice.fix)), default=0))
    yield f"{fence}text"
    yield printable(advice.fix, keep="\n\t")
    yield fence
    yield ""
    yield f"Check: {escaped(advice.check)} ({code(finding.id)})"
    if finding.shares_time_with:
        yield f"It {sharing(report, finding)}."
    yield ""


def _trust(report: Report) -> Iterator[str]:
    if not report.trust:
        return
    yield "## What could bend these figures"
    yield ""
    for doubt in report.trust:
        effect = f" (up to {units.share(doubt.effect_share)} of {doubt.of})" if doubt.effect_share else ""
        yield f"- **{escaped(doubt.what)}**{effect}: {escaped(doubt.explanation)} {escaped(doubt.advice)}"
    yield ""


def _not_judged(report: Report) -> Iterator[str]:
    if report.not_run:
        yield "## Not judged"
        yield ""
        for why, rules in not_judged(report):
            yield f"- {', '.join(map(code, rules))}: {escaped(why)}"
        yield ""


def _next(report: Report) -> Iterator[str]:
    if report.next_steps:
        yield "## Next"
        yield ""
        for place, step in enumerate(report.next_steps, 1):
            command = f" {code(step.command)}" if step.command else ""
            yield f"{place}. {escaped(step.text)}{command}"
