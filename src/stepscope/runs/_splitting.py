"""Groups that no profile names, told apart by who leaves together.

Ranks that make the same calls may be one group or several. Members of one leave each collective together, so
that from one to the next the difference of their ends does not change, whatever their clocks say; and on one
host there is none. That of ranks in different groups does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from stepscope.runs._groups import MatchedGroup
from stepscope.runs.many import ManyRanks
from stepscope.runs.rank_lists import ranks_text
from stepscope.store.arrow_sql import ask

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["split_groups"]

_LEAST = 4
"""Of fewer collectives nothing can be told."""
_MOST = 64
"""Collectives of a class that are looked at."""
_JITTER_NS = 20_000
"""Ends of one collective are this close to each other, or as close as a fourth of what it takes."""


def split_groups(
    run: ManyRanks, rows: pa.Table, groups: dict[int, MatchedGroup], kinds: tuple[str, ...]
) -> tuple[pa.Table, list[str]]:
    """Divides groups whose ranks are only supposed; adds the new ones to `groups`."""
    unsure = [gid for gid, one in groups.items() if _is_supposed(one)]
    if not unsure:
        return rows, []
    ends = ask(_ENDS.format(gids=(*unsure, -1), kinds=kinds, most=_MOST), rows=rows).to_pylist()
    classes: defaultdict[tuple[Any, ...], dict[int, dict[int, int]]] = defaultdict(lambda: defaultdict(dict))
    took: defaultdict[tuple[Any, ...], list[int]] = defaultdict(list)
    for row in ends:
        key = (row["gid"], row["kind"], row["size"])
        classes[key][row["rank"]][row["place"]] = row["end_ns"]
        took[key].append(row["dur_ns"])
    hosts = {rank: run.host_of(rank) or str(rank) for rank in run.ranks}
    moved, notes = _Splitting(groups, hosts).moved(classes, took)
    if not moved:
        return rows, notes
    return _renumbered(rows, moved), notes


def _is_supposed(one: MatchedGroup) -> bool:
    return not one.recorded and len(one.ranks) > 2 and (one.name is None or len(one.ranks) != one.size)


class _Splitting:
    """The new groups, as they are found."""

    def __init__(self, groups: dict[int, MatchedGroup], hosts: Mapping[int, str]) -> None:
        self._groups, self._hosts = groups, hosts
        self._known: dict[tuple[int, tuple[int, ...]], int] = {}
        self._lost: set[int] = set()

    def moved(
        self,
        classes: Mapping[tuple[Any, ...], Mapping[int, dict[int, int]]],
        took: Mapping[tuple[Any, ...], list[int]],
    ) -> tuple[list[tuple[Any, ...]], list[str]]:
        """For each rank and class of calls the group that it is in now, None if in none; and notes."""
        moved: list[tuple[Any, ...]] = []
        for (gid, kind, size), ends in classes.items():
            of = self._groups[gid]
            fits = of.name is None or of.size is None or len(ends) <= of.size
            if min(map(len, ends.values())) < _LEAST:
                if not fits:
                    moved += [(gid, kind, size, rank, None) for rank in ends]
                    self._lost |= {*ends}
                continue
            clusters = self._clusters(ends, max(_JITTER_NS, min(took[gid, kind, size]) // 4))
            if len(clusters) == 1 and fits:
                continue
            for ranks in clusters:
                new = self._new(of, ranks)
                moved += [(gid, kind, size, rank, new) for rank in ranks]
        return moved, _notes([ranks for _, ranks in self._known], self._lost)

    def _new(self, of: MatchedGroup, ranks: tuple[int, ...]) -> int | None:
        if len(ranks) < 2 or (of.name is not None and of.size not in (None, len(ranks))):
            self._lost |= {*ranks}
            return None
        if (of.gid, ranks) not in self._known:
            gid = self._known[of.gid, ranks] = max(self._groups) + 1
            self._groups[gid] = MatchedGroup(gid, of.name, ranks, len(ranks), recorded=False)
        return self._known[of.gid, ranks]

    def _clusters(self, ends: Mapping[int, dict[int, int]], near: int) -> list[tuple[int, ...]]:
        """Ranks that leave together with the lowest of them, for each that is left over."""
        left = sorted(ends)
        found = []
        while left:
            seed = left[0]
            together = tuple(rank for rank in left if self._apart(ends, seed, rank) <= near)
            found.append(together)
            left = [rank for rank in left if rank not in set(together)]
        return found

    def _apart(self, ends: Mapping[int, dict[int, int]], one: int, other: int) -> float:
        """How far most ends of two ranks are apart; without a common clock, how much that changes."""
        both = [
            ends[other][place] - ends[one][place] for place in sorted(ends[one].keys() & ends[other].keys())
        ]
        if self._hosts[one] != self._hosts[other]:
            both = [after - before for before, after in pairwise(both)]
        listed = sorted(map(abs, both))
        return listed[len(listed) * 9 // 10] if listed else float("inf")


def _notes(parts: list[tuple[int, ...]], lost: set[int]) -> list[str]:
    notes = []
    if parts:
        listed = "; ".join(ranks_text(ranks) for ranks in sorted(parts)[:8]) + (
            "; …" if len(parts) > 8 else ""
        )
        notes.append(f"Groups follow from who leaves collectives together: {listed}.")
    if lost:
        notes.append(
            f"No group fits some calls of the ranks {ranks_text(sorted(lost))}: nobody leaves them together."
        )
    return notes


def _renumbered(rows: pa.Table, moved: list[tuple[Any, ...]]) -> pa.Table:
    import pyarrow as pa

    names = ("gid", "kind", "size", "rank", "new")
    types = (pa.int64(), pa.string(), pa.int64(), pa.int64(), pa.int64())
    table = pa.table(
        {
            name: pa.array(of, kind)
            for name, of, kind in zip(names, zip(*moved, strict=True), types, strict=True)
        }
    )
    return ask(_RENUMBERED, rows=rows, moved=table)


_ENDS = """
WITH asked AS (
    SELECT id, gid, kind, coalesce(bytes, -1) AS size, rank, start_ns + dur_ns AS end_ns, dur_ns FROM rows
    WHERE gid IN {gids} AND kind IN {kinds} AND id IS NOT NULL),
