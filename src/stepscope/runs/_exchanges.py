"""Who sends how much to whom: the parts of all-to-alls, and sends with their receives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.runs.aligned import Aligned, aligned
from stepscope.runs.many import ManyRanks
from stepscope.store.arrow_sql import ask
from stepscope.units import counted

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["exchanges", "told_sizes"]

_MOST_PARTS = 20_000_000
"""Of larger runs the first steps are looked at: a matrix of many ranks says the same after a few."""


def exchanges(run: ManyRanks) -> tuple[pa.Table, list[str]]:
    """Columns group, kind, from_rank, to_rank, bytes and calls; and what has to be said of them."""
    found = aligned(run)
    calls, notes = _first_steps(found)
    rows = ask(
        _EDGES,
        calls=calls,
        told=told_sizes(run),
        members=_members(found),
        there=ask("SELECT DISTINCT rank FROM c", c=found.calls.select(["rank"])),
    )
    lost = ask(
        "SELECT count(*) AS n FROM calls "
        "WHERE kind = 'send-receive' AND (from_rank IS NULL OR to_rank IS NULL)",
        calls=calls,
    ).to_pylist()[0]["n"]
    if lost:
        notes.append(f"{counted(lost, 'call')} left out: they do not say who sends to whom.")
    return rows, [*found.notes, *notes]


def told_sizes(run: ManyRanks) -> pa.Table:
    """What calls say about the two sides of an exchange."""
    names = ["rank", "call", "in_bytes", "out_bytes", "in_splits", "out_splits"]
    return run.stacked("calls").select(names)


def _first_steps(found: Aligned) -> tuple[pa.Table, list[str]]:
    names = ["rank", "call", "step", "kind", "gid", "bytes", "from_rank", "to_rank"]
    calls = ask(
        "SELECT * FROM calls WHERE step IS NOT NULL AND kind IN ('all-to-all', 'send-receive')",
        calls=found.calls.select(names),
    )
    members = max((len(one.ranks) for one in found.groups.values()), default=0)
    steps = sorted(set(calls["step"].to_pylist()))
    most = max(1, _MOST_PARTS * max(1, len(steps)) // max(1, calls.num_rows * members))
    if most >= len(steps):
        return calls, []
    kept = ask("SELECT * FROM calls WHERE step < $step", {"step": steps[most]}, calls=calls)
    return kept, [f"Of the first {counted(most, 'step')}: there are too many calls to look at all."]


def _members(found: Aligned) -> pa.Table:
    import pyarrow as pa

    rows = [
        (group.gid, group.label, place, rank)
        for group in found.groups.values()
        for place, rank in enumerate(group.ranks, 1)
    ]
    types = {"gid": pa.int64(), "label": pa.string(), "place": pa.int64(), "member": pa.int64()}
    columns = zip(*rows, strict=True) if rows else [()] * len(types)
    return pa.table({name: pa.array(of, types[name]) for name, of in zip(types, columns, strict=True)})


# An exchange counts for who sends; what a rank without a profile sends is known from those that receive it.
_EDGES = """
WITH sizes AS (SELECT gid, count(*) AS size, any_value(label) AS label FROM members GROUP BY gid),
sides AS (
    SELECT c.gid, c.rank, true AS sends, t.in_bytes AS bytes, t.in_splits AS splits
    FROM calls c JOIN told t ON t.rank = c.rank AND t.call = c.call WHERE c.kind = 'all-to-all'
    UNION ALL
    SELECT c.gid, c.rank, false, t.out_bytes, t.out_splits
    FROM calls c JOIN told t ON t.rank = c.rank AND t.call = c.call WHERE c.kind = 'all-to-all'
        AND c.gid IN (SELECT gid FROM members WHERE member NOT IN (SELECT rank FROM there))),
alike AS (SELECT gid, rank, sends, bytes, splits, count(*) AS n FROM sides GROUP BY ALL),
lists AS (
    SELECT a.*, s.size, CASE WHEN splits IS NULL THEN list_resize([]::DOUBLE[], s.size, 1.0)
                             ELSE try_cast(string_split(splits, ',') AS DOUBLE[]) END AS parts
    FROM alike a JOIN sizes s USING (gid)),
parts AS (
    SELECT gid, rank, sends, bytes, n, list_sum(parts) AS whole, unnest(parts) AS part,
           generate_subscripts(parts, 1) AS place FROM lists WHERE len(parts) = size),
edges AS (
    SELECT p.gid, 'all-to-all' AS kind, CASE WHEN sends THEN p.rank ELSE member END AS from_rank,
           CASE WHEN sends THEN member ELSE p.rank END AS to_rank,
           round(p.bytes * part / nullif(whole, 0))::BIGINT * n AS bytes, n
    FROM parts p JOIN members m ON m.gid = p.gid AND m.place = p.place
    WHERE sends OR member NOT IN (SELECT rank FROM there)
    UNION ALL
    SELECT gid, kind, from_rank, to_rank, bytes, 1 FROM calls
    WHERE kind = 'send-receive' AND from_rank IS NOT NULL AND to_rank IS NOT NULL
        AND (rank = from_rank OR from_rank NOT IN (SELECT rank FROM there)))
SELECT label AS "group", kind, from_rank, to_rank, sum(n)::BIGINT AS calls,
       CASE WHEN count(bytes) = count(*) THEN sum(bytes) END::BIGINT AS bytes
FROM edges JOIN sizes USING (gid) GROUP BY gid, label, kind, from_rank, to_rank
ORDER BY kind, "group", from_rank, to_rank
"""
