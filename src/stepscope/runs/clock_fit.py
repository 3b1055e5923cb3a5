"""Offsets and drifts of the ranks' clocks, from collectives that end together.

All members of an all-reduce are done when the last one came and the transfer is over, so that their ends are
one moment on different clocks. In each group one member is compared with every other: the median of the
differences is the offset, and the median of slopes between its two halves the drift, if it is clear. Groups
are joined through common members. Ranks on one host share a clock: if their offsets agree, they are fitted
together; if not, a note says so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from math import ceil, sqrt
from typing import TYPE_CHECKING, Any

from stepscope.runs.many import ManyRanks
from stepscope.runs.matching import TOGETHER, Matched, matched
from stepscope.runs.rank_lists import ranks_text
from stepscope.store.arrow_sql import ask
from stepscope.units import duration

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ClockFit", "FittedClock", "clock_fit"]

_MOST_DRIFT = 1e-3
"""No clock of a computer runs this much faster than another; time servers correct by half of it at most."""
_LEAST_FOR_DRIFT = 8
"""Collectives that a drift must be seen in."""
_CLEAR = 4.0
"""A drift counts if it is so many times its own uncertainty."""
_ENOUGH = 256
"""Collectives of a group that are enough for the fit."""
_FEW = 3
"""Of fewer collectives, residuals tell nothing."""
_TIMESTAMP_NS = 10_000
"""Timestamps of devices are turned into time of the host to within a few microseconds."""


@dataclass(frozen=True, slots=True)
class FittedClock:
    """The clock of a rank: reference time = local + offset_ns + drift · (local − since_ns)."""

    rank: int
    host: str
    offset_ns: int
    since_ns: int
    drift: float | None
    error_ns: int | None
    collectives: int
    state: str
    part: int
    """Ranks with the same number are aligned with each other; 0 is that of the reference."""


@dataclass(frozen=True)
class ClockFit:
    """The clocks of a run."""

    clocks: tuple[FittedClock, ...]
    notes: tuple[str, ...]

    @property
    def table(self) -> pa.Table:
        """For joins: rank, offset_ns, since_ns, drift (0 if none), error_ns (0 if not known), part."""
        import pyarrow as pa

        return pa.table(
            {
                "rank": pa.array([one.rank for one in self.clocks], pa.int64()),
                "offset_ns": pa.array([one.offset_ns for one in self.clocks], pa.int64()),
                "since_ns": pa.array([one.since_ns for one in self.clocks], pa.int64()),
                "drift": pa.array([one.drift or 0.0 for one in self.clocks], pa.float64()),
                "error_ns": pa.array([one.error_ns or 0 for one in self.clocks], pa.int64()),
                "part": pa.array([one.part for one in self.clocks], pa.int64()),
            }
        )


def clock_fit(run: ManyRanks) -> ClockFit:
    """The clocks of a run, fitted once."""
    found: ClockFit = run.once("clock_fit", lambda: _fit(run, matched(run)))
    return found


@dataclass(frozen=True, slots=True, order=True)
class _Line:
    """Time of another node = own time + offset + drift · (own time − since)."""

    offset: int
    since: int
    drift: float = 0.0

    def at(self, own: int) -> int:
        """The offset at a moment of the own clock."""
        return self.offset + round(self.drift * (own - self.since))

    def after(self, first: _Line) -> _Line:
        """First the one line, then this one."""
        there = first.since + first.offset
        drift = first.drift + self.drift + first.drift * self.drift
        return _Line(first.offset + self.at(there), first.since, drift)


def _fit(run: ManyRanks, calls: Matched) -> ClockFit:
    ends = ask(_ENDS, rows=calls.calls)
    alone = {rank: rank for rank in run.ranks}
    first = _tree(_pairs(ends, alone), run.ranks)
    nodes, notes = _hosts(run, first, _residuals(ends, first))
    lines = first
    if len(set(nodes.values())) < len(nodes):
        by_node = _tree(_pairs(ends, nodes), sorted(set(nodes.values())))
        lines = {rank: by_node[node] for rank, node in nodes.items()}
    found = _residuals(ends, lines)
    clocks = tuple(_clock(run, rank, lines[rank], nodes, found) for rank in run.ranks)
    apart = [one.rank for one in clocks if one.state == "unaligned"]
    if apart:
        notes.append(
            f"Not aligned with the others: {_named(apart)}. They have no collective in common that ends "
            "together on all of its ranks."
        )
    blind = [one.rank for one in clocks if one.state == "shared" and not one.collectives]
    if blind:
        notes.append(
            f"The clock of {_named(blind)} is taken for that of the host; no collective confirms it."
        )
    return ClockFit(clocks, tuple(notes))


def _named(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {ranks_text(ranks)}"


def _clock(
    run: ManyRanks, rank: int, line: _Placed, nodes: Mapping[int, int], found: Mapping[int, _Residual]
) -> FittedClock:
    seen = found.get(rank)
    state = "fitted"
    if line.part:
        state = "unaligned"
    elif rank == line.root_rank:
        state = "reference"
    elif nodes[rank] != rank:
        state = "shared"
    error: int | None = seen.error_ns if seen else None
    return FittedClock(
        rank=rank,
        host=run.host_of(rank),
        offset_ns=line.line.offset,
        since_ns=line.line.since,
        drift=line.line.drift or None,
        error_ns=error,
        collectives=seen.count if seen else 0,
        state=state,
        part=line.part,
    )


@dataclass(frozen=True, slots=True)
class _Placed:
    """A node's way to its reference."""

    line: _Line
    part: int
    root_rank: int = -1


