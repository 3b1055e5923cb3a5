"""How evenly the ranks of all-to-alls are loaded."""

from __future__ import annotations

from typing import Annotated

from stepscope.records import dataclass
from stepscope.runs._exchanges import told_sizes
from stepscope.runs.aligned import aligned
from stepscope.runs.analyses import run_analysis
from stepscope.runs.analyses.collective_ranks import labels_of
from stepscope.runs.many import ManyRanks
from stepscope.store.arrow_sql import ask
from stepscope.tables import Table

__all__ = ["ExpertLoad", "expert_loads"]


@dataclass(frozen=True, slots=True)
class ExpertLoad:
    """What a rank gives and gets in the all-to-alls of a group."""

    group: Annotated[str, "Process group, or its ranks if it has no name."]
    rank: Annotated[int, "The rank."]
    calls: Annotated[int, "All-to-alls that it took part in."]
    sent_bytes: Annotated[int | None, "What it gives, with what it keeps; NULL if not recorded."]
    received_bytes: Annotated[int | None, "What it gets, with what it keeps; NULL if not recorded."]
    load_bytes: Annotated[
        int | None,
        "What its experts have to do: of each all-to-all what it gets or gives, whichever is less even among "
        "ranks. Tokens go to experts unevenly, and come back evenly.",
    ]
    share: Annotated[float | None, "Its part of the load of all ranks in the group."]
    imbalance: Annotated[float | None, "Of the group: the largest load over the mean; 1 is even."]


@run_analysis
def expert_loads(run: ManyRanks) -> Table[ExpertLoad]:
    """Tells how much of all-to-alls each rank has to do: who has the busiest experts."""
    found = aligned(run)
    names = ["number", "rank", "call", "kind", "gid", "step"]
    rows = ask(
        _LOADS, calls=found.calls.select(names), told=told_sizes(run), groups=labels_of(run, found)["groups"]
    )
    notes = list(found.notes)
    if not rows.num_rows:
        notes.append("No all-to-all began inside the steps.")
    return Table(ExpertLoad, rows, notes)


_LOADS = """
WITH given AS (
    SELECT c.number, c.gid, c.rank, t.in_bytes, t.out_bytes FROM calls c
    JOIN told t ON t.rank = c.rank AND t.call = c.call
    WHERE c.kind = 'all-to-all' AND c.step IS NOT NULL AND c.number IS NOT NULL),
ways AS (
    SELECT number, max(in_bytes) * avg(out_bytes) > max(out_bytes) * avg(in_bytes) AS gives
    FROM given GROUP BY number),
sums AS (
    SELECT gid, rank, count(*) AS calls,
           CASE WHEN count(in_bytes) = count(*) THEN sum(in_bytes) END::BIGINT AS sent_bytes,
           CASE WHEN count(out_bytes) = count(*) THEN sum(out_bytes) END::BIGINT AS received_bytes,
           CASE WHEN count(in_bytes) = count(*) AND count(out_bytes) = count(*)
                THEN sum(CASE WHEN gives THEN in_bytes ELSE out_bytes END) END::BIGINT AS load_bytes
    FROM given JOIN ways USING (number) GROUP BY gid, rank),
wholes AS (
    SELECT gid, CASE WHEN count(load_bytes) = count(*) THEN sum(load_bytes) END AS whole,
           max(load_bytes) AS most, count(*) AS n FROM sums GROUP BY gid)
SELECT label AS "group", rank, calls, sent_bytes, received_bytes, load_bytes,
       load_bytes / nullif(whole, 0) AS share,
       CASE WHEN whole > 0 THEN most * n / whole END AS imbalance
FROM sums JOIN wholes USING (gid) JOIN groups USING (gid) ORDER BY "group", rank
"""
