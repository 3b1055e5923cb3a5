"""A check as JUnit XML: a test a budget, so that every CI can show it."""

from __future__ import annotations

from xml.etree import ElementTree as ET

from stepscope.compare.check import CheckResult
from stepscope.patterns import late_pattern
from stepscope.present._printable import printable
from stepscope.present.check._phrases import headline, told, why
from stepscope.present.formats import format

__all__ = ["junit"]

_FORBIDDEN = late_pattern("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What no XML can hold."""


@format(ending=".xml")
def junit(check: CheckResult) -> str:
    """JUnit XML: a test per budget, failed if the budget is broken or cannot be judged."""
    failed = check.failed
    counts = {
        "tests": str(len(check.outcomes)),
        "failures": str(len(failed)),
        "errors": "0",
        "skipped": "0",
    }
    suites = ET.Element("testsuites", counts)
    suite = ET.SubElement(suites, "testsuite", {"name": "stepscope check", **counts})
    for outcome in check.outcomes:
        named = {"classname": _clean(f"stepscope.{check.side.name}"), "name": _clean(outcome.budget.text)}
        case = ET.SubElement(suite, "testcase", {**named, "time": "0"})
        if outcome in failed:
            element = ET.SubElement(case, "failure", {"message": _clean(outcome.said), "type": outcome.state})
            element.text = _clean(told(outcome), outcome.budget.where, *why(check))
        else:
            ET.SubElement(case, "system-out").text = _clean(told(outcome))
    ET.SubElement(suite, "system-out").text = _clean(headline(check), *why(check))
    ET.indent(suites)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(suites, encoding="unicode") + "\n"


def _clean(*lines: str) -> str:
    """Lines that XML can hold."""
    return _FORBIDDEN.sub("�", "\n".join(map(printable, lines)))
