"""Which process groups a run has, and who is in them, from what the calls say and from who made which."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from stepscope.records import dataclass
from stepscope.runs.many import ManyRanks
from stepscope.runs.rank_lists import ranks_text
from stepscope.store.arrow_sql import ask
from stepscope.units import counted

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["GroupFinder", "MatchedGroup"]


@dataclass(frozen=True, slots=True)
class MatchedGroup:
    """A process group of the run."""

    gid: int
    name: str | None
    ranks: tuple[int, ...]
    """In the order of the group; if not recorded, those that made its calls."""
    size: int | None
    recorded: bool
    """Whether a profile says which ranks it has; else they follow from who made which calls."""

    @property
    def label(self) -> str:
        """Its name, or its ranks if it has none."""
        return self.name or f"ranks {ranks_text(self.ranks)}"


class GroupFinder:
    """Finds the groups of a run; `members` says of every rank and way to name a group, which it is."""

    def __init__(self, run: ManyRanks, calls: pa.Table) -> None:
        self.groups: dict[int, MatchedGroup] = {}
        self.notes: list[str] = []
        self._world = run.world_size
        self._gids: dict[Any, int] = {}
        self._rows: list[tuple[Any, ...]] = []
        told = (calls.schema.metadata or {}).get(b"listed", b"").decode()
        self._listed = [tuple(map(int, one.split(","))) for one in told.split(";") if one]
        self._find(ask(_NAMED, calls=calls).to_pylist())

    @property
    def members(self) -> pa.Table:
        """Columns rank, kind, name, listed, size and gid."""
        import pyarrow as pa

        types = (pa.int64(), pa.string(), pa.string(), pa.int64(), pa.int64(), pa.int64())
        names = ("rank", "kind", "name", "listed", "size", "gid")
        columns = zip(*self._rows, strict=True) if self._rows else [()] * len(names)
        return pa.table(
            {name: pa.array(values, kind) for name, values, kind in zip(names, columns, types, strict=True)}
        )

    def _find(self, rows: list[dict[str, Any]]) -> None:
        by_name: dict[str, set[int]] = defaultdict(set)
        for row in rows:
            if row["listed"] is not None:
                ranks = self._listed[row["listed"]]
                gid = self._gid(row["name"], ranks, len(ranks), recorded=True)
                by_name[row["name"] or ""].add(gid)
                self._add(row, gid)
        unlisted: dict[Any, list[dict[str, Any]]] = defaultdict(list)
        for row in rows:
            if row["listed"] is not None:
                continue
            same = [gid for gid in by_name[row["name"] or ""] if row["rank"] in self.groups[gid].ranks]
            if row["name"] and len(same) == 1:
                self._add(row, same[0])
            elif row["name"]:
                unlisted[row["name"], row["size"]].append(row)
            elif row["kind"] == "send-receive":
                unlisted[None, "chain"].append(row)
            else:
                unlisted[None, row["size"], row["kind"]].append(row)
        for key, found in unlisted.items():
            if key[1] == "chain":
                self._chains(found)
            else:
                self._unlisted(key[0], found)

    def _unlisted(self, name: str | None, rows: list[dict[str, Any]]) -> None:
        """A group whose ranks nobody recorded: those that made equally many of its calls in a step."""
        size = rows[0]["size"]
        everyone = tuple(sorted({row["rank"] for row in rows}))
        clusters: dict[Any, set[int]] = defaultdict(set)
        for row in rows:
            clusters[None if name else row["rate"]].add(row["rank"])
        parts = {key: tuple(sorted(ranks)) for key, ranks in clusters.items()}
        said = f"the group {name}" if name else f"the group of {rows[0]['kind']} calls"
        if size is not None and max(map(len, parts.values())) > size:
            self.notes.append(
                f"{counted(len(everyone), 'rank')} say that {said} has {size} ranks, and not which."
            )
        if len(parts) > 1:
            lists = "; ".join(ranks_text(ranks) for ranks in sorted(parts.values())[:8])
            self.notes.append(
                f"No profile names {said}, and ranks made differently many: they are taken for "
                f"the groups {lists}."
            )
        for row in rows:
            ranks = parts[None if name else row["rate"]]
            ranks = tuple(range(size)) if size and size == self._world else ranks
            self._add(row, self._gid(name, ranks, size or len(ranks), recorded=False))
        if not name and len(parts) == 1 and len(everyone) > 1:
            note = (
                "No profile names the process groups: ranks that made equally many calls are taken for one."
            )
            if note not in self.notes:
                self.notes.append(note)

    def _chains(self, rows: list[dict[str, Any]]) -> None:
        """Sends and receives without a group: ranks that are connected by them are one."""
        part: dict[int, int] = {}

        def root(rank: int) -> int:
            while part.setdefault(rank, rank) != rank:
                rank = part[rank]
            return rank

        for row in rows:
            for peer in row["peers"]:
                if peer is not None:
                    first, second = sorted((root(row["rank"]), root(peer)))
                    part[second] = first
        chains: dict[int, list[int]] = defaultdict(list)
        for rank in sorted(part):
            chains[root(rank)].append(rank)
        for row in rows:
            ranks = tuple(chains.get(root(row["rank"]), [row["rank"]]))
            self._add(row, self._gid(None, ranks, len(ranks), recorded=False, apart="chain"))

    def _gid(
        self, name: str | None, ranks: tuple[int, ...], size: int | None, *, recorded: bool, apart: str = ""
    ) -> int:
        key = (name, ranks, apart)
        if key not in self._gids:
            gid = self._gids[key] = len(self._gids)
            self.groups[gid] = MatchedGroup(gid, name, ranks, size, recorded)
        return self._gids[key]

    def _add(self, row: dict[str, Any], gid: int) -> None:
        self._rows.append((row["rank"], row["kind"], row["name"], row["listed"], row["size"], gid))


_NAMED = """
WITH by_step AS (
    SELECT rank, kind, "group" AS name, listed, group_size AS size, step, count(*) AS n,
           array_agg(DISTINCT coalesce(source, target)) AS peers
    FROM calls GROUP BY ALL)
SELECT rank, kind, name, listed, size, quantile_disc(n, 0.5) AS rate,
       list_distinct(flatten(array_agg(peers))) AS peers
FROM by_step GROUP BY rank, kind, name, listed, size ORDER BY rank, kind, name, listed, size
"""
