"""A comparison for the terminal: readable without color and at 80 columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import mean

from stepscope import units
from stepscope.compare import Comparison, Side, StepChange, StepPart
from stepscope.compare.ranks import paired_ranks
from stepscope.present._changes import (
    PARTS,
    counted,
    found,
    headline,
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
from stepscope.present._lines import Line, broken, fitted, printed, styled, unbroken, wrapped
from stepscope.present._markup import shortened
from stepscope.present.formats import format

__all__ = ["made_of", "terminal"]

_INDENT = 10
_BAR = 40
_ROOMY = 80
"""From so many columns on there is room for throughput beside the step."""
_KERNELS = 8
_OPS = 6
_RANKS = 6
_INNER = 4
"""So many families or reasons of a part are shown; more are summed up."""
_SMALL = 0.002
"""A line whose change is less than this part of the step says nothing."""
_GLYPHS = {
    "kernels": ("█", "green"),
    "copies": ("▓", "yellow"),
    "fills": ("▓", "yellow"),
    "collectives": ("▚", "magenta"),
    "data": ("≡", "red"),
    "syncs": ("▒", "cyan"),
    "host": ("░", "blue"),
    "launches": ("╌", "cyan"),
    "device": ("·", "bright_black"),
    "unknown": ("·", "bright_black"),
    "operators": ("░", "blue"),
    "calls": ("▒", "cyan"),
    "other": ("·", "bright_black"),
}
_WORDS = {
    "faster": "bold black on green",
    "slower": "bold white on red",
    "noise": "bold black on white",
    "unknown": "bold black on white",
}


@format(ending=".txt")
def terminal(comparison: Comparison, *, width: int, color: bool) -> str:
    """Text for the terminal, readable without color and at 80 columns."""
    return printed(_lines(comparison, fitted(width)), color=color)


def made_of(comparison: Comparison, *, width: int, color: bool) -> str:
    """What a change is made of, where somebody else has judged it."""
    return printed(_change(comparison.whole, fitted(width)), color=color)


def _lines(comparison: Comparison, width: int) -> Iterator[Line]:
    yield from wrapped(" · ".join(headline(comparison)), width)
    yield styled()
    if comparison.overall:
        yield from _history(comparison, width)
    yield from _verdict(comparison.whole, width)
    yield styled()
    yield from _change(comparison.whole, width)


def _verdict(change: StepChange, width: int) -> Iterator[Line]:
    badge = f" {change.word.upper()} "
    indent = len(badge) + 2
    said = broken(sentence(change), width - indent)
    yield styled(" ", (badge, _WORDS[change.word]), " ", (said[0], "bold"))
    for line in said[1:]:
        yield styled(" " * indent, (line, "bold"))
    basis = change.truth.basis if change.truth else ""
    for more in (reasons(change), ranks(change), unprofiled(change), basis):
        yield from wrapped(more, width, indent=indent)


def _history(comparison: Comparison, width: int) -> Iterator[Line]:
    """One line a side: what it takes, what it gets done, what it gained on the last and on the first."""
    heads = ("", "step", "", "since last", "", "since first")
    rows: list[tuple[str, ...]] = [heads]
    first = comparison.sides[0]
    for side, change in zip(comparison.sides, (None, *comparison.changes), strict=True):
        all_in_all = (side.true_ns - first.true_ns) / first.true_ns if change and first.true_ns else None
        rows.append(
            (
                shortened(side.name, max(12, width - 66)),
                units.duration(side.true_ns),
                _main_rate(side),
                share(change.share) if change else "",
                change.word if change else "",
                share(all_in_all) if change else "",
            )
        )
    if width < _ROOMY:
        rows = [(*row[:2], *row[3:]) for row in rows]
    yield from _grid(rows, left=(0, 4 if width >= _ROOMY else 3))
    yield styled()
    for change in comparison.changes:
        told = f"{change.before.name} → {change.after.name}: {reasons(change, 3) or sentence(change)}"
        yield from wrapped(told, width, indent=3, first=" ")
    yield styled()
    yield styled((" from the first to the last", "bold"))


def _main_rate(side: Side) -> str:
    """In the largest unit that is known."""
    unit = next((one for one in ("tokens", "samples", "steps") if one in side.rates), None)
    return f"{units.number(side.rates[unit])} {unit}/s" if unit else ""


def _grid(rows: Sequence[Sequence[str]], left: tuple[int, ...]) -> Iterator[Line]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for place, row in enumerate(rows):
        cells = [
            cell.ljust(wide) if column in left else cell.rjust(wide)
            for column, (cell, wide) in enumerate(zip(row, widths, strict=True))
        ]
        yield styled((" " + "  ".join(cells).rstrip(), "bold" if place == 0 else ""))


def _change(change: StepChange, width: int) -> Iterator[Line]:
    if change.parts:
        yield from _bars(change, width)
        yield styled()
        yield from _parts(change, width)
        yield from _kernels(change, width)
        yield from _flat("operator", change.ops, change, width)
        yield from _flat("phase", change.phases, change, width)
    yield from _ranks(change, width)
    yield from _findings(change, width)
    if change.caveats:
        yield styled()
    for said in change.caveats:
        yield from wrapped(said, width, indent=3, first=" !", style="yellow")


def _bars(change: StepChange, width: int) -> Iterator[Line]:
    longest = max(change.before.step_ns, change.after.step_ns)
    room = min(_BAR, width - 38)
    for side, name, end in ((change.before, " before", "before_ns"), (change.after, " after", "after_ns")):
        bar, drawn, ended = [], 0, 0
        for part in change.parts:
            ended += getattr(part, end)
            cells = round(ended / longest * room) - drawn
            drawn += cells
            bar.append((_GLYPHS[part.name][0] * cells, _GLYPHS[part.name][1]))
        rest = " " * (room - drawn)
        yield styled(name.ljust(_INDENT), *bar, rest, f"  {units.duration(side.step_ns)}, {counted(side)}")
        yield from wrapped(rates(side), width, indent=_INDENT + room + 2)
    shown = [part for part in change.parts if max(part.before_ns, part.after_ns) >= 0.01 * longest]
    legend = "   ".join(unbroken(f"{_GLYPHS[part.name][0]} {PARTS[part.name]}") for part in shown)
    yield from wrapped(legend, width, indent=_INDENT)


def _parts(change: StepChange, width: int) -> Iterator[Line]:
    """What the change is made of: each level sums to the one above."""
    yield _row("", "before", "after", "change", width, "bold")
    least = _SMALL * max(change.before.step_ns, change.after.step_ns)
    parts = sorted(change.parts, key=lambda one: -abs(one.change_ns))
    moved = [part for part in parts if abs(part.change_ns) >= least]
    for part in moved:
        yield _time_row(f" {part_name(part)}", part, width)
        inner = [one for one in part.parts if abs(one.change_ns) >= least]
        if inner and len(part.parts) > 1:
            yield from _rows(inner, part.parts, width, most=_INNER, style="bright_black")
    yield from _rows((), [part for part in parts if part not in moved], width, indent=1)
    whole = StepPart("", change.before.step_ns, change.after.step_ns)
    yield _time_row(" the step", whole, width, "bold")


def _rows(
    chosen: Sequence[StepPart],
    parts: Sequence[StepPart],
    width: int,
    *,
    most: int = 0,
    indent: int = 3,
    style: str = "",
) -> Iterator[Line]:
    """The first of some parts, and the rest of all summed up; a rest of one is shown as it is."""
    shown = list(chosen[:most])
    left = [part for part in parts if part not in shown]
    if len(left) == 1:
        shown, left = [*shown, *left], []
    for part in shown:
        yield _time_row(f"{' ' * indent}{part_name(part)}", part, width, style)
    if left:
        ends = sum(part.before_ns for part in left), sum(part.after_ns for part in left)
        yield _time_row(f"{' ' * indent}{len(left)} more", StepPart("", *ends), width, "bright_black")


def _time_row(name: str, part: StepPart, width: int, style: str = "") -> Line:
    ends = units.duration(part.before_ns), units.duration(part.after_ns)
    return _row(name, *ends, signed(part.change_ns), width, style)


def _row(name: str, before: str, after: str, change: str, width: int, style: str = "") -> Line:
    room = min(width, 84) - 36
    return styled((f"{shortened(name, room):<{room}}{before:>12}{after:>12}{change:>12}", style))


def _kernels(change: StepChange, width: int) -> Iterator[Line]:
    moved = kernels(change)
    if moved:
        yield styled()
        yield styled((" kernels and copies that changed", "bold"))
    for part in moved[:_KERNELS]:
        times = f"{signed(part.change_ns):>11}"
        calls = " → ".join(units.tally(n) for n in part.calls or ())
        name = shortened(part.name, max(24, width - 14))
        yield styled(times, "  ", name)
        said = f"{how_a_kernel_changed(part)}; {calls} per step" + (
            f", launched by {part.op}" if part.op else ""
        )
        yield from wrapped(said, width, indent=13, style="bright_black")
        if part.names[1]:
            now = f"now {shortened(part.names[1][0], max(24, width - 18))}"
            yield styled(" " * 13, (now, "bright_black"))
    if len(moved) > _KERNELS:
        rest = sum(part.change_ns for part in moved[_KERNELS:])
        yield styled(f"{signed(rest):>11}", "  ", f"{len(moved) - _KERNELS} more")
    if said := unmatched(change):
        yield from wrapped(said, width, indent=1)


def _flat(what: str, parts: Sequence[StepPart], change: StepChange, width: int) -> Iterator[Line]:
    least = _SMALL * max(change.before.step_ns, change.after.step_ns)
    moved = [part for part in parts if abs(part.change_ns) >= least]
    if len(parts) < 2 or not moved:
        return
    yield styled()
    yield _row(f" by {what}", "before", "after", "change", width, "bold")
    ordered = sorted(moved, key=lambda part: -abs(part.change_ns))
    yield from _rows(ordered, parts, width, most=_OPS)


def _ranks(change: StepChange, width: int) -> Iterator[Line]:
    """The ranks whose own time changed most, and the mean of the others."""
    paired = paired_ranks(change)
    if paired is None or not paired.pairs:
        return
    yield styled()
    yield _row(" own time by rank", "before", "after", "change", width, "bold")
    shown, left = paired.most_changed[:_RANKS], paired.most_changed[_RANKS:]
    for one in shown:
        part = StepPart(f"rank {one.rank}", one.own_before_ns, one.own_after_ns)
        yield _time_row(f"   {part.name}", part, width)
    if left:
        ends = [round(mean(getattr(one, end) for one in left)) for end in ("own_before_ns", "own_after_ns")]
        told = f"   {units.count(len(left))} more, on average"
        yield _time_row(told, StepPart("", *ends), width, "bright_black")


def _findings(change: StepChange, width: int) -> Iterator[Line]:
    told = (
        (" ✓", "resolved", found(change.resolved), "green"),
        (" ✗", "new", found(change.appeared), "red"),
        (" ·", "still there", found(change.kept), ""),
    )
    if any(said for _, _, said, _ in told):
        yield styled()
    for sign, name, said, style in told:
        if said:
            yield from wrapped(f"{name}: {said}", width, indent=4, first=sign, style=style)
