"""The process groups of a program, as far as a profile names them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepscope.costs.collectives import listed_ranks
from stepscope.records import dataclass

__all__ = ["Groups"]

_MOST_RANKS = 1 << 20


@dataclass(frozen=True, slots=True)
class Groups:
    """What the header of a profile says: the ranks of each group by its name."""

    ranks: Mapping[str, tuple[int, ...]]
    only: str | None
    """The name of the group if there is one alone, so that everything belongs to it."""

    @classmethod
    def of(cls, metadata: Mapping[str, Any]) -> Groups:
        """The groups in a header."""
        told = metadata.get("distributedInfo")
        config = told.get("pg_config") if isinstance(told, dict) else None
        ranks: dict[str, tuple[int, ...]] = {}
        for one in config if isinstance(config, list) else ():
            listed = one.get("ranks") if isinstance(one, dict) else None
            if isinstance(listed, list) and all(type(rank) is int and rank >= 0 for rank in listed):
                ranks[str(one.get("pg_name"))] = tuple(listed)
        alone = len(ranks) == 1 and isinstance(config, list) and len(config) == 1
        return cls(ranks, next(iter(ranks)) if alone else None)

    def of_call(self, told: Mapping[str, Any]) -> tuple[str | None, tuple[int, ...], int | None]:
        """Name, ranks and size of a collective's group; the ranks are empty if they are not known."""
        name = told["group_name"] or self.only
        ranks = listed_ranks(told["ranks"]) or self.ranks.get(str(name), ())
        size = _whole(told["group_size"]) or _whole(told["given_size"]) or len(ranks) or None
        if ranks and size is not None and len(ranks) != size:
            ranks = ()
        first, stride = _whole(told["first_rank"], least=0), _whole(told["rank_stride"])
        if not ranks and name is not None and size and size < _MOST_RANKS and first is not None and stride:
            ranks = tuple(range(first, first + size * stride, stride))
        return name, ranks, size


def _whole(text: Any, least: int = 1) -> int | None:
    """A number of ranks, or a rank."""
    try:
        number = int(text)
    except (TypeError, ValueError):
        return None
    return number if least <= number < _MOST_RANKS else None
