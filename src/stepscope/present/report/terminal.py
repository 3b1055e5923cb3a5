"""A report for the terminal: readable without color and at 80 columns."""

from __future__ import annotations

from collections.abc import Iterator

from stepscope import units
from stepscope.findings import Finding
from stepscope.findings.report import Overview, Report, RunFacts
from stepscope.present._lines import Line, broken, fitted, printed, styled, unbroken, wrapped
from stepscope.present._phrases import (
    PARTS,
    busy_with,
    headline,
    insides,
    not_judged,
    only_ranks,
    phase_shares,
    served,
    sharing,
    unprofiled,
    worth,
)
from stepscope.present._ranks import RankLine, rank_lines, run_figures, the_rest
from stepscope.present.formats import format

__all__ = ["terminal"]

SHOWN = 6
"""How many findings are shown in full; those that matter are, whatever their number."""
_MARGIN = 4
_GLYPHS = {
    "kernel": ("█", "green"),
    "memcpy": ("▓", "yellow"),
    "memset": ("▓", "yellow"),
    "communication": ("▚", "magenta"),
    "runtime": ("▒", "cyan"),
    "dataloader": ("≡", "red"),
    "cpu": ("░", "blue"),
    "other": ("·", "bright_black"),
}
_LOOKED_UP = ("unprofiled", "exposed", "starved", "drained")
_SEVERITY = {"high": "bold red", "medium": "yellow", "low": "bright_black"}
_STATE = {
    "fail": ("✗", "red"),
    "pass": ("✓", "green"),
    "info": ("·", ""),
    "not known": ("?", "bright_black"),
}
_TARGETS = {"fail": "target", "pass": "target", "info": "usual"}
_WORD_STYLES = {"healthy": "bold black on green", "unknown": "bold black on white"}


@format(ending=".txt")
def terminal(report: Report, *, width: int, color: bool) -> str:
    """Text for the terminal, readable without color and at 80 columns.

    No line is longer than the width, except commands and code: those are for copying.
    """
    return printed(_lines(report, fitted(width)), color=color)


def _lines(report: Report, width: int) -> Iterator[Line]:
    yield from wrapped(" · ".join(headline(report)), width)
    yield from _doubts(report, width)
    if report.passes and (notes := " ".join(filter(None, (report.passes.step, *report.passes.notes)))):
        yield from wrapped(notes, width, style="bright_black")
    yield styled()
    yield from _verdict(report, width)
    yield styled()
    if report.run:
        yield from _ranks(report.run, width)
        yield styled()
    yield from _step(report, width)
    alone = not report.overview.steps
    if alone:
        yield from _pictures(report, width)
    yield from _words(report, width)
    shown = [
        finding for place, finding in enumerate(report.findings) if place < SHOWN or finding.severity != "low"
    ]
    for finding in shown:
        yield styled()
        yield from _finding(report, finding, width)
    lesser = [finding for finding in report.findings if finding not in shown]
    if lesser:
        said = ", ".join(f"{finding.id} ({worth(finding)})" for finding in lesser)
        yield styled()
        yield from wrapped(f"smaller findings: {said}", width, indent=1)
    if report.pictures and not alone:
        yield styled()
        yield from _pictures(report, width)
    yield from _checklist(report, width)
    yield from _not_judged(report, width)
    yield from _next(report, width)


def _doubts(report: Report, width: int) -> Iterator[Line]:
    """What could distort the numbers by 1 % or more, or by an unknown amount."""
    told = [
        f"{doubt.what} ({units.share(doubt.effect_share)} of {doubt.of})"
        if doubt.effect_share
        else doubt.what
        for doubt in report.trust
        if doubt.effect_share is None or doubt.effect_share >= 0.01
        # The first line has said what was recorded and what that cost.
        if doubt.what not in ("profiler options", "missing record")
        if not any(f"({doubt.what.partition(' file')[0]}," in one for one in report.facts.joined)
        # What a file of a kind that has no steps lacks is what the verdict says.
        if report.overview.steps or not doubt.what.endswith(" file") or doubt.what == "odd file"
    ]
    if told:
        yield from wrapped(f"caution: {', '.join(dict.fromkeys(told))}", width, style="yellow")


def _verdict(report: Report, width: int) -> Iterator[Line]:
    verdict = report.verdict
    badge = f" {verdict.word.upper()} "
    style = _WORD_STYLES.get(verdict.word, "bold white on red")
    indent = len(badge) + 2
    said = broken(verdict.sentence, width - indent) or [""]
    yield styled(" ", (badge, style), " ", (said[0], "bold"))
    for line in said[1:]:
        yield styled(" " * indent, (line, "bold"))
    yield from wrapped(verdict.promise, width, indent=indent)


