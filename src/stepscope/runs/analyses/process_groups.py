"""Which process groups a run has, and what they are for."""

from __future__ import annotations

from typing import Annotated, Any

from stepscope.records import dataclass
from stepscope.runs._roles import GroupUse, role_of
from stepscope.runs.aligned import aligned
from stepscope.runs.analyses import run_analysis
from stepscope.runs.many import ManyRanks
from stepscope.runs.rank_lists import ranks_text
from stepscope.store.arrow_sql import ask
from stepscope.tables import Table

__all__ = ["ProcessGroup", "process_groups"]


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """A process group of the run."""

    group: Annotated[str, "Its name, or its ranks if it has none."]
    ranks: Annotated[str, "Its ranks: `0,1,2,3`, or `0-1016:8` for every eighth."]
    size: Annotated[int | None, "How many ranks it has; NULL if not known."]
    role: Annotated[str, "data, tensor, pipeline, expert, all (of the run), or unknown."]
    why: Annotated[str, "What the role follows from."]
    calls: Annotated[int, "Calls that its ranks recorded, in all."]
    bytes: Annotated[int | None, "Their summed sizes; NULL if none is known."]
    hosts: Annotated[int | None, "Machines that its ranks are on; NULL if not recorded."]


@run_analysis
def process_groups(run: ManyRanks) -> Table[ProcessGroup]:
    """Lists the process groups, and whether they are for data, tensor, pipeline or expert parallelism.

    The role follows from the ranks (next to each other, or evenly apart) and from kinds and numbers of calls.
    """
    found = aligned(run)
    splits = ask(_UNEVEN, told=run.stacked("calls").select(["rank", "call", "kind", "in_splits"]))
    rows = ask(_USES, calls=found.calls, splits=splits).to_pylist()
    steps = max(1, len(set(run.stacked("steps")["step"].to_pylist())))
    by_gid: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        by_gid.setdefault(row["gid"], []).append(row)
    world = run.world_size or len(run.ranks)
    uses = {gid: GroupUse.of(found.groups[gid], of_group, steps, world) for gid, of_group in by_gid.items()}
    listed = []
    for gid, use in uses.items():
        group = found.groups[gid]
        role, why = role_of(use, [other for other in uses.values() if other is not use])
        hosts = {run.host_of(rank) for rank in group.ranks if rank in set(run.ranks)}
        sizes = [row["bytes"] for row in by_gid[gid] if row["bytes"] is not None]
        listed.append(
            ProcessGroup(
                group=group.label,
                ranks=ranks_text(group.ranks),
                size=group.size,
                role=role,
                why=why,
                calls=sum(row["calls"] for row in by_gid[gid]),
                bytes=sum(sizes) if sizes else None,
                hosts=len(hosts) if hosts and "" not in hosts else None,
            )
        )
    notes = list(found.notes)
    if not listed:
        notes.append("No rank recorded a collective.")
    return Table.of(ProcessGroup, sorted(listed, key=lambda one: (-one.calls, one.group)), notes)


_USES = """
SELECT gid, kind, count(*) AS calls, sum(bytes)::BIGINT AS bytes, sum(dur_ns)::BIGINT AS dur_ns,
       sum(exposed_ns)::BIGINT AS exposed_ns, count(DISTINCT rank) AS ranks, bool_or(uneven) AS uneven
FROM calls LEFT JOIN splits USING (rank, call) GROUP BY gid, kind ORDER BY gid, kind
"""
_UNEVEN = """
SELECT rank, call, list_unique(string_split(in_splits, ',')) > 1 AS uneven FROM told
WHERE kind = 'all-to-all' AND in_splits IS NOT NULL
"""
