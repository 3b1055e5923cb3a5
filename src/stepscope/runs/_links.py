"""How fast the ranks of a group are connected, if all of them are on one known machine."""

from __future__ import annotations

from collections.abc import Iterable

from stepscope.hardware import recognised
from stepscope.runs.many import ManyRanks

__all__ = ["link_gb_per_s"]


def link_gb_per_s(run: ManyRanks, ranks: Iterable[int]) -> float | None:
    """The peak between the devices of a group in one direction; None across hosts, or if not known."""
    members = tuple(ranks)
    facts = {one.facts.rank: one.facts for one in run.summaries}
    known = [facts.get(rank) for rank in members]
    if len(members) < 2 or any(one is None or not one.host or not one.device for one in known):
        return None
    hosts = {one.host for one in known if one}
    devices = {one.device for one in known if one}
    if len(hosts) > 1 or len(devices) > 1:
        return None
    name = next(iter(devices))
    found, _ = recognised(name)
    link = found.link_of(name) if found else None
    return link.peak(len(members)) / 1e9 if link else None
