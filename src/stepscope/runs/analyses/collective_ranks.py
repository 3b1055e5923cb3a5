"""What each rank spent in each collective: waiting for others, and transferring."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from stepscope.records import dataclass
from stepscope.runs.aligned import Aligned, aligned
from stepscope.runs.analyses import run_analysis
from stepscope.runs.analyses.collectives import skew_notes
from stepscope.runs.many import ManyRanks
from stepscope.store.arrow_sql import ask
from stepscope.tables import Table
from stepscope.units import counted, duration

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["CollectiveRank", "collective_ranks", "labels_of"]

By = Literal["call", "rank", "host", "group"]


@dataclass(frozen=True, slots=True)
class CollectiveRank:
    """A rank in a collective; or all of a rank, host or group together."""

    number: Annotated[int | None, "The collective, as in `collectives`; NULL if unmatched, and for several."]
    rank: Annotated[int | None, "The rank; NULL for several."]
    host: Annotated[str | None, "Its machine; NULL if not recorded, or for several."]
    step: Annotated[int | None, "Step of the run; NULL outside of all, and for several."]
    group: Annotated[str | None, "Process group, or its ranks if it has no name; NULL for several."]
    kind: Annotated[str | None, "all-reduce, …, send-receive; NULL for several."]
    calls: Annotated[int, "How many calls the row stands for."]
    arrival_ns: Annotated[
        int | None, "When the rank arrived, on the reference clock; NULL if not aligned, and for several."
    ]
    wait_ns: Annotated[int | None, "Last arrival − own arrival; NULL if unmatched."]
    transfer_ns: Annotated[int | None, "Own end − last arrival; NULL if unmatched."]
    exposed_ns: Annotated[int, "Time in which the rank did nothing but this, in its steps."]
    exposed_wait_ns: Annotated[int | None, "The part of it before the last arrival; NULL if unmatched."]
    exposed_transfer_ns: Annotated[int | None, "The part of it after that; NULL if unmatched."]


@run_analysis
def collective_ranks(
    run: ManyRanks,
    *,
    by: Annotated[By, "List each rank in each collective, or sum up by rank, host or group."] = "call",
) -> Table[CollectiveRank]:
    """Tells what each rank spent in collectives: waiting for the last one, and transfer, exposed or not.

    Exposed waiting and transfer of a rank's steps sum to its exposed communication, with what is unmatched.
    """
    found = aligned(run)
    labels = labels_of(run, found)
    rows = ask(
        _CALLS,
        calls=found.calls,
        lasts=found.collectives.select(["number", "last_arrival_ns"]),
        exposed=found.exposed,
        **labels,
    )
    if by != "call":
        rows = ask(_SUMMED[by], rows=rows)
    columns = [one.name for one in Table.of(CollectiveRank, []).columns]
    notes = [*found.notes, *skew_notes(found)]
    lonely = ask(
        "SELECT count(*) AS n, coalesce(sum(dur_ns), 0)::BIGINT AS ns FROM exposed WHERE number IS NULL",
        exposed=found.exposed,
    ).to_pylist()[0]
    if lonely["n"]:
        notes.append(
            f"{duration(lonely['ns'])} of exposed communication is of unmatched calls "
            f"({counted(lonely['n'], 'stretch')}): what of it was waiting is not known."
        )
    return Table(CollectiveRank, rows.select(columns), notes)


def labels_of(run: ManyRanks, found: Aligned) -> dict[str, pa.Table]:
    """Names of groups by gid, and of hosts by rank, for joins."""
    import pyarrow as pa

    groups = found.groups.values()
    clocks = {one.rank: one.part for one in found.fit.clocks}
    return {
        "groups": pa.table(
            {
                "gid": pa.array([one.gid for one in groups], pa.int64()),
                "label": pa.array([one.label for one in groups], pa.string()),
            }
        ),
        "hosts": pa.table(
            {
                "rank": pa.array(run.ranks, pa.int64()),
                "host": pa.array([run.host_of(rank) or None for rank in run.ranks], pa.string()),
                "apart": pa.array([bool(clocks.get(rank)) for rank in run.ranks], pa.bool_()),
            }
        ),
    }


_CALLS = """
WITH alone AS (
    SELECT rank, call, sum(dur_ns)::BIGINT AS exposed_ns, sum(wait_ns)::BIGINT AS exposed_wait_ns,
           sum(transfer_ns)::BIGINT AS exposed_transfer_ns FROM exposed GROUP BY rank, call)
SELECT c.number, c.rank, h.host, c.step, g.label AS "group", c.kind, 1 AS calls,
       CASE WHEN NOT h.apart THEN c.arrival_ns END AS arrival_ns, l.last_arrival_ns - c.arrival_ns AS wait_ns,
       greatest(0, c.end_ns - l.last_arrival_ns) AS transfer_ns, coalesce(a.exposed_ns, 0) AS exposed_ns,
       CASE WHEN c.number IS NOT NULL THEN coalesce(a.exposed_wait_ns, 0) END AS exposed_wait_ns,
       CASE WHEN c.number IS NOT NULL THEN coalesce(a.exposed_transfer_ns, 0) END AS exposed_transfer_ns
FROM calls c LEFT JOIN lasts l USING (number) JOIN hosts h ON h.rank = c.rank JOIN groups g ON g.gid = c.gid
    LEFT JOIN alone a ON a.rank = c.rank AND a.call = c.call
ORDER BY c.number NULLS LAST, c.rank, c.call
"""
_SUM = """
SELECT NULL::BIGINT AS number, {rank} AS rank, {host} AS host, NULL::BIGINT AS step, {group} AS "group",
       {kind} AS kind, count(*) AS calls, NULL::BIGINT AS arrival_ns, sum(wait_ns)::BIGINT AS wait_ns,
       sum(transfer_ns)::BIGINT AS transfer_ns, sum(exposed_ns)::BIGINT AS exposed_ns,
       sum(exposed_wait_ns)::BIGINT AS exposed_wait_ns,
       sum(exposed_transfer_ns)::BIGINT AS exposed_transfer_ns
FROM rows GROUP BY {keys} ORDER BY {keys}
"""
_ABSENT = "NULL::VARCHAR"
_SUMMED = {
    "rank": _SUM.format(keys="rows.rank, rows.host", rank="rank", host="host", group=_ABSENT, kind=_ABSENT),
    "host": _SUM.format(keys="rows.host", rank="NULL::BIGINT", host="host", group=_ABSENT, kind=_ABSENT),
    "group": _SUM.format(
        keys='rows."group", rows.kind', rank="NULL::BIGINT", host=_ABSENT, group='"group"', kind="kind"
    ),
}
