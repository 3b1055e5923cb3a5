"""Findings as annotations of a job on GitHub, at the lines of code that they are about."""

from __future__ import annotations

from stepscope.findings import Finding
from stepscope.findings.report import Report
from stepscope.present._printable import printable
from stepscope.present.phrases import gain

__all__ = ["commands"]

_LEVELS = {"high": "warning", "medium": "warning", "low": "notice"}
_IN_MESSAGES = {"%": "%25", "\r": "%0D", "\n": "%0A"}
_IN_PROPERTIES = {**_IN_MESSAGES, ":": "%3A", ",": "%2C"}


def commands(report: Report) -> str:
    """One workflow command a finding, at its first location where it has one, and one for the verdict."""
    verdict = report.verdict
    said = f"{verdict.sentence} {verdict.promise}".strip()
    lines = [f"::notice title={_escaped(verdict.word, _IN_PROPERTIES)}::{_escaped(said, _IN_MESSAGES)}"]
    lines += [_annotation(finding) for finding in report.findings]
    return "".join(f"{line}\n" for line in lines)


def _annotation(finding: Finding) -> str:
    advice = finding.advice
    properties = [f"title={_escaped(f'{advice.title} ({gain(finding.gain)})', _IN_PROPERTIES)}"]
    if advice.locations:
        first = advice.locations[0]
        properties = [f"file={_escaped(first.file, _IN_PROPERTIES)}", f"line={first.line}", *properties]
    message = _escaped(f"{advice.because}\n{advice.fix}", _IN_MESSAGES)
    return f"::{_LEVELS[finding.severity]} {','.join(properties)}::{message}"


def _escaped(said: str, signs: dict[str, str]) -> str:
    return "".join(signs.get(sign, sign) for sign in printable(said, keep="\r\n"))
