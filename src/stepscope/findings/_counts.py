"""How many and how often, as text."""

from __future__ import annotations

from stepscope import units

__all__ = ["often", "times"]


def often(per_step: float, what: str) -> str:
    """How often something happens: `10 reads a step`, or `1 read in about 120 steps`."""
    if 0 < per_step < 0.5:
        return f"1 {what} in about {units.count(round(1 / per_step))} steps"
    return f"{times(per_step, what)} a step"


def times(count: float, what: str) -> str:
    """How many on average: `1 copy`, `2.5 copies`, `10 reads`."""
    whole = round(count)
    if whole and abs(count - whole) < 0.05 * whole:
        return f"{units.count(whole)} {what if whole == 1 else _plural(what)}"
    if 0 < count < 0.05:
        return f"less than 1 {what}"
    return f"{units.tally(count)} {_plural(what)}"


def _plural(word: str) -> str:
    if word.endswith("y"):
        return f"{word[:-1]}ies"
    return f"{word}es" if word.endswith(("s", "ch")) else f"{word}s"
