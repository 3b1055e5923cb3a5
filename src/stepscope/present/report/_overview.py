"""The top of the page: what was recorded and how, the verdict, and where the mean step goes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from stepscope import units
from stepscope.analyses.trust import Caveat
from stepscope.findings.facts import DeviceFacts, Facts
from stepscope.findings.report import Overview, Report, Verdict
from stepscope.present._charts import Piece, bar, stacked
from stepscope.present._markup import Markup, el
from stepscope.present._phrases import PARTS, busy_with, inflation, passes, served, steps, unprofiled, world
from stepscope.present._pieces import COLOURS, badge, panel
from stepscope.present.report._words import linked

__all__ = ["facts", "head", "parts", "phases", "step", "tiles", "verdict"]

_WORDS = {
    "host-bound": "host",
    "input-bound": "input",
    "sync-bound": "calls",
    "communication-bound": "communication",
    "copy-bound": "input",
    "device-bound": "device",
    "memory-bandwidth-bound": "device",
    "compute-bound": "device",
    "compiling": "host",
    "imbalanced": "communication",
    "healthy": "pass",
}
"""The verdict has the color of what limits the program."""
_RECORDED = {"stacks": "stacks", "shapes": "shapes", "memory": "memory", "modules": "modules"}


def facts(report: Report) -> Markup:
    """What was recorded, with what, and how far it can be trusted."""
    known = report.facts
    rows = [
        ("Devices", _devices(report)),
        ("Runtime", known.cuda),
        ("Rank", world(report) if report.passes else _rank(known)),
        ("Steps", steps(report.overview)),
        ("From where", _passes(report)),
        ("Recorded", _recorded(known)),
        ("Joined with", ", ".join(known.joined)),
        ("Cost of recording", _cost(report)),
        ("Trust", _doubts(report.trust)),
    ]
    told = [one for name, value in rows if value for one in (el("dt", name), el("dd", value))]
    return el("dl", *told, class_="facts")


def head(report: Report, links: Mapping[str, str]) -> Markup:
    """What was recorded, with links to the sections."""
    nav = el("nav", *(el("a", text, href=f"#{to}") for to, text in links.items()), aria_label="Sections")
    content = (
        el("p", "stepscope report", class_="brand"),
        el("h1", report.facts.source),
        facts(report),
        nav,
    )
    return el("header", el("div", *content, class_="wide"), class_="top")


def _devices(report: Report) -> str:
    devices = report.facts.devices
    alike = Counter(_device(device) for device in devices)
    named = [text if n == 1 else f"{units.count(n)} × {text}" for text, n in alike.items()]
    used = report.overview.devices_with_work
    if 0 < used < len(devices):
        named.append(f"{used} of {len(devices)} with work in this profile")
    return ", ".join(named) or "the profile describes none"


def _device(device: DeviceFacts) -> str:
    size = units.size(device.memory_bytes) if device.memory_bytes else ""
    cores = f"{device.multiprocessors} multiprocessors" if device.multiprocessors else ""
    more = ", ".join(filter(None, (size, cores)))
    name = device.name or "unnamed device"
    return f"{name} ({more})" if more else name


def _rank(facts: Facts) -> str:
    if facts.world_size is None:
        return ""
    backend = f", {facts.backend}" if facts.backend else ""
    return f"{facts.rank} of {facts.world_size}{backend}"


def _recorded(facts: Facts) -> str:
    there = [text for name, text in _RECORDED.items() if getattr(facts, name)]
    missing = [text for name, text in _RECORDED.items() if not getattr(facts, name)]
    said = [
        "device work" if facts.device_work else "no device work",
        "host ops" if facts.host_ops else "no host ops",
        *there,
    ]
    return ", ".join(said) + (f"; without {', '.join(missing)}" if missing else "")


def _passes(report: Report) -> str:
    """Of a run, which figures come from where, and what a step is."""
    if report.passes is None:
        return ""
    told = (*passes(report), report.passes.step, *report.passes.notes)
    return el("ul", *(el("li", one) for one in told if one))


def _cost(report: Report) -> str:
    overview = report.overview
    slower = inflation(overview)
    if not slower:
        return "too little to matter" if overview.steps else ""
    step = units.duration(overview.steady_step_ns)
    return f"{slower}: {step} instead of {unprofiled(report)}"


def _doubts(doubts: tuple[Caveat, ...]) -> str:
    if not doubts:
        return "nothing found that would distort the numbers"
    return el("ul", *(el("li", _doubt(doubt)) for doubt in doubts), class_="doubts")


def _doubt(doubt: Caveat) -> Markup:
    if doubt.effect_share is None:
        effect = "effect unknown"
    else:
        share = units.share(doubt.effect_share)
        effect = f"{'' if share.startswith('<') else 'up to '}{share} of {doubt.of or 'the steps'}"
    reason = el("p", doubt.reason, class_="muted") if doubt.reason else None
    summary = el("summary", f"{doubt.what}: {effect}")
    return el("details", summary, el("p", doubt.explanation), reason, el("p", doubt.advice))


def verdict(told: Verdict) -> Markup:
    """What limits the program, in a word and a sentence."""
    colour = _WORDS.get(told.word, "other")
    return el(
        "section",
        el("h2", badge(told.word, colour)),
        el("p", linked(told.sentence), class_="sentence"),
        el("p", told.promise, class_="promise") if told.promise else None,
        class_=f"panel verdict {colour}",
    )


def step(report: Report) -> Markup:
    """Where the mean step goes: key figures, its parts, its phases."""
    overview = report.overview
    unknown = [name for name, value, _ in _tiles(report) if value == units.ABSENT]
    return el(
        "section",
        el("h2", "Where the mean step goes"),
        tiles(report),
        parts(overview),
        phases(overview),
        panel("Serving", el("ul", *(el("li", one) for one in served(overview)))) if overview.served else None,
        el("p", f"Unknown: {', '.join(unknown)}.", class_="note small muted") if unknown else None,
        id="step",
    )


def tiles(report: Report) -> Markup | None:
    """The key figures that are known."""
    shown = [_tile(*one) for one in _tiles(report) if one[1] != units.ABSENT]
    return el("dl", *shown, class_="tiles") if shown else None


def _tiles(report: Report) -> Iterator[tuple[str, str, str]]:
    """Name, value and a remark of each key figure; an absent value is unknown."""
    overview = report.overview
    measured = report.passes is not None and report.passes.measured is not None
    yield "recorded step", units.duration(overview.step_ns or None), ""
    yield "unprofiled step", unprofiled(report), "measured" if measured else "estimated"
    yield f"GPU {busy_with(overview)}", units.share(overview.utilization_share), "of the step"
    yield "GPU waits for the host", units.share(overview.starved_share), "of the step"
    yield "multiprocessors in use", units.share(overview.sm_efficiency_share), "on average"
    yield "model FLOPs utilization", units.share(overview.mfu_share), "of the device's peak"
    peak, most = overview.peak_memory_bytes, overview.memory_bytes
    of = f"{units.share(peak / most)} of {units.size(most)}" if peak is not None and most else ""
    yield "peak memory", units.size(peak), of
    yield "kernels per step", units.count(overview.kernels_per_step or None), ""
    for unit, rate in overview.rates.items():
        yield f"{unit} per second", units.number(rate), "unprofiled" if measured else "as recorded"


def _tile(name: str, value: str, remark: str) -> Markup:
    return el(
        "div", el("dt", linked(name)), el("dd", value), el("dd", remark) if remark else None, class_="tile"
    )


def parts(overview: Overview, title: str = "What it was spent on") -> Markup:
    """The mean step as a bar, by what it was spent on."""
    whole = sum(overview.parts.values())
    if not whole:
        return panel(title, el("p", "Nothing was recorded inside a step.", class_="muted"))
    told = [
        (COLOURS[part], name, units.duration(ns), units.share(ns / whole), ns)
        for part, name in PARTS.items()
        if (ns := overview.parts.get(part))
    ]
    pieces = [Piece(colour, ns, f"{name}: {time} ({share})", share) for colour, name, time, share, ns in told]
    says = ", ".join(f"{name} {time} ({share})" for _, name, time, share, _ in told)
    legend = [
        el(
            "li",
            el("span", class_=f"swatch {colour}"),
            el("span", name),
            el("span", time, class_="number"),
            el("span", share, class_="number muted"),
        )
        for colour, name, time, share, _ in told
    ]
    return panel(
        title,
        stacked(pieces, whole, f"Mean step of {units.duration(overview.step_ns)}: {says}", height=34),
        el("ul", *legend, class_="legend"),
    )


def phases(overview: Overview) -> Markup | None:
    """Two bars for each phase, its share of the step on the host and of device work, pace setter first."""
    if all(one.phase == "other" for one in overview.phases):
        return None
    work = any(one.device_share is not None for one in overview.phases)
    turn = -1 if overview.pace_set_by == "device" else 1
    heads = ("host, share of the step", "device, share of its work" if work else "")[::turn]
    cells = [el("span", class_="head"), *(el("span", text, class_="head over") for text in heads)]
    for one in overview.phases:
        cells.append(el("span", one.phase))
        shares = ((one.share, "host", "the step"), (one.device_share, "device", "device work"))
        for share, colour, what in shares[::turn]:
            said = units.share(share)
            cells.append(
                el("span") if share is None else bar(share, colour, f"{one.phase}: {said} of {what}")
            )
            cells.append(el("span", said if work or colour == "host" else "", class_="number"))
    return panel("Phases", el("div", *cells, class_="rows phases"))
