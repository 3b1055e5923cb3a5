"""Findings as annotations of a job on GitHub, at the lines of code that they are about."""

from __future__ import annotations

from stepscope.findings import Finding, Location
from stepscope.findings.report import Report
from stepscope.present._printable import printable
from stepscope.present.phrases import gain

__all__ = ["command", "commands"]

_LEVELS = {"high": "warning", "medium": "warning", "low": "notice"}
_IN_MESSAGES = {"%": "%25", "\r": "%0D", "\n": "%0A"}
_IN_PROPERTIES = {**_IN_MESSAGES, ":": "%3A", ",": "%2C"}


def commands(report: Report) -> str:
    """One workflow command a finding, at its first location where it has one, and one for the verdict."""
    verdict = report.verdict
    said = f"{verdict.sentence} {verdict.promise}".strip()
    lines = [command("notice", verdict.word, said), *(_annotation(finding) for finding in report.findings)]
    return "".join(f"{line}\n" for line in lines)


def command(level: str, title: str, message: str, place: Location | None = None) -> str:
    """One workflow command: an annotation of the job, or of a line of code."""
    properties = [f"title={_escaped(title, _IN_PROPERTIES)}"]
    if place:
        properties = [f"file={_escaped(place.file, _IN_PROPERTIES)}", f"line={place.line}", *properties]
    return f"::{level} {','.join(properties)}::{_escaped(message, _IN_MESSAGES)}"


def _annotation(finding: Finding) -> str:
    advice = finding.advice
    title = f"{advice.title} ({gain(finding.gain)})"
    first = advice.locations[0] if advice.locations else None
    return command(_LEVELS[finding.severity], title, f"{advice.because}\n{advice.fix}", first)


def _escaped(said: str, signs: dict[str, str]) -> str:
    return "".join(signs.get(sign, sign) for sign in printable(said, keep="\r\n"))
