"""Whether a program still computes the same: its first losses before and after a change, for one seed.

How much losses differ from run to run is a property of the program. It is learned from the runs before the
change, and the runs after it are held against that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from stepscope import units
from stepscope.trials import Agreement

__all__ = ["compare_losses"]

Losses = Sequence[float]

_UNSEEDED = 0.001
"""First losses that differ by more come from other weights or other samples, not from rounding."""
_LOST = 0.05
"""From the first loss on by which runs of one program differ this much, there is nothing to compare."""
_ROUNDED_FIRST, _ROUNDED = 1e-5, 1e-3
"""By how much other orders of sums change the first loss, and later ones, which build on it."""
_SPREAD = 2.0
"""A few runs show less than all of what differs: so much more of it is still the program's own."""


def compare_losses(before: Sequence[Losses], after: Sequence[Losses]) -> Agreement:
    """Says whether the losses after a change agree with those before it."""
    length = min(map(len, (*before, *after)), default=0)
    if not before or not after or not length:
        return Agreement("none", "Losses are not compared: no backward pass of a loss was seen.")
    own = [_largest(at, before, before) for at in range(length)]
    other = [_largest(at, before, after) for at in range(length)]
    if own[0] > _UNSEEDED:
        return Agreement(
            "not comparable",
            "Losses are not comparable: they differ from run to run, by "
            f"{_percent(own[0])} in the first step. Set a seed in the program.",
            own_share=_finite(own[0]),
        )
    compared = next((at for at, share in enumerate(own) if share > _LOST), length)
    own, other = own[:compared], other[:compared]
    return _judged(before, after, own, other)


def _judged(before: Sequence[Losses], after: Sequence[Losses], own: Losses, other: Losses) -> Agreement:
    count, most, noise = len(other), max(other), max(own)
    shown = (_finite(most), _finite(noise))
    first = f"the first {count}" if count > 1 else "the first one"
    if most == 0:
        said = f"Losses agree: {first} {'are' if count > 1 else 'is'} equal."
        return Agreement("equal", said, count, *shown)
    seen = 0.0
    for at, (share, runs) in enumerate(zip(other, own, strict=True)):
        seen = max(seen, runs)
        if share > max(_SPREAD * seen, _ROUNDED if at else _ROUNDED_FIRST):
            return Agreement("different", _different(at, before, after, noise), count, *shown)
    if noise > 0 and most <= _SPREAD * noise:
        said = f"Losses agree: {first} differ by up to {_percent(most)}, as two runs before do."
        return Agreement("alike", said, count, *shown)
    said = f"Losses agree: {first} differ by up to {_percent(most)}, as rounding does."
    return Agreement("rounded", said, count, *shown)


def _different(at: int, before: Sequence[Losses], after: Sequence[Losses], noise: float) -> str:
    """Where losses begin to differ, and by how much."""
    early, late = max(
        ((a[at], b[at]) for a in before for b in after), key=lambda pair: _difference(pair[0], pair[1])
    )
    by = _difference(early, late)
    size = f" ({_percent(by)})" if math.isfinite(by) else ""
    own = f"Two runs before differ by up to {_percent(noise)}." if noise else "Runs before are all equal."
    return f"Losses differ: in step {at + 1}, {_value(early)} before and {_value(late)} after{size}. {own}"


def _largest(at: int, some: Sequence[Losses], others: Sequence[Losses]) -> float:
    return max(_difference(one[at], other[at]) for one in some for other in others)


def _difference(one: float, other: float) -> float:
    """As a part of the larger; what is no number equals only what is no number."""
    if one == other or (math.isnan(one) and math.isnan(other)):
        return 0.0
    if not (math.isfinite(one) and math.isfinite(other)):
        return math.inf
    return abs(one - other) / max(abs(one), abs(other))


def _finite(share: float) -> float | None:
    return share if math.isfinite(share) else None


def _value(loss: float) -> str:
    return f"{loss:.6g}" if math.isfinite(loss) else "no number"


def _percent(share: float) -> str:
    """A small share, with two digits however small it is."""
    if not math.isfinite(share):
        return "all of it"
    return units.share(share) if share >= 0.001 else f"{share * 100:.2g} %"