def _step(report: Report, width: int) -> Iterator[Line]:
    overview = report.overview
    whole = sum(overview.parts.values())
    if whole:
        room = 36
        bar, drawn, ended = [], 0, 0
        for part, ns in overview.parts.items():
            ended += ns
            cells = round(ended / whole * room) - drawn
            drawn += cells
            bar.append((_GLYPHS[part][0] * cells, _GLYPHS[part][1]))
        yield styled(" step     ", *bar, f"  {_times(report)}")
        shares = [
            unbroken(f"{_GLYPHS[part][0]} {PARTS[part]} {units.share(ns / whole)}")
            for part, ns in overview.parts.items()
            if ns / whole >= 0.0005
        ]
        yield from wrapped("   ".join(shares), width, indent=10)
    for place, (of, phases) in enumerate(phase_shares(overview)):
        said = [unbroken(f"{'data' if name == 'dataloader' else name} {share}") for name, share in phases]
        told = f"{unbroken(of)}: {' · '.join(said)}"
        yield from wrapped(told, width, indent=10, first="" if place else " phases")
    if overview.served:
        yield from wrapped(" · ".join(served(overview)), width, indent=10, first=" serving")
    figures = _figures(overview)
    if figures:
        yield from wrapped(" · ".join(map(unbroken, figures)), width, indent=10, first=" device")


_PICTURE_BAR = 14


def _pictures(report: Report, width: int) -> Iterator[Line]:
    """What is shown beside the step: bars below one another."""
    for picture in report.pictures:
        if not picture.bars:
            continue
        if picture.title:
            if picture is not report.pictures[0]:
                yield styled()
            yield styled((f" {picture.title}", "bold"))
            yield from wrapped(" ".join(picture.sentences), width, indent=_MARGIN)
        yield from wrapped(picture.heading, width, indent=_MARGIN, style="bright_black")
        for bar in picture.bars:
            drawn = "█" * round(bar.share * _PICTURE_BAR)
            first = f"    {bar.value:>9} {units.share(bar.share):>7}  {drawn:<{_PICTURE_BAR}} "
            room = max(10, width - len(first))
            name = bar.name if len(bar.name) <= room else "…" + bar.name[len(bar.name) - room + 1 :]
            yield styled(first, name)


_OF_RANKS = (("█", "green"), ("░", "yellow"), ("▚", "magenta"))
"""Own time, waiting for others, transfers."""
_RANK_BAR = 20


def _ranks(run: RunFacts, width: int) -> Iterator[Line]:
    """The ranks, those first that the others wait for."""
    yield from wrapped(" · ".join(map(unbroken, run_figures(run))), width, indent=10, first=" ranks")
    lines = rank_lines(run)
    shown, rest = the_rest(lines, run)
    longest = max((line.step_ns for line in lines), default=0)
    for line in shown:
        yield from _rank(line, longest, width)
    yield from wrapped(rest, width, indent=10)
    if shown:
        keys = (("own time", 0), ("exposed wait for others", 1), ("exposed transfer", 2))
        said = "   ".join(unbroken(f"{_OF_RANKS[place][0]} {name}") for name, place in keys)
        yield from wrapped(said, width, indent=10)
    for note in (*run.failed, *run.notes):
        yield from wrapped(note, width, indent=10, style="yellow")


def _rank(line: RankLine, longest: float, width: int) -> Iterator[Line]:
    bar, drawn, ended = [], 0, 0.0
    for time, (glyph, style) in zip((line.own_ns, line.wait_ns, line.transfer_ns), _OF_RANKS, strict=True):
        ended += time
        cells = round(ended / longest * _RANK_BAR) - drawn if longest else 0
        drawn += cells
        bar.append((glyph * cells, style))
    said = f"waits {units.duration(line.wait_ns)}"
    if line.late_ns:
        said = f"{units.duration(line.late_ns)} late: {line.cause}"
        if line.last_share:
            said += f" (last at {units.share(line.last_share)} of its collectives)"
    first = f" {f'rank {line.rank}':>9} "
    text = broken(said, width - len(first) - _RANK_BAR - 2)
    yield styled(first, *bar, " " * (_RANK_BAR - drawn), f"  {text[0] if text else ''}")
    for more in text[1:]:
        yield styled(" " * (len(first) + _RANK_BAR + 2), more)


