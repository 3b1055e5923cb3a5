"""What a process group is for, as far as its ranks, kinds and numbers of calls tell."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from stepscope.records import dataclass
from stepscope.runs.matching import MatchedGroup
from stepscope.runs.rank_lists import stride_of
from stepscope.units import percent, tally

__all__ = ["GroupUse", "role_of"]

_NAMES = (
    ("tensor", re.compile(r"(^|[^a-z])(tp|tensor)([^a-z]|$)", re.IGNORECASE)),
    ("pipeline", re.compile(r"(^|[^a-z])(pp|pipe|pipeline)([^a-z]|$)", re.IGNORECASE)),
    ("expert", re.compile(r"(^|[^a-z])(ep|expert|moe)([^a-z]|$)", re.IGNORECASE)),
    ("data", re.compile(r"(^|[^a-z])(dp|ddp|fsdp|hsdp|data|replicate|shard)([^a-z]|$)", re.IGNORECASE)),
)
_SUMMING = ("all-reduce", "all-gather", "reduce-scatter")
_BLOCKING = 0.5
"""Tensor parallel layers wait for their collectives; those of gradients run beside the computing."""


@dataclass(frozen=True, slots=True)
class GroupUse:
    """How a group is used."""

    name: str
    ranks: tuple[int, ...]
    stride: int | None
    everyone: bool
    calls: Mapping[str, int]
    """By kind."""
    per_step: float
    """Calls of a rank in a step."""
    uneven: bool
    """Whether parts of its all-to-alls have different sizes."""
    exposed_share: float
    """Of the time of its summing collectives, in which the ranks did nothing else."""

    @classmethod
    def of(cls, group: MatchedGroup, rows: Sequence[Mapping[str, Any]], steps: int, world: int) -> GroupUse:
        """From its calls by kind."""
        summing = [row for row in rows if row["kind"] in _SUMMING]
        took = sum(row["dur_ns"] for row in summing)
        return cls(
            name=group.name or "",
            ranks=group.ranks,
            stride=stride_of(sorted(group.ranks)),
            everyone=len(group.ranks) == world,
            calls={row["kind"]: row["calls"] for row in rows},
            per_step=sum(row["calls"] for row in rows) / max(1, *(row["ranks"] for row in rows)) / steps,
            uneven=any(row["uneven"] for row in rows),
            exposed_share=sum(row["exposed_ns"] for row in summing) / took if took else 0.0,
        )

    @property
    def main(self) -> str:
        """The kind that it does most."""
        return max(self.calls, key=lambda kind: (self.calls[kind], kind))

    @property
    def sums(self) -> bool:
        """Whether it sums or gathers anything."""
        return any(kind in self.calls for kind in _SUMMING)


def role_of(use: GroupUse, others: Sequence[GroupUse]) -> tuple[str, str]:
    """What a group is for, and a sentence that says why."""
    named = next((role for role, pattern in _NAMES if pattern.search(use.name)), None)
    if len(use.ranks) < 2:
        return "unknown", "Nobody else is in it."
    if use.main == "send-receive":
        return "pipeline", "Its ranks send to and receive from one another."
    if use.calls.get("all-to-all") and (use.uneven or named == "expert"):
        return "expert", "Its ranks exchange uneven parts (all-to-all), as tokens for experts are."
    if use.main == "all-to-all":
        return ("all" if use.everyone else "unknown"), "Its ranks exchange even parts (all-to-all)."
    if named and use.sums:
        return named, f"Its name says so, {use.name}."
    smaller = [one for one in others if not one.everyone and len(one.ranks) > 1]
    if use.everyone:
        if any(one.sums for one in smaller) or not use.sums:
            return "all", "All ranks are in it, and smaller groups do most of the communication."
        return "data", f"All ranks are in it, and there is no other for {use.main} calls."
    return _by_ranks(use, smaller)


def _by_ranks(use: GroupUse, others: Sequence[GroupUse]) -> tuple[str, str]:
    """A part of the ranks that sums or gathers: next to each other or apart, waited for or not."""
    if not use.sums:
        return "unknown", f"Nothing but {use.main} calls."
    often = f"{tally(use.per_step)} calls of a rank in a step"
    exposed = f"{percent(use.exposed_share)} of their time exposed"
    apart = [one for one in others if one.sums and one.stride and one.stride > 1]
    near = [one for one in others if one.sums and one.stride == 1]
    if use.stride and use.stride > 1:
        beside = ", beside groups of neighbours" if near else ""
        return "data", f"Every {use.stride}th rank{beside}: {often}, mostly {use.main}."
    if use.stride == 1 and use.exposed_share >= _BLOCKING and (apart or use.main == "all-reduce"):
        return "tensor", f"Ranks next to each other wait for it: {often}, {exposed}."
    if use.stride == 1 and use.exposed_share < _BLOCKING:
        return "data", f"Ranks next to each other compute beside it: {often}, {exposed}."
    return "unknown", f"Neither its ranks nor its calls tell: {often}, mostly {use.main}, {exposed}."
