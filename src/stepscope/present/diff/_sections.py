"""The sections of a comparison as markup: both steps, the way from one to the other, and what changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stepscope import units
from stepscope.compare import Comparison, Side, StepChange, StepPart
from stepscope.compare.ranks import paired_ranks
from stepscope.findings import Finding
from stepscope.present._changes import (
    COLOURS,
    PARTS,
    counted,
    how_a_kernel_changed,
    kernels,
    part_name,
    ranks,
    rates,
    reasons,
    sentence,
    share,
    signed,
    unmatched,
    unprofiled,
)
from stepscope.present._charts import Piece, axis, bar, columns, floating, stacked, ticks
from stepscope.present._markup import Markup, el, joined, shortened
from stepscope.present._phrases import worth
from stepscope.present._pieces import badge, grid, panel

__all__ = [
    "both_steps",
    "changed_findings",
    "changed_kernels",
    "changed_ranks",
    "history",
    "moves",
    "operators_and_phases",
    "recorded",
    "verdict",
]

_WORDS = {"faster": "pass", "slower": "high", "noise": "other", "unknown": "other"}
_KERNELS = 20
_ROWS = 12
_STEPS = 8
"""So many parts of the change are drawn one by one; the rest is one."""


def recorded(side: Side) -> str:
    """How a side was recorded, in short."""
    facts = side.report.facts
    devices = ", ".join(dict.fromkeys(device.name for device in facts.devices if device.name))
    return ", ".join(filter(None, (counted(side), devices, facts.cuda)))


def verdict(change: StepChange) -> Markup:
    """Whether the step became faster, by how much, and why."""
    colour = _WORDS[change.word]
    basis = change.truth.basis if change.truth else ""
    return el(
        "section",
        el("h2", badge(change.word, colour)),
        el("p", sentence(change), class_="sentence"),
        el("p", reasons(change), class_="promise") if reasons(change) else None,
        el(
            "p", " ".join(filter(None, (ranks(change), unprofiled(change), basis))), class_="note small muted"
        ),
        class_=f"panel verdict {colour}",
    )


def history(comparison: Comparison) -> Markup:
    """The sides in a row: what each takes and gets done, and what its change gained."""
    longest = max(side.true_ns for side in comparison.sides) or 1
    bars = [
        (
            shortened(side.name, 18),
            [Piece(_WORDS[word], side.true_ns, f"{side.name}: {units.duration(side.true_ns)}")],
        )
        for side, word in zip(
            comparison.sides, ("noise", *(change.word for change in comparison.changes)), strict=True
        )
    ]
    scale = [(tick, units.duration(tick)) for tick in ticks(longest)]
    says = ", ".join(f"{side.name} {units.duration(side.true_ns)}" for side in comparison.sides)
    rows = [
        (
            el("span", shortened(side.name, 60), title=side.name),
            units.duration(side.true_ns),
            rates(side),
            signed(change.change_ns) if change else None,
            share(change.share) if change else None,
            badge(change.word, _WORDS[change.word]) if change else None,
            el("span", reasons(change, 1), class_="small") if change else None,
        )
        for side, change in zip(comparison.sides, (None, *comparison.changes), strict=True)
    ]
    heads = (
        ("side", "name"),
        ("step", "number"),
        ("throughput", "roomy"),
        ("change", "number"),
        ("", "number"),
        ("", ""),
        ("why", ""),
    )
    chart = panel("The step from side to side", columns(bars, scale, says))
    table = panel("One change at a time", grid(heads, rows))
    last = el("p", "What follows compares the first side with the last.", class_="note small muted")
    return el("section", el("h2", "History"), chart, table, last, id="history")


def both_steps(change: StepChange) -> Markup:
    """Both steps by their parts, and the way from one to the other."""
    return el(
        "section",
        el("h2", "Before and after"),
        panel("Both steps", _both(change), _legend(change)),
        panel("From one to the other", _waterfall(change)),
        id="steps",
    )


def _both(change: StepChange) -> Markup:
    longest = max(change.before.step_ns, change.after.step_ns) or 1
    cells: list[Markup] = []
    for side, name, end in ((change.before, "before", "before_ns"), (change.after, "after", "after_ns")):
        pieces = [
            Piece(
                COLOURS[part.name],
                getattr(part, end),
                f"{name}, {part_name(part)}: {units.duration(getattr(part, end))}",
                units.duration(getattr(part, end)),
            )
            for part in change.parts
        ]
        took = units.duration(side.step_ns)
        cells += (
            el("span", name),
            stacked(pieces, longest, f"Mean step {name}: {took}", height=34),
            el("span", took, class_="number"),
        )
    return el("div", *cells, class_="rows steps")


def _legend(change: StepChange) -> Markup:
    """All parts with both times: they sum to the steps."""
    whole = StepPart("the step", change.before.step_ns, change.after.step_ns)
    rows = [
        (
            joined((el("span", class_=f"swatch inline {COLOURS[part.name]}"), PARTS[part.name])),
            *_times(part),
        )
        for part in change.parts
    ]
    rows.append((el("span", "the step", class_="strong"), *_times(whole)))
    return grid((("part", ""), *_ENDS), rows)


_ENDS = (("before", "number"), ("after", "number"), ("change", "number"))


def _times(part: StepPart) -> tuple[str, str, str]:
    return units.duration(part.before_ns), units.duration(part.after_ns), signed(part.change_ns)


def _waterfall(change: StepChange) -> Markup:
    """From the step before, one part after the other, to the step after."""
    told = list(moves(change))
    levels = [change.before.step_ns]
    for _, ns in told:
        levels.append(levels[-1] + ns)
    scale = ticks(max(levels))
    top = scale[-1]
    cells = list(_level("before", change.before.step_ns, top))
    for (name, ns), start in zip(told, levels, strict=False):
        low, high = sorted((start, start + ns))
        colour = "pass" if ns < 0 else "high"
        cells += (
            el("div", el("span", name), class_="label"),
            floating(low, high, top, colour, f"{name}: {signed(ns)}"),
            el("div", signed(ns), class_="number value"),
        )
    cells += _level("after", change.after.step_ns, top)
    marks = [(tick / top, units.duration(tick)) for tick in scale]
    cells.append(el("div", axis(marks), class_="axis"))
    return el("div", *cells, class_="gains fall")


def _level(name: str, ns: int, top: float) -> Iterator[Markup]:
    yield el("div", el("span", name, class_="strong"), class_="label")
    yield floating(0, ns, top, "other", f"the step {name}: {units.duration(ns)}")
    yield el("div", units.duration(ns), class_="number value strong")


def moves(change: StepChange) -> Iterator[tuple[str, int]]:
    """Families of kernels and reasons to wait that changed most, and the rest as one."""
    moved = [pair for pair in change.causes if pair[1].change_ns]
    for part, inner in moved[:_STEPS]:
        name = part_name(part)
        yield (name if inner is part or len(part.parts) == 1 else f"{name}: {inner.name}"), inner.change_ns
    rest = sum(inner.change_ns for _, inner in moved[_STEPS:])
    if moved[_STEPS:]:
        yield f"{units.count(len(moved) - _STEPS)} more", rest


def changed_kernels(change: StepChange) -> Markup:
    """The kernels and copies that changed most."""
    moved = kernels(change)
    most = max((abs(part.change_ns) for part in moved), default=1)
    rows = [
        (
            _named(part),
            bar(
                abs(part.change_ns),
                "pass" if part.change_ns < 0 else "high",
                f"{part.name}: {signed(part.change_ns)}",
                of=most,
            ),
            how_a_kernel_changed(part),
            " → ".join(units.tally(n) for n in part.calls or ()),
            *_times(part),
        )
        for part in moved[:_KERNELS]
    ]
    heads = (
        ("kernel", "name"),
        ("", "bar roomy"),
        ("how", ""),
        ("runs per step", "number roomy"),
        ("before", "number roomy"),
        ("after", "number roomy"),
        ("change", "number"),
    )
    nothing = el("p", "No kernel and no copy changed by 0.5 % of the step or more.", class_="muted")
    notes = [unmatched(change)] if unmatched(change) else []
    if len(moved) > _KERNELS:
        notes.append(f"Top {_KERNELS} of {units.count(len(moved))}.")
    told = joined(el("p", note, class_="note small muted") for note in notes)
    shown = panel("Kernels and copies that changed", grid(heads, rows) if rows else nothing, told)
    return el("section", el("h2", "Kernels"), shown, id="kernels")


def _named(part: StepPart) -> Markup:
    now = part.names[1][0] if part.names[1] else ""
    after = el("div", "now ", el("code", shortened(now, 72)), title=now) if now else None
    op = el("div", f"launched by {part.op}", class_="small muted") if part.op else None
    return joined((el("code", shortened(part.name, 76), title=part.name), after, op))


def changed_ranks(change: StepChange) -> Markup | None:
    """The ranks of two runs whose own time changed most; None where sides are single ranks."""
    paired = paired_ranks(change)
    if paired is None or not paired.pairs:
        return None
    shown = paired.most_changed[:_KERNELS]
    most = max(abs(one.own_change_ns) for one in shown) or 1
    rows = [
        (
            str(one.rank),
            one.host or units.ABSENT,
            bar(
                abs(one.own_change_ns),
                "pass" if one.own_change_ns < 0 else "high",
                f"rank {one.rank}: {signed(one.own_change_ns)}",
                of=most,
            ),
            units.duration(one.own_before_ns),
            units.duration(one.own_after_ns),
            *map(signed, (one.own_change_ns, one.wait_change_ns, one.step_change_ns)),
        )
        for one in shown
    ]
    heads = (
        ("rank", "number"),
        ("host", "name"),
        ("", "bar roomy"),
        ("own time before", "number roomy"),
        ("after", "number roomy"),
        ("change", "number"),
        ("waits for others", "number"),
        ("step", "number"),
    )
    left = len(paired.pairs) - len(shown)
    note = f"The {_KERNELS} of {units.count(len(paired.pairs))} ranks that changed most." if left else ""
    told = el("p", note, class_="note small muted") if note else None
    return el("section", el("h2", "Ranks"), panel("Own time by rank", grid(heads, rows), told), id="ranks")


def operators_and_phases(change: StepChange) -> Markup:
    """The same change by operators and by phases."""
    both = [_flat("Operators", change.ops), _flat("Phases of training", change.phases)]
    note = (
        "An operator counts with the device work that it launched and the time the device waited for it, "
        "a phase with its time on the host. Both tables sum to the step."
    )
    return el(
        "section",
        el("h2", "Operators and phases"),
        el("div", *both, class_="pair"),
        el("p", note, class_="note small muted"),
        id="where",
    )


def _flat(title: str, parts: Sequence[StepPart]) -> Markup:
    ordered = sorted(parts, key=lambda part: -abs(part.change_ns))
    shown, left = ordered[:_ROWS], ordered[_ROWS:]
    rows = [(part_name(part), *_times(part)) for part in shown]
    if left:
        ends = sum(part.before_ns for part in left), sum(part.after_ns for part in left)
        rows.append((f"{units.count(len(left))} more", *_times(StepPart("", *ends))))
    return panel(title, grid((("", "name"), *_ENDS), rows))


def changed_findings(change: StepChange) -> Markup | None:
    """Findings that are gone, new, or still there; None where there were none."""
    rows = [
        *((badge("resolved", "pass"), *_finding(one), None) for one in change.resolved),
        *((badge("new", "high"), *_finding(one), None) for one in change.appeared),
        *((badge("still there", "other"), *_finding(one), worth(now)) for one, now in change.kept),
    ]
    if not rows:
        return None
    heads = (("", ""), ("finding", "strong"), ("severity", ""), ("gain", "number"), ("now", "number"))
    return el("section", el("h2", "Findings"), el("div", grid(heads, rows), class_="panel"), id="findings")


def _finding(finding: Finding) -> tuple[str, str, str]:
    return finding.advice.title, finding.severity, worth(finding)