@dataclass(frozen=True, slots=True)
class _Pair:
    """How one node of a group differs from the one that it is compared with."""

    known: int
    node: int
    count: int
    line: _Line
    scale: float
    """The median of what the line leaves."""


def _pairs(ends: pa.Table, nodes: Mapping[int, int]) -> list[_Pair]:
    """Every node of every group against one of them that took part most often."""
    import pyarrow as pa

    places = pa.table(
        {"rank": pa.array(list(nodes), pa.int64()), "node": pa.array(nodes.values(), pa.int64())}
    )
    rows = ask(_PAIRS, ends=ends, places=places).to_pylist()
    return [_pair(row) for row in rows]


# Of many collectives of a group some, evenly spread: a few hundred tell a clock as well as all of them.
_ENDS = f"""
WITH all_of AS (
    SELECT id, gid, row_number() OVER (PARTITION BY gid ORDER BY moment, id) AS place,
           count(*) OVER (PARTITION BY gid) AS n
    FROM (SELECT id, gid, min(start_ns) AS moment FROM rows
          WHERE id IS NOT NULL AND kind IN {TOGETHER} GROUP BY id, gid)),
spread AS (SELECT id FROM all_of WHERE place % greatest(1, n // {_ENOUGH}) = 0)
SELECT id, gid, rank, start_ns + dur_ns AS end_ns, dur_ns FROM rows SEMI JOIN spread USING (id)
"""
_PAIRS = """
WITH met AS (
    SELECT id, gid, node, quantile_disc(end_ns, 0.5) AS end_ns FROM ends JOIN places USING (rank)
    GROUP BY id, gid, node),
often AS (
    SELECT gid, node, count(*) AS n FROM met GROUP BY gid, node),
firsts AS (
    SELECT gid, arg_min(node, (-n, node)) AS known FROM often GROUP BY gid HAVING count(*) > 1),
apart AS (
    SELECT m.gid, f.known, m.node, m.end_ns AS own, k.end_ns - m.end_ns AS apart,
           row_number() OVER (PARTITION BY m.gid, m.node ORDER BY m.end_ns) AS place,
           count(*) OVER (PARTITION BY m.gid, m.node) AS n
    FROM met m JOIN firsts f ON f.gid = m.gid JOIN met k ON k.id = m.id AND k.node = f.known
    WHERE m.node <> f.known),
slopes AS (
    SELECT a.gid, a.node, median((b.apart - a.apart) / (b.own - a.own)) AS slope
    FROM apart a JOIN apart b ON b.gid = a.gid AND b.node = a.node AND b.place = a.place + (a.n + 1) // 2
    WHERE b.own > a.own GROUP BY a.gid, a.node),
flat AS (
    SELECT gid, known, node, count(*) AS n, min(own) AS since, max(own) AS until,
           quantile_disc(apart, 0.5) AS offset
    FROM apart GROUP BY gid, known, node),
sloped AS (
    SELECT a.gid, a.node, median(a.apart - f.offset - s.slope * (a.own - f.since)) AS more
    FROM apart a JOIN slopes s ON s.gid = a.gid AND s.node = a.node
        JOIN flat f ON f.gid = a.gid AND f.node = a.node GROUP BY a.gid, a.node)
SELECT f.known, f.node, f.n, f.since, f.until, f.offset, s.slope, d.more,
       median(abs(a.apart - f.offset)) AS scale,
       median(abs(a.apart - f.offset - d.more - s.slope * (a.own - f.since))) AS sloped_scale,
       quantile_cont(abs(a.apart - f.offset - d.more - s.slope * (a.own - f.since)), 0.95) AS sloped_most
FROM apart a JOIN flat f ON f.gid = a.gid AND f.node = a.node
    LEFT JOIN slopes s ON s.gid = a.gid AND s.node = a.node
    LEFT JOIN sloped d ON d.gid = a.gid AND d.node = a.node
GROUP BY a.gid, f.known, f.node, f.n, f.since, f.until, f.offset, s.slope, d.more
ORDER BY a.gid, f.node
"""


