"""Phrases that findings share: how many, how often, how long the GPU is idle."""

from __future__ import annotations

from stepscope import units

__all__ = ["if_idle", "often", "times"]

WORTH_A_WORD_NS = 1_000
"""Less idle time than this in a step is left out of a sentence."""


def often(per_step: float, what: str) -> str:
    """How often something happens: `10 reads a step`, or `1 read in about 120 steps`."""
    if 0 < per_step < 0.5:
        return f"1 {what} in about {units.count(round(1 / per_step))} steps"
    return f"{times(per_step, what)} a step"


def times(count: float, what: str) -> str:
    """How many on average: `1 copy`, `2.5 copies`, `10 reads`."""
    whole = round(count)
    if whole and abs(count - whole) < 0.05 * whole:
        return f"{units.count(whole)} {what if whole == 1 else units.plural(what)}"
    if 0 < count < 0.05:
        return f"less than 1 {what}"
    return f"{units.tally(count)} {units.plural(what)}"


def if_idle(idle_ns: float, sentence: str) -> str:
    """A sentence about idle time of the GPU, with a space before it; nothing if there is hardly any.

    `{}` in the sentence stands for the time.
    """
    return f" {sentence.format(units.duration(idle_ns))}" if idle_ns >= WORTH_A_WORD_NS else ""
