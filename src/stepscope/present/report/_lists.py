"""What stands below the findings: the checklist, what was not judged, and what to do next."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.findings.report import ChecklistItem, NextStep, NotRun
from stepscope.present._markup import Markup, el
from stepscope.present._pieces import badge, code, grid
from stepscope.present.report._words import linked

__all__ = ["checklist", "next_steps", "not_judged"]

_STATES = {"pass": "pass", "fail": "high", "info": "other", "not known": "other"}


def checklist(checks: Sequence[ChecklistItem]) -> Markup:
    """The points that people are taught, each with what is true of this trace."""
    rows = [
        (badge(check.state, _STATES[check.state]), linked(check.name), check.value, check.target)
        for check in checks
    ]
    heads = (("state", ""), ("check", "strong"), ("this trace", ""), ("target", "muted"))
    table = el("div", grid(heads, rows, "stack"), class_="panel")
    return el("section", el("h2", "Checklist"), table, id="checklist")


def not_judged(missing: Sequence[NotRun]) -> Markup:
    """The rules that had too little to go by, and how to record it."""
    rows = [
        (el("code", one.id), one.reason, el("code", one.record) if one.record else None) for one in missing
    ]
    heads = (("rule", ""), ("why", ""), ("record with", ""))
    table = el("div", grid(heads, rows, "stack"), class_="panel")
    return el("section", el("h2", "Not judged"), table, id="not-judged")


def next_steps(steps: Sequence[NextStep]) -> Markup:
    """What to do next, in order, with what to type."""
    items = [
        el("li", one.text, code(one.command, f"the command of step {n}") if one.command else None)
        for n, one in enumerate(steps, 1)
    ]
    return el("section", el("h2", "Next steps"), el("ol", *items, class_="panel next"), id="next")
