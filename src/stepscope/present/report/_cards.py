"""The findings: what each gains, as a chart and as cards."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stepscope import units
from stepscope.findings import Finding, Location
from stepscope.findings.report import Report
from stepscope.present import _phrases as phrases
from stepscope.present._charts import axis, interval, ticks
from stepscope.present._markup import Markup, el
from stepscope.present._pieces import badge, code, figure, grid, panel, title_of, worded
from stepscope.present.report._words import linked

__all__ = ["findings"]


More = Callable[[Finding], Markup]
"""What leads on from the card of a finding."""


def _command(finding: Finding) -> Markup:
    return el("span", "More: ", el("code", f"stepscope explain {finding.id}"))


def findings(report: Report, more: More = _command) -> Markup:
    """All findings, the largest gain first; below each what leads on from it."""
    found = report.findings
    cards = [
        _card(rank, finding, more(finding), phrases.sharing(report, finding))
        for rank, finding in enumerate(found, 1)
    ]
    nothing = el("p", "No rule found anything to fix.", class_="panel")
    return el(
        "section",
        el("h2", f"Findings ({units.count(len(found))})" if found else "Findings"),
        _gains(found) if any(finding.gain.high_ns for finding in found) else None,
        el("div", *cards, class_="cards") if cards else nothing,
        id="findings",
    )


def _gain(finding: Finding) -> str:
    """What a finding gains, of the step without the profiler: `−28 … −36 ms (43.2–56.1 %)`."""
    of = finding.gain
    if not of.high_ns:
        return phrases.worth(finding)
    return f"{phrases.worth(finding)} ({units.shares(of.low_share, of.high_share)})"


def _gains(found: Sequence[Finding]) -> Markup:
    """For each finding the range of its gain; all on one scale."""
    scale = ticks(max(finding.gain.high_share for finding in found))
    top = scale[-1]
    cells: list[Markup] = []
    for rank, finding in enumerate(found, 1):
        gain = finding.gain
        title = worded(f"{rank}. {finding.advice.title}")
        label = (badge(finding.severity, finding.severity), el("a", title, href=f"#{_anchor(finding)}"))
        says = f"{finding.advice.title}, {finding.severity}: {_gain(finding)}"
        cells += (
            el("div", *label, class_="label"),
            interval(gain.low_share, gain.high_share, top, finding.severity, says),
            el("div", _gain(finding), class_="number value small"),
        )
    marks = [(tick / top, f"{tick * 100:g} %") for tick in scale]
    cells.append(el("div", axis(marks), class_="axis"))
    note = linked("Lower and upper bound of each gain, as a share of the unprofiled step.")
    return panel("What each fix should gain", el("div", *cells, class_="gains"),
                 el("p", note, class_="note small muted"))  # fmt: skip


def _card(rank: int, finding: Finding, more: Markup, sharing: str) -> Markup:
    advice = finding.advice
    severity = finding.severity
    heading = (
        el("span", f"#{rank}", class_="rank"),
        el("h3", worded(advice.title)),
        badge(severity, severity),
        el("a", badge(advice.certainty, "other", plain=True), href="#word-certainty", class_="word"),
        badge("risk", "high", plain=True) if advice.risk else None,
        badge(phrases.only_ranks(finding), "other", plain=True) if finding.ranks else None,
        el("span", _gain(finding), class_="gain"),
    )
    fix = el("div", el("h4", "What to change"), code(advice.fix, f"the fix of finding {rank}"))
    foot = (more, el("span", f"This {sharing}.") if sharing else None)
    return el(
        "article",
        el("div", *heading, class_="heading"),
        el("p", worded(advice.because), class_="because"),
        _places(advice.locations) if advice.locations else None,
        fix if advice.fix else None,
        el("div", el("h4", "How to see that it helped"), el("p", worded(advice.check), class_="check")),
        _evidence(finding) if advice.evidence else None,
        el("p", *foot, class_="foot small muted"),
        class_=f"card {severity}",
        id=_anchor(finding),
    )


def _places(locations: Sequence[Location]) -> Markup:
    items = [
        el(
            "li",
            el("code", str(place)),
            f" ({place.note})" if place.note else None,
            *(el("div", "→ ", el("code", inside), class_="small") for inside in phrases.insides(place)),
        )
        for place in locations
    ]
    return el("div", el("h4", "Where"), el("ul", *items, class_="places"))


def _evidence(finding: Finding) -> Markup:
    rows = [
        (el("span", title_of(name), title=name), el("span", figure(name, value), title=str(value)))
        for name, value in finding.advice.evidence.items()
    ]
    table = grid((("figure", ""), ("value", "number")), rows, "evidence")
    return el("details", el("summary", "Evidence"), table)


def _anchor(finding: Finding) -> str:
    return f"finding-{finding.id}"