def _pair(row: dict[str, Any]) -> _Pair:
    """The line of a pair, with a drift if the collectives show one."""
    n, span, slope = row["n"], row["until"] - row["since"], row["slope"]
    flat = _Pair(row["known"], row["node"], n, _Line(row["offset"], row["since"]), row["scale"])
    if n < _LEAST_FOR_DRIFT or not span or slope is None or abs(slope) > _MOST_DRIFT:
        return flat
    # Of evenly spread points with that noise; a median is less sure than a mean.
    noise = 1.4826 * max(row["sloped_scale"], 1.0)
    unsure = 1.6 * noise * sqrt(12 / n) / span
    # A drift that moves the ends by less than they vary is no better known than by the error.
    if abs(slope) < _CLEAR * unsure or abs(slope) * span < 2 * row["sloped_most"]:
        return flat
    line = _Line(row["offset"] + round(row["more"]), row["since"], slope)
    return _Pair(row["known"], row["node"], n, line, row["sloped_scale"])


def _tree(pairs: list[_Pair], nodes: Any) -> dict[int, _Placed]:
    """Every node's line to the lowest of those that it is connected with; surest pairs first."""
    near: dict[int, list[tuple[float, int, _Line]]] = defaultdict(list)
    for pair in pairs:
        unsure = (pair.scale + 1) / sqrt(pair.count)
        # From a node to those next to it, with the line that leads back from these.
        near[pair.known].append((unsure, pair.node, pair.line))
        near[pair.node].append((unsure, pair.known, _back(pair.line)))
    placed: dict[int, _Placed] = {}
    parts = [_grown(node, near, placed) for node in nodes if node not in placed]
    # The clock of the largest part is the reference.
    order = sorted(range(len(parts)), key=lambda part: (-len(parts[part]), part))
    for number, part in enumerate(order):
        for node in parts[part]:
            placed[node] = replace(placed[node], part=number, root_rank=parts[part][0])
    return placed


def _back(line: _Line) -> _Line:
    """The same seen from the other clock."""
    return _Line(-line.offset, line.since + line.offset, -line.drift / (1 + line.drift))