def _words(report: Report, width: int) -> Iterator[Line]:
    """Where to look up the words that this report uses and that not everybody knows."""
    checks = " ".join(check.name for check in report.checklist)
    said = f"{report.verdict.sentence} {_times(report)} {checks}".lower()
    used = [word for word in _LOOKED_UP if word in said]
    if used:
        told = f"{', '.join(used)}: `stepscope explain WORD` says what it means"
        yield from wrapped(told, width, indent=10, first=" words", style="bright_black")


def _times(report: Report) -> str:
    overview = report.overview
    low = overview.unprofiled_step_ns[0]
    said = units.duration(overview.step_ns)
    measured = report.passes is not None and report.passes.measured is not None
    if not measured and overview.step_ns >= 1.03 * overview.steady_step_ns:
        said += f", {units.duration(overview.steady_step_ns)} without the first"
    if measured or (low and overview.steady_step_ns / low >= 1.03):
        said += f", {unprofiled(report)} unprofiled"
    return said


def _figures(overview: Overview) -> list[str]:
    figures = []
    busiest = "the busiest " if overview.devices_with_work > 1 else ""
    if overview.utilization_share is not None:
        figures.append(f"{busy_with(overview)} {units.share(overview.utilization_share)}")
    if overview.starved_share is not None:
        figures.append(f"{busiest}waits for the host {units.share(overview.starved_share)}")
    if overview.kernels_per_step:
        figures.append(f"{units.counted(overview.kernels_per_step, 'kernel')} per step")
    if overview.peak_memory_bytes is not None:
        most = f" of {units.size(overview.memory_bytes)}" if overview.memory_bytes else ""
        figures.append(f"memory {units.size(overview.peak_memory_bytes)}{most}")
    if overview.mfu_share is not None:
        figures.append(f"MFU {units.share(overview.mfu_share)}")
    return figures


def _finding(report: Report, finding: Finding, width: int) -> Iterator[Line]:
    advice = finding.advice
    number = f"{report.findings.index(finding) + 1:>2}  "
    right = f"{worth(finding)}  ({finding.severity})"
    space = width - len(number) - len(advice.title) - len(right)
    style = _SEVERITY[finding.severity]
    if space >= 2:
        yield styled((number, "bold"), (advice.title, "bold"), " " * space, (right, style))
    else:
        yield styled((number, "bold"), (advice.title, "bold"))
        yield styled((right.rjust(width), style))
    yield from wrapped(only_ranks(finding), width, indent=_MARGIN, style="bright_black")
    yield from wrapped(advice.because, width, indent=_MARGIN)
    for place in advice.locations:
        note = f"  ({place.note})" if place.note else ""
        yield styled(" " * _MARGIN, (f"{place.file}:{place.line}", "cyan"), f"  {place.function}{note}")
        for inside in insides(place):
            yield styled(" " * (_MARGIN + 2), "→ ", (inside, "cyan"))
    for start, line in zip(_arrows(), advice.fix.split("\n") if advice.fix else (), strict=False):
        yield styled(" " * _MARGIN, start, (line, "green"))
    yield from wrapped(sharing(report, finding), width, indent=_MARGIN, style="bright_black")


def _arrows() -> Iterator[str]:
    yield "→ "
    while True:
        yield "  "


def _checklist(report: Report, width: int) -> Iterator[Line]:
    if report.checklist:
        yield styled()
    by_state: dict[str, list[str]] = {}
    for check in report.checklist:
        value = (
            "" if check.state == "not known" else f" {check.value} ({_TARGETS[check.state]}: {check.target})"
        )
        by_state.setdefault(check.state, []).append(f"{check.name}{value}")
    for state, (sign, style) in _STATE.items():
        if state in by_state:
            said = " · ".join(by_state[state])
            yield from wrapped(said, width, indent=_MARGIN, first=f" {sign}", style=style)


def _not_judged(report: Report, width: int) -> Iterator[Line]:
    judged = [f"{', '.join(rules)} ({why})" for why, rules in not_judged(report)]
    if judged:
        yield styled()
        yield from wrapped(f"not judged: {' · '.join(judged)}", width, indent=1, style="bright_black")


def _next(report: Report, width: int) -> Iterator[Line]:
    if report.next_steps:
        yield styled()
        yield styled((" next steps", "bold"))
    for step in report.next_steps:
        yield from wrapped(step.text, width, indent=_MARGIN)
        if step.command:
            yield styled(" " * (_MARGIN + 2), (step.command, "green"))
