"""Pipelines of a run: ranks that send to one another in a row, each a stage."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise

from stepscope.records import dataclass
from stepscope.runs.aligned import Aligned
from stepscope.store.arrow_sql import ask

__all__ = ["Chain", "across_stages", "chains"]


@dataclass(frozen=True, slots=True)
class Chain:
    """The stages of a pipeline, from the first to the last."""

    gid: int
    ranks: tuple[int, ...]
    in_row: bool
    """Whether each sends to its neighbours only; else the order is that of the group."""


def chains(found: Aligned) -> list[Chain]:
    """The pipelines of a run: in each group, ranks that are connected by messages."""
    rows = ask(_EDGES, calls=found.calls).to_pylist()
    firsts: defaultdict[int, dict[tuple[int, int], int]] = defaultdict(dict)
    for row in rows:
        firsts[row["gid"]][row["from_rank"], row["to_rank"]] = row["first"]
    listed = []
    for gid, edges in firsts.items():
        for ranks in _connected(edges):
            inside = {edge: first for edge, first in edges.items() if edge[0] in ranks}
            row_of = _in_row(ranks, inside)
            order = row_of or tuple(rank for rank in found.groups[gid].ranks if rank in ranks)
            listed.append(Chain(gid, order, in_row=bool(row_of)))
    return listed


def across_stages(found: Aligned) -> list[int]:
    """Groups with several stages of one pipeline: these wait for each other by design, nobody is late."""
    sets = [frozenset(one.ranks) for one in chains(found)]
    return [gid for gid, group in found.groups.items() if any(len(one & {*group.ranks}) > 1 for one in sets)]


def _connected(edges: Iterable[tuple[int, int]]) -> list[set[int]]:
    parts: list[set[int]] = []
    for edge in edges:
        touching = [part for part in parts if part & {*edge}]
        parts = [part for part in parts if not part & {*edge}]
        parts.append(set(edge).union(*touching))
    return parts


def _in_row(ranks: set[int], edges: dict[tuple[int, int], int]) -> tuple[int, ...]:
    """The ranks from end to end, the one that sends first in front; nothing if they are not in a row."""
    near: defaultdict[int, set[int]] = defaultdict(set)
    for of, to in edges:
        near[of].add(to)
        near[to].add(of)
    ends = [rank for rank in sorted(ranks) if len(near[rank]) == 1]
    if len(ends) != 2 or any(len(near[rank]) > 2 for rank in ranks):
        return ()
    order = [ends[0]]
    while len(order) < len(ranks):
        order.append(next(rank for rank in near[order[-1]] if rank not in order[-2:]))
    ahead = [edges[pair] for pair in pairwise(order) if pair in edges]
    back = [edges[pair] for pair in pairwise(reversed(order)) if pair in edges]
    return tuple(order if min(ahead, default=0) <= min(back, default=0) else reversed(order))


_EDGES = """
WITH firsts AS (SELECT rank, min(step) + 1 AS step FROM calls WHERE step IS NOT NULL GROUP BY rank)
SELECT c.gid, c.from_rank, c.to_rank,
       coalesce(min(c.arrival_ns) FILTER (c.step = f.step), min(c.arrival_ns)) AS first
FROM calls c LEFT JOIN firsts f ON f.rank = c.rank
WHERE c.kind = 'send-receive' AND c.from_rank = c.rank AND c.to_rank IS NOT NULL AND c.step IS NOT NULL
GROUP BY c.gid, c.from_rank, c.to_rank ORDER BY c.gid, c.from_rank, c.to_rank
"""