def _grown(
    root: int, near: Mapping[int, list[tuple[float, int, _Line]]], placed: dict[int, _Placed]
) -> list[int]:
    """Places all that are connected with a node, each through the surest pair that leads to it."""
    placed[root] = _Placed(_Line(0, 0), 0)
    found = [root]
    heap: list[tuple[float, int, int, _Line]] = []
    onward = root
    while True:
        for unsure, node, line in near[onward]:
            heappush(heap, (unsure, node, onward, line))
        while heap and heap[0][1] in placed:
            heappop(heap)
        if not heap:
            return found
        _, node, known, line = heappop(heap)
        placed[node] = _Placed(placed[known].line.after(line), 0)
        found.append(node)
        onward = node


@dataclass(frozen=True, slots=True)
class _Residual:
    """What is left of the ends of a rank."""

    count: int
    error_ns: int


def _residuals(ends: pa.Table, lines: Mapping[int, _Placed]) -> dict[int, _Residual]:
    """How far a rank's aligned ends are from the others'; if there are few, at least the transfer."""
    import pyarrow as pa

    table = pa.table(
        {
            "rank": pa.array(list(lines), pa.int64()),
            "offset_ns": pa.array([one.line.offset for one in lines.values()], pa.int64()),
            "since_ns": pa.array([one.line.since for one in lines.values()], pa.int64()),
            "drift": pa.array([one.line.drift for one in lines.values()], pa.float64()),
        }
    )
    rows = ask(_RESIDUALS, ends=ends, lines=table).to_pylist()
    return {
        row["rank"]: _Residual(
            row["n"], ceil(row["error"] if row["n"] >= _FEW else max(row["error"], row["shortest"]))
        )
        for row in rows
    }


_RESIDUALS = """
WITH aligned AS (
    SELECT id, rank, dur_ns, end_ns + offset_ns + round(drift * (end_ns - since_ns))::BIGINT AS end_ns
    FROM ends JOIN lines USING (rank)),
middles AS (
    SELECT id, min(end_ns) AS least, median(end_ns - first) AS middle, count(*) AS n, min(dur_ns) AS shortest
    FROM aligned JOIN (SELECT id, min(end_ns) AS first FROM aligned GROUP BY id) USING (id) GROUP BY id)
SELECT rank, count(*) AS n, median(shortest) AS shortest,
       -- Of two, the middle is between them: what counts is how far they are from each other.
       quantile_cont(abs(end_ns - least - middle) * CASE WHEN n = 2 THEN 2 ELSE 1 END, 0.95) AS error
FROM aligned JOIN middles USING (id) GROUP BY rank ORDER BY rank
"""


def _hosts(
    run: ManyRanks, lines: Mapping[int, _Placed], found: Mapping[int, _Residual]
) -> tuple[dict[int, int], list[str]]:
    """For every rank the lowest of those whose clock it shares, as far as the fit does not say otherwise."""
    nodes: dict[int, int] = {}
    notes: list[str] = []
    firsts: dict[str, int] = {}
    starts = {
        row["rank"]: (row["first"], row["last"])
        for row in ask(
            "SELECT rank, min(start_ns) AS first, max(start_ns) AS last FROM calls GROUP BY rank",
            calls=run.stacked("calls").select(["rank", "start_ns"]),
        ).to_pylist()
    }
    for rank in sorted(run.ranks, key=lambda one: (lines[one].part, one)):
        host = run.host_of(rank)
        known = firsts.setdefault(host, rank) if host else rank
        nodes[rank] = known
        if known == rank or lines[known].part != lines[rank].part:
            continue
        sure = 3 * sum(found[one].error_ns for one in (rank, known) if one in found) + _TIMESTAMP_NS
        apart = max(
            (abs(lines[rank].line.at(at) - lines[known].line.at(at)) for at in starts.get(rank, ())),
            default=0,
        )
        if apart > sure:
            nodes[rank] = rank
            notes.append(
                f"Ranks {known} and {rank} say that they are on one host, {host}, and their collectives end "
                f"{duration(apart)} apart: it is not one clock, or they are matched wrongly."
            )
    return nodes, notes[:8]
