"""A comparison in Markdown, for a pull request."""

from __future__ import annotations

from collections.abc import Iterator

from stepscope.compare import Comparison
from stepscope.present._change_markdown import change_lines, sides, verdict
from stepscope.present._changes import reasons, sentence, share
from stepscope.present._markdown import escaped
from stepscope.present.formats import format

__all__ = ["markdown"]

_KERNELS = 10


@format(ending=".md")
def markdown(comparison: Comparison) -> str:
    """A page of Markdown, for a pull request."""
    return "\n".join(_lines(comparison)) + "\n"


def _lines(comparison: Comparison) -> Iterator[str]:
    names = " → ".join(escaped(side.name) for side in comparison.sides)
    change = comparison.whole
    yield f"# {change.word.capitalize()} ({share(change.share)}): {names}"
    yield ""
    yield from verdict(change)
    yield from sides(comparison)
    for one in comparison.changes if comparison.overall else ():
        ends = f"{escaped(one.before.name)} → {escaped(one.after.name)}"
        yield f"- **{ends}**: {escaped(reasons(one, 3) or sentence(one))}"
    if comparison.overall:
        yield ""
    yield from change_lines(change, _KERNELS)