uneven AS (SELECT gid, kind FROM asked GROUP BY id, gid, kind HAVING min(size) <> max(size)),
sized AS (
    SELECT asked.* REPLACE (CASE WHEN (gid, kind) IN (SELECT (gid, kind) FROM uneven) THEN -1 ELSE size END
                            AS size) FROM asked),
places AS (
    SELECT id, gid, kind, size,
           row_number() OVER (PARTITION BY gid, kind, size ORDER BY min(end_ns), id) AS place
    FROM sized GROUP BY id, gid, kind, size)
SELECT gid, kind, size, rank, place, end_ns, dur_ns FROM sized JOIN places USING (id, gid, kind, size)
WHERE place <= {most} ORDER BY gid, kind, size, rank, place
"""
_RENUMBERED = """
WITH joined AS (
    SELECT r.*, m.new, m.rank IS NOT NULL AS is_moved FROM rows r
    LEFT JOIN moved m ON m.gid = r.gid AND m.kind = r.kind AND m.rank = r.rank
        AND (m.size = -1 OR m.size = r.bytes)),
ids AS (
    SELECT id, new, row_number() OVER (ORDER BY id, new) + (SELECT max(id) FROM rows) AS fresh
    FROM joined WHERE new IS NOT NULL AND id IS NOT NULL GROUP BY id, new HAVING count(*) > 1)
SELECT j.* EXCLUDE (new, is_moved)
       REPLACE (coalesce(j.new, j.gid) AS gid, CASE WHEN is_moved THEN ids.fresh ELSE j.id END AS id)
FROM joined j LEFT JOIN ids ON ids.id = j.id AND ids.new = j.new
"""
