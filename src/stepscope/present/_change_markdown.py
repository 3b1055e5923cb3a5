"""Parts of a page of Markdown about a change, which several formats share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stepscope import units
from stepscope.compare import Comparison, StepChange, StepPart
from stepscope.compare.ranks import paired_ranks
from stepscope.present._changes import (
    counted,
    found,
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
from stepscope.present._markdown import code, escaped, rows
from stepscope.present._markup import shortened

__all__ = ["change_lines", "findings", "kernel_rows", "part_rows", "rank_rows", "sides", "verdict"]

_SMALL = 0.002
_NAME = 90


def verdict(change: StepChange) -> Iterator[str]:
    """What happened, why, and how sure that is."""
    yield f"**{escaped(sentence(change))}** {escaped(reasons(change))}".rstrip()
    yield ""
    basis = change.truth.basis if change.truth else ""
    said = " ".join(filter(None, (ranks(change), unprofiled(change), basis)))
    if said:
        yield escaped(said)
        yield ""
    for one in change.caveats:
        yield f"- {escaped(one)}"
    if change.caveats:
        yield ""


def sides(comparison: Comparison) -> Iterator[str]:
    """One line a side: its step, what it gets done, and the change from the side before."""
    lines = [
        [
            escaped(side.name),
            counted(side),
            units.duration(side.true_ns),
            escaped(rates(side)),
            *((signed(change.change_ns), share(change.share), change.word) if change else ("", "", "")),
        ]
        for side, change in zip(comparison.sides, (None, *comparison.changes), strict=True)
    ]
    yield from rows(["", "recorded", "step", "throughput", "change", "", ""], lines)
    yield ""


def change_lines(change: StepChange, most: int) -> Iterator[str]:
    """What the change is made of, the kernels, and the findings."""
    least = _SMALL * max(change.before.step_ns, change.after.step_ns)
    if change.parts:
        yield "## What the change is made of"
        yield ""
        yield from rows(["", "before", "after", "change"], part_rows(change, least), right=3)
        yield ""
    moved = kernels(change)
    if moved:
        yield "## Kernels and copies that changed"
        yield ""
        heads = ["kernel", "how", "before", "after", "change"]
        yield from rows(heads, kernel_rows(moved[:most]), right=3)
        yield ""
    if said := unmatched(change):
        yield escaped(said)
        yield ""
    yield from rank_rows(change, most)
    yield from findings(change)


def rank_rows(change: StepChange, most: int) -> Iterator[str]:
    """The ranks of two runs whose own time changed most."""
    paired = paired_ranks(change)
    if paired is None or not paired.pairs:
        return
    yield "## Ranks"
    yield ""
    lines = [
        [
            str(one.rank),
            units.duration(one.own_before_ns),
            units.duration(one.own_after_ns),
            *map(signed, (one.own_change_ns, one.wait_change_ns, one.step_change_ns)),
        ]
        for one in paired.most_changed[:most]
    ]
    yield from rows(["rank", "own time before", "after", "change", "waits", "step"], lines, right=5)
    yield ""
    if len(paired.pairs) > most:
        yield f"The first {most} of {units.count(len(paired.pairs))} ranks, by the change of their own time."
        yield ""


def part_rows(change: StepChange, least: float) -> Iterator[list[str]]:
    """The parts and what is inside them, down to a change of so little; then the step."""
    for part in sorted(change.parts, key=lambda one: -abs(one.change_ns)):
        yield [f"**{part_name(part)}**", *_times(part)]
        inner = [one for one in part.parts if abs(one.change_ns) >= least]
        for one in inner if len(part.parts) > 1 else ():
            yield [f"… {escaped(one.name)}", *_times(one)]
    whole = StepPart("", change.before.step_ns, change.after.step_ns)
    yield ["**the step**", *(f"**{time}**" for time in _times(whole))]


def _times(part: StepPart) -> list[str]:
    return [units.duration(part.before_ns), units.duration(part.after_ns), signed(part.change_ns)]


def kernel_rows(moved: Sequence[StepPart]) -> Iterator[list[str]]:
    """Kernels with how they changed."""
    for part in moved:
        calls = " → ".join(units.tally(n) for n in part.calls or ())
        name = code(shortened(part.name, _NAME))
        if part.state in ("renamed", "replaced") and part.names[1]:
            name += f" → {code(shortened(part.names[1][0], _NAME))}"
        yield [name, f"{how_a_kernel_changed(part)}; {calls} per step", *_times(part)]


def findings(change: StepChange) -> Iterator[str]:
    """Findings that are gone, new, and still there."""
    told = (("Resolved", change.resolved), ("New", change.appeared), ("Still there", change.kept))
    if any(these for _, these in told):
        yield "## Findings"
        yield ""
        for name, these in told:
            if these:
                yield f"- {name}: {escaped(found(these))}"
        yield ""
