"""Which kernel of one trace is which of the other, where chips, libraries and compilers rename them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction

from stepscope.compare import State
from stepscope.patterns import late_pattern
from stepscope.records import dataclass

__all__ = ["KernelCost", "Match", "matched"]


@dataclass(frozen=True, slots=True)
class KernelCost:
    """One kernel in the mean step of one side."""

    name: str
    op: str | None
    """The operator that launches most of it."""
    time_ns: Fraction
    calls: Fraction


@dataclass(frozen=True, slots=True)
class Match:
    """Kernels of both sides that do the same work."""

    state: State
    before: tuple[KernelCost, ...]
    after: tuple[KernelCost, ...]


_CHIPS = late_pattern(r"sm_?\d+[a-z]?|volta|turing|ampere|ada|hopper|blackwell|gfx\w+", re.IGNORECASE)
_NUMBERS = late_pattern(r"\d+")


def matched(before: Iterable[KernelCost], after: Iterable[KernelCost]) -> list[Match]:
    """Each kernel of both sides in one match: by name, by name without numbers and chips, by operator."""
    left = ({one.name: one for one in before}, {one.name: one for one in after})
    found: list[Match] = []
    for state, key in (("both", _name), ("renamed", _plain), ("replaced", _operator)):
        found += _pooled(state, key, left)  # type: ignore[arg-type]  # they are states
    found += [Match("gone", (one,), ()) for one in left[0].values()]
    found += [Match("new", (), (one,)) for one in left[1].values()]
    return found


def _pooled(
    state: State,
    key: Callable[[KernelCost], str | None],
    left: tuple[dict[str, KernelCost], dict[str, KernelCost]],
) -> list[Match]:
    """Those that have the same key on both sides; they are taken out of what is left."""
    pools = [_by(key, side) for side in left]
    found = []
    for shared in sorted(pools[0].keys() & pools[1].keys()):
        sides = [tuple(sorted(pool[shared], key=lambda one: (-one.time_ns, one.name))) for pool in pools]
        found.append(Match(state, sides[0], sides[1]))
        for side, taken in zip(left, sides, strict=True):
            for one in taken:
                del side[one.name]
    return found


def _by(
    key: Callable[[KernelCost], str | None], side: Mapping[str, KernelCost]
) -> dict[str, list[KernelCost]]:
    pools: dict[str, list[KernelCost]] = defaultdict(list)
    for one in side.values():
        shared = key(one)
        if shared is not None:
            pools[shared].append(one)
    return pools


def _name(one: KernelCost) -> str:
    return one.name


def _plain(one: KernelCost) -> str:
    """The name without what compilers count and chips are called."""
    return _NUMBERS.sub("#", _CHIPS.sub("", one.name)).lower()


def _operator(one: KernelCost) -> str | None:
    return one.op
