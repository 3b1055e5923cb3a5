"""A report as a page of totals for a wiki, with exact times beside the summed ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stepscope import units
from stepscope.findings.report import Report
from stepscope.present._markdown import code, escaped, next_steps, rows
from stepscope.present._phrases import devices, passes, recorded_with, steps, worth
from stepscope.present.formats import format
from stepscope.tables import Table

__all__ = ["summary"]

MOST = 30
_NAME_WIDTH = 100


@format(ending=".summary.md", tables=("categories", "ops", "runtime_calls", "kernels", "devices"))
def summary(report: Report) -> str:
    """A page of Markdown with all totals: operators, runtime calls, kernels; for a wiki."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: Report) -> Iterator[str]:
    yield "# PyTorch profile summary"
    yield ""
    yield from _run(report)
    yield from _signals(report)
    yield from _categories(report)
    yield from _ops(report)
    yield from _calls(report)
    yield from _kernels(report)
    yield from _causes(report)
    yield from next_steps(report.next_steps)


def _run(report: Report) -> Iterator[str]:
    facts = report.facts
    yield f"- Trace: {code(facts.source)}, rank {facts.rank}"
    machine = ", ".join(filter(None, (devices(report), facts.cuda)))
    yield f"- Machine: {escaped(machine) or 'unknown'}"
    if report.passes:
        yield f"- Passes: {escaped('; '.join(filter(None, passes(report))))}"
        yield from (f"- {escaped(note)}" for note in (report.passes.step, *report.passes.notes) if note)
    else:
        yield f"- Steps: {steps(report.overview)}, {recorded_with(report)}"
    yield ""
    yield "Notes:"
    yield ""
    yield "- *Summed* times add up events of all threads and streams, so they can exceed wall-clock time."
    yield "- *Self* time is time in which an operator was the innermost one of its thread. It adds up."
    yield "- *Exclusive* time splits time between kernels that ran at once. It adds up to computing time."
    for doubt in report.trust:
        yield f"- {escaped(doubt.what)}: {escaped(doubt.explanation)}"
    yield ""


def _signals(report: Report) -> Iterator[str]:
    yield "## Key signals"
    yield ""
    verdict = report.verdict
    yield f"**{verdict.word.capitalize()}.** {escaped(f'{verdict.sentence} {verdict.promise}'.strip())}"
    yield ""
    for place, finding in enumerate(report.findings, 1):
        advice = finding.advice
        yield f"{place}. **{escaped(advice.title)}** ({worth(finding)}): {escaped(advice.because)}"
    if report.findings:
        yield ""


def _top(report: Report, name: str, order: str) -> list[Any]:
    table: Table[Any] | None = report.tables.get(name)
    found = sorted(table or (), key=lambda row: -(getattr(row, order) or 0))
    return found[:MOST]


def _short(name: str | None) -> str:
    """A name as code, long ones without their middle."""
    if name is None:
        return "(no name)"
    if len(name) > _NAME_WIDTH:
        half = _NAME_WIDTH // 2
        name = f"{name[:half]} … {name[-half:]}"
    return code(name)


def _section(title: str, heads: list[str], lines: list[list[str]], right: int) -> Iterator[str]:
    if lines:
        yield f"## {title}"
        yield ""
        yield from rows(heads, lines, right)
        yield ""


def _categories(report: Report) -> Iterator[str]:
    lines = [
        [code(row.category or "(none)"), units.count(row.events), units.duration(row.total_ns)]
        for row in _top(report, "categories", "total_ns")
        if row.phase == "X"
    ]
    yield from _section("Totals by category", ["category", "events", "summed"], lines, 2)
    devices = [
        [
            f"{row.device}, {row.window}",
            *map(units.duration, (row.window_ns, row.busy_ns, row.kernel_ns, row.memcpy_ns, row.idle_ns)),
        ]
        for row in report.tables.get("devices", ())
    ]
    heads = ["device, window", "window", "busy", "kernels", "copies", "idle"]
    yield from _section("Device time on the wall clock", heads, devices, 5)


def _ops(report: Report) -> Iterator[str]:
    lines = [
        [
            _short(row.name),
            units.count(row.calls),
            *map(units.duration, (row.host_total_ns, row.host_self_ns, row.device_total_ns)),
        ]
        for row in _top(report, "ops", "host_total_ns")
    ]
    yield from _section(
        "Top CPU operators", ["operator", "calls", "host total", "host self", "device"], lines, 4
    )


def _calls(report: Report) -> Iterator[str]:
    lines = [
        [_short(row.name), units.count(row.calls), units.duration(row.total_ns)]
        for row in _top(report, "runtime_calls", "total_ns")
    ]
    yield from _section("Top CUDA runtime calls", ["call", "calls", "summed"], lines, 2)


def _kernels(report: Report) -> Iterator[str]:
    lines = [
        [
            _short(row.name),
            units.count(row.calls),
            *map(units.duration, (row.total_ns, row.exclusive_ns, row.mean_ns)),
        ]
        for row in _top(report, "kernels", "total_ns")
    ]
    yield from _section("Top kernels", ["kernel", "calls", "summed", "exclusive", "mean"], lines, 4)


def _causes(report: Report) -> Iterator[str]:
    if report.findings:
        yield "## Likely causes and what to change"
        yield ""
    for finding in report.findings:
        places = ", ".join(code(str(location)) for location in finding.advice.locations)
        yield f"- **{escaped(finding.advice.title)}**{f' at {places}' if places else ''}"
        for line in finding.advice.fix.split("\n") if finding.advice.fix else ():
            yield f"  - {code(line)}" if line.strip() else ""
    if report.findings:
        yield ""
