"""A report in Markdown, for a pull request or a wiki."""

from __future__ import annotations

from collections.abc import Iterator

from stepscope import units
from stepscope.findings import Finding
from stepscope.findings.report import Report
from stepscope.present._markdown import code, code_block, escaped, next_steps, rows
from stepscope.present._phrases import (
    PARTS,
    headline,
    insides,
    not_judged,
    only_ranks,
    served,
    sharing,
    worth,
)
from stepscope.present._ranks import rank_lines, run_figures, the_rest
from stepscope.present.formats import format

__all__ = ["markdown"]

_SIGNS = {"pass": "✓", "fail": "✗", "info": "·", "not known": "?"}


@format(ending=".md")
def markdown(report: Report) -> str:
    """A page of Markdown, for a pull request or a wiki."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: Report) -> Iterator[str]:
    verdict = report.verdict
    yield f"# {verdict.word.capitalize()}: {escaped(report.facts.source)}"
    yield ""
    yield escaped(" · ".join(headline(report)))
    yield ""
    if report.passes and (report.passes.step or report.passes.notes):
        yield escaped(" ".join(filter(None, (report.passes.step, *report.passes.notes))))
        yield ""
    yield f"**{escaped(verdict.sentence)}** {escaped(verdict.promise)}".rstrip()
    yield ""
    yield from _ranks(report)
    yield from _step(report)
    yield from _pictures(report)
    if report.findings:
        yield "## Findings"
        yield ""
        yield from _overview_of_findings(report)
        for place, finding in enumerate(report.findings, 1):
            yield from _finding(report, place, finding)
    yield from _trust(report)
    yield from _checklist(report)
    yield from _not_judged(report)
    yield from next_steps(report.next_steps)


def _checklist(report: Report) -> Iterator[str]:
    if report.pictures and not report.checklist:
        return
    yield "## Checklist"
    yield ""
    checks = ([_SIGNS[one.state], one.name, escaped(one.value), one.target] for one in report.checklist)
    yield from rows(["", "check", "this trace", "target"], checks)
    yield ""


def _pictures(report: Report) -> Iterator[str]:
    for picture in report.pictures:
        if picture.title:
            yield f"## {escaped(picture.title)}"
            yield ""
            yield escaped(" ".join(picture.sentences))
            yield ""
        cells = ([escaped(bar.name), bar.value, units.share(bar.share)] for bar in picture.bars)
        yield from rows([picture.heading, "size", "share"], cells, right=2)
        yield ""


def _step(report: Report) -> Iterator[str]:
    overview = report.overview
    whole = sum(overview.parts.values())
    if not overview.steps and report.pictures:
        return
    recorded = units.duration(overview.step_ns)
    if report.passes and report.passes.measured:
        yield f"Mean step: **{report.passes.measured.said}** without the profiler, {recorded} as recorded."
    else:
        low, high = overview.unprofiled_step_ns
        yield f"Mean step: **{recorded}** as recorded, {units.between(low, high)} unprofiled."
    yield ""
    if whole:
        shown = [(PARTS[part], ns) for part, ns in overview.parts.items() if ns]
        cells = ([name, units.duration(ns), units.share(ns / whole)] for name, ns in shown)
        yield from rows(["part of the step", "time", "share"], cells, right=2)
        yield ""
    if overview.phases:
        turn = -1 if overview.pace_set_by == "device" else 1  # what sets the pace comes first
        heads = ["share of the step on the host", "share of device work"][::turn]
        cells = (
            [one.phase, *[units.share(one.share), units.share(one.device_share)][::turn]]
            for one in overview.phases
        )
        yield from rows(["phase", *heads], cells, right=2)
        yield ""
    if overview.served:
        yield f"Serving: {'; '.join(map(escaped, served(overview)))}."
        yield ""


def _ranks(report: Report) -> Iterator[str]:
    if report.run is None:
        return
    run = report.run
    yield f"Ranks: {escaped('; '.join(run_figures(run)))}."
    yield ""
    shown, rest = the_rest(rank_lines(run), run)
    cells = (
        [
            str(line.rank),
            escaped(line.host),
            *map(units.duration, (line.step_ns, line.own_ns, line.wait_ns, line.transfer_ns)),
            units.duration(line.late_ns) if line.late_ns else "",
            escaped(line.cause),
        ]
        for line in shown
    )
    heads = ["rank", "host", "step", "own time", "exposed wait", "exposed transfer", "late by", "because of"]
    if shown:
        yield from rows(heads, cells)
        yield ""
    for note in filter(None, (rest, *run.failed, *run.notes)):
        yield escaped(note if note.endswith(".") else f"{note}.")
        yield ""


def _overview_of_findings(report: Report) -> Iterator[str]:
    cells = (
        [
            str(place),
            escaped(finding.advice.title),
            worth(finding),
            units.shares(finding.gain.low_share, finding.gain.high_share) if finding.gain.high_ns else "–",
            finding.severity,
        ]
        for place, finding in enumerate(report.findings, 1)
    )
    yield from rows(["#", "finding", "gain", "share of the step", "severity"], cells)
    yield ""


def _finding(report: Report, place: int, finding: Finding) -> Iterator[str]:
    advice = finding.advice
    yield f"### {place}. {escaped(advice.title)}"
    yield ""
    holds = f"({only_ranks(finding)}) " if finding.ranks else ""
    yield escaped(f"{holds}{advice.because}")
    yield ""
    for location in advice.locations:
        note = f": {escaped(location.note)}" if location.note else ""
        yield f"- {code(f'{location.file}:{location.line}')} {escaped(location.function)}{note}"
        for inside in insides(location):
            yield f"  - → {code(inside)}"
    if advice.locations:
        yield ""
    if advice.fix:
        yield from code_block(advice.fix)
        yield ""
    yield f"How to see that it helped: {escaped(advice.check)}"
    yield ""
    more = f"More: {code(f'stepscope explain {finding.id}')}."
    if finding.shares_time_with:
        more += f" This {sharing(report, finding)}."
    yield more
    yield ""


def _trust(report: Report) -> Iterator[str]:
    if not report.trust:
        return
    yield "## What could distort these numbers"
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
