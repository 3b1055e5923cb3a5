"""Lists of ranks as text: `0,1,2,3`, and for long ones `0-1023` or `0-1016:8`, every eighth of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from stepscope.patterns import late_pattern

__all__ = ["ranks_in", "ranks_text", "stride_of"]

_FEW = 16
_MOST = 1 << 20
_PART = late_pattern(r"(\d{1,9})(?:-(\d{1,9})(?::(\d{1,9}))?)?")


def ranks_text(ranks: Iterable[int]) -> str:
    """The ranks as text; many that lie evenly apart are written as their ends."""
    listed = list(ranks)
    stride = stride_of(listed)
    if len(listed) <= _FEW or not stride:
        return ",".join(map(str, listed))
    return f"{listed[0]}-{listed[-1]}" + (f":{stride}" if stride > 1 else "")


def ranks_in(text: str | None) -> tuple[int, ...]:
    """The ranks that a text lists, in its order; none if it is no such list."""
    ranks: list[int] = []
    for part in (text or "").split(","):
        found = _PART.fullmatch(part.strip())
        if found is None:
            return ()
        first, last = int(found[1]), int(found[2] or found[1])
        stride = int(found[3] or 1)
        if stride < 1 or (last - first) // stride + len(ranks) >= _MOST:
            return ()
        ranks += range(first, last + 1, stride)
    return tuple(ranks)


def stride_of(ranks: Sequence[int]) -> int | None:
    """How far one rank is from the next, if it is the same for all and they rise; None otherwise."""
    apart = {after - before for before, after in pairwise(ranks)}
    return next(iter(apart)) if len(apart) == 1 and min(apart) > 0 else None
