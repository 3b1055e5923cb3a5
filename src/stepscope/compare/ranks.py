"""The ranks of two runs, paired by their numbers: how each of them changed, and which have no counterpart."""

from __future__ import annotations

from typing import Annotated

from stepscope.compare import RankOfSide, RanksOfSide, StepChange
from stepscope.records import dataclass

__all__ = ["ChangedRank", "PairedRanks", "paired_ranks"]


@dataclass(frozen=True, slots=True)
class ChangedRank:
    """The mean step of a rank, before and after."""

    rank: Annotated[int, "The rank, on both sides."]
    host: Annotated[str | None, "Its machine after the change; NULL if not recorded."]
    own_change_ns: Annotated[int, "By how much its own time changed: all but exposed communication."]
    own_before_ns: Annotated[int, "Its own time before."]
    own_after_ns: Annotated[int, "Its own time after."]
    wait_change_ns: Annotated[int, "By how much its exposed waiting for other ranks changed."]
    transfer_change_ns: Annotated[int, "By how much its exposed transfer changed."]
    step_change_ns: Annotated[int, "By how much its step changed."]
    step_before_ns: Annotated[int, "Its step before."]
    step_after_ns: Annotated[int, "Its step after."]
    wait_before_ns: Annotated[int, "Exposed waiting for other ranks before."]
    wait_after_ns: Annotated[int, "Exposed waiting for other ranks after."]
    transfer_before_ns: Annotated[int, "Exposed transfer before."]
    transfer_after_ns: Annotated[int, "Exposed transfer after."]


@dataclass(frozen=True, slots=True)
class PairedRanks:
    """What can be compared rank by rank, and what cannot."""

    pairs: tuple[ChangedRank, ...]
    """In the order of ranks."""
    only_before: tuple[int, ...]
    only_after: tuple[int, ...]

    @property
    def most_changed(self) -> tuple[ChangedRank, ...]:
        """Those first whose own time changed most: what a rank waits for is the doing of another."""
        return tuple(sorted(self.pairs, key=lambda one: (-abs(one.own_change_ns), one.rank)))


def paired_ranks(change: StepChange) -> PairedRanks | None:
    """The ranks of both sides; None unless both are runs of several ranks."""
    if change.before.ranks is None or change.after.ranks is None:
        return None
    before, after = _by_rank(change.before.ranks), _by_rank(change.after.ranks)
    return PairedRanks(
        pairs=tuple(_changed(before[rank], after[rank]) for rank in sorted(before.keys() & after.keys())),
        only_before=tuple(sorted(before.keys() - after.keys())),
        only_after=tuple(sorted(after.keys() - before.keys())),
    )


def _by_rank(side: RanksOfSide) -> dict[int, RankOfSide]:
    return {one.rank: one for one in side.each}


def _changed(before: RankOfSide, after: RankOfSide) -> ChangedRank:
    return ChangedRank(
        rank=after.rank,
        host=after.host,
        own_change_ns=after.own_ns - before.own_ns,
        own_before_ns=before.own_ns,
        own_after_ns=after.own_ns,
        wait_change_ns=after.wait_ns - before.wait_ns,
        transfer_change_ns=after.transfer_ns - before.transfer_ns,
        step_change_ns=after.step_ns - before.step_ns,
        step_before_ns=before.step_ns,
        step_after_ns=after.step_ns,
        wait_before_ns=before.wait_ns,
        wait_after_ns=after.wait_ns,
        transfer_before_ns=before.transfer_ns,
        transfer_after_ns=after.transfer_ns,
    )
