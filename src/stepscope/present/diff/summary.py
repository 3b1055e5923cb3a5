"""A comparison with all its tables, for a wiki."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stepscope import units
from stepscope.compare import Comparison, StepPart, walked
from stepscope.present._change_markdown import findings, kernel_rows, part_rows, sides, verdict
from stepscope.present._changes import part_name, share, signed, unmatched
from stepscope.present._markdown import escaped, rows
from stepscope.present.formats import format

__all__ = ["summary"]

MOST = 30


@format(ending=".summary.md")
def summary(comparison: Comparison) -> str:
    """A page of Markdown with all tables, for a wiki."""
    return "\n".join(_lines(comparison)) + "\n"


def _lines(comparison: Comparison) -> Iterator[str]:
    yield "# Comparison of PyTorch profiles"
    yield ""
    yield from sides(comparison)
    for change in comparison.changes:
        yield f"## {escaped(change.before.name)} → {escaped(change.after.name)}: {share(change.share)}"
        yield ""
        yield from verdict(change)
        if change.parts:
            yield from rows(["", "before", "after", "change"], part_rows(change, 0), right=3)
            yield ""
            yield from _flat("phase of training", change.phases)
            yield from _flat("operator", change.ops)
            yield from _kernels(change.parts)
        if said := unmatched(change):
            yield escaped(said)
            yield ""
        yield from (f"#{line}" if line.startswith("## ") else line for line in findings(change))


def _flat(what: str, parts: Sequence[StepPart]) -> Iterator[str]:
    ordered = sorted(parts, key=lambda part: -abs(part.change_ns))
    shown, left = ordered[:MOST], ordered[MOST:]
    if left:
        ends = sum(part.before_ns for part in left), sum(part.after_ns for part in left)
        shown = [*shown, StepPart(f"{units.count(len(left))} more", *ends)]
    lines = (
        [
            escaped(part_name(part)),
            units.duration(part.before_ns),
            units.duration(part.after_ns),
            signed(part.change_ns),
        ]
        for part in shown
    )
    yield from rows([f"by {what}", "before", "after", "change"], lines, right=3)
    yield ""


def _kernels(parts: tuple[StepPart, ...]) -> Iterator[str]:
    leaves = [part for part in walked(parts) if part.calls and part.change_ns]
    moved = sorted(leaves, key=lambda part: -abs(part.change_ns))[:MOST]
    if moved:
        heads = ["kernel, copy or blocking call", "how", "before", "after", "change"]
        yield from rows(heads, kernel_rows(moved), right=3)
        yield ""
