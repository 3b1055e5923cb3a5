"""Which collectives the ranks did together, who came last, and how fast they were."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, Literal

from stepscope.costs.collectives import bus_factor
from stepscope.records import dataclass
from stepscope.runs._links import link_gb_per_s
from stepscope.runs.aligned import Aligned, aligned
from stepscope.runs.analyses import run_analysis
from stepscope.runs.many import ManyRanks
from stepscope.runs.rank_lists import ranks_text
from stepscope.store.arrow_sql import ask
from stepscope.tables import Table
from stepscope.units import counted, duration

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Collective", "collectives"]

By = Literal["call", "kind", "group", "size"]


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective of several ranks; or those of one kind, group or size together."""

    number: Annotated[int | None, "In the order of first arrivals; NULL for several."]
    step: Annotated[int | None, "Step of the run; NULL outside of all, and for several."]
    group: Annotated[str | None, "Process group, or its ranks if it has no name; NULL for several."]
    group_ranks: Annotated[str | None, "Its ranks: `0,1,2,3`, or `0-1016:8` for every eighth."]
    kind: Annotated[str | None, "all-reduce, all-gather, …, send-receive; NULL for several."]
    backend: Annotated[str | None, "device, or where the host does it: gloo, mpi, ucc; NULL for several."]
    dtype: Annotated[str | None, "Data type of the elements; NULL if unknown, or for several."]
    bytes: Annotated[int | None, "Size of the larger side, summed; NULL if not all are known."]
    calls: Annotated[int, "How many collectives the row stands for."]
    ranks: Annotated[int, "How many ranks recorded it; of several the least."]
    missing_ranks: Annotated[str | None, "Members without a recorded call; NULL if all have one."]
    start_ns: Annotated[int | None, "First arrival, on the reference clock; NULL for several."]
    last_arrival_ns: Annotated[int | None, "Last arrival; NULL for several."]
    end_ns: Annotated[int | None, "Last end; NULL for several."]
    last_rank: Annotated[int | None, "Who came last; of several, who did most often."]
    wait_ns: Annotated[int, "Over all ranks: last arrival − own arrival, summed."]
    transfer_ns: Annotated[int, "End − last arrival, summed."]
    algorithm_gb_per_s: Annotated[float | None, "Bytes over transfer time."]
    bus_gb_per_s: Annotated[float | None, "The same times NCCL's factor for the kind and the group's size."]
    link_share: Annotated[
        float | None, "Bus bandwidth as a share of the link's peak; NULL across hosts, or if not known."
    ]
    matched_by: Annotated[str | None, "What tells that calls are one collective: sequence or order."]


@run_analysis
def collectives(
    run: ManyRanks,
    *,
    by: Annotated[By, "List each collective, or sum them up by kind, group or class of size."] = "call",
) -> Table[Collective]:
    """Lists the collectives that ranks did together: who came last, waiting, transfer and bandwidth.

    Arrival is the start of a rank's kernel; from the last one on, the transfer counts.
    """
    found = aligned(run)
    figures = ask(_FIGURES, collectives=found.collectives, groups=_groups(run, found))
    rows = ask(_BY[by], figures=figures, missing=_missing(found))
    columns = [one.name for one in Table.of(Collective, []).columns]
    notes = list(found.notes)
    if not rows.num_rows:
        notes.append("No collective was recorded by two ranks.")
    notes += skew_notes(found)
    if run.missing:
        notes.append(
            f"Without {counted(len(run.missing), 'rank')} ({ranks_text(run.missing)}): what came later than "
            "all recorded arrivals counts as transfer."
        )
    return Table(Collective, rows.select(columns), notes)


def skew_notes(found: Aligned) -> Iterable[str]:
    """How sure the clocks are, and how many collectives nothing can be said about."""
    errors = [one.error_ns for one in found.fit.clocks if one.error_ns is not None and not one.part]
    if not errors or not found.collectives.num_rows:
        return []
    below = ask(
        "SELECT count(*) AS n FROM collectives WHERE last_arrival_ns - start_ns <= error_ns",
        collectives=found.collectives,
    ).to_pylist()[0]["n"]
    said = f"Clocks are aligned to within {duration(max(errors))}"
    if not below:
        return [f"{said}."]
    all_of = found.collectives.num_rows
    return [
        f"{said}: in {below:,} of {counted(all_of, 'collective')} arrivals are closer together than that."
    ]


def _groups(run: ManyRanks, found: Aligned) -> pa.Table:
    """What is known of each group: label, ranks, size, peak of its link; and the factors of each kind."""
    import pyarrow as pa

    kinds = set(found.collectives["kind"].unique().to_pylist())
    rows: list[dict[str, Any]] = []
    for group in found.groups.values():
        peak = link_gb_per_s(run, group.ranks) if len(group.ranks) == group.size else None
        rows += [
            {
                "gid": group.gid,
                "kind": kind,
                "label": group.label,
                "members": ranks_text(group.ranks),
                "factor": bus_factor(kind, group.size),
                "peak": peak,
            }
            for kind in kinds
        ]
    types = {"gid": pa.int64(), "kind": pa.string(), "label": pa.string(), "members": pa.string()}
    schema = pa.schema([*types.items(), ("factor", pa.float64()), ("peak", pa.float64())])
    return pa.Table.from_pylist(rows, schema)


def _missing(found: Aligned) -> pa.Table:
    """Members of collectives that have no call in them, for those numbers alone that lack one."""
    import pyarrow as pa

    members = pa.table(
        {
            "gid": pa.array([one.gid for one in found.groups.values() for _ in one.ranks], pa.int64()),
            "rank": pa.array([rank for one in found.groups.values() for rank in one.ranks], pa.int64()),
            "size": pa.array(
                [len(one.ranks) for one in found.groups.values() for _ in one.ranks], pa.int64()
            ),
        }
    )
    lacking = ask(_LACKING, collectives=found.collectives, calls=found.calls, members=members)
    by_number: dict[int, list[int]] = {}
    for number, rank in zip(lacking["number"].to_pylist(), lacking["rank"].to_pylist(), strict=True):
        by_number.setdefault(number, []).append(rank)
    texts = [ranks_text(ranks) for ranks in by_number.values()]
    return pa.table(
        {"number": pa.array(list(by_number), pa.int64()), "missing_ranks": pa.array(texts, pa.string())}
    )


_LACKING = """
WITH few AS (
    SELECT number, c.gid FROM collectives c JOIN (SELECT DISTINCT gid, size FROM members) m ON m.gid = c.gid
    WHERE c.ranks < m.size AND c.kind <> 'send-receive')
SELECT number, m.rank FROM few JOIN members m USING (gid)
ANTI JOIN calls c ON c.number = few.number AND c.rank = m.rank ORDER BY number, m.rank
"""
_FIGURES = """
SELECT c.*, label AS "group", members AS group_ranks, factor, peak
FROM collectives c JOIN groups g ON g.gid = c.gid AND g.kind = c.kind
"""
_RATES = """
    {bytes} / nullif({ns}, 0) AS algorithm_gb_per_s,
    {bytes} * {factor} / nullif({ns}, 0) AS bus_gb_per_s,
    {bytes} * {factor} / nullif({ns}, 0) / {peak} AS link_share
"""
_CALL = f"""
SELECT number, step, "group", group_ranks, kind, backend, dtype, bytes, 1 AS calls, ranks, missing_ranks,
       start_ns, last_arrival_ns, end_ns, last_rank, wait_ns, transfer_ns, matched_by,
       {_RATES.format(bytes="bytes", ns="transfer_ns", factor="factor", peak="peak")}
FROM figures LEFT JOIN missing USING (number) ORDER BY number
"""
# Of those that did equally often the lowest.
_OFTEN = (
    "list_sort(list_transform(map_entries(histogram(last_rank)), "
    "lambda one: {{'n': -one.value::BIGINT, 'rank': one.key}}))[1].rank"
)
_SUMMED = f"""
SELECT NULL::BIGINT AS number, NULL::BIGINT AS step, {{group}} AS "group", {{group_ranks}} AS group_ranks,
       {{kind}} AS kind, CASE WHEN count(DISTINCT backend) = 1 THEN any_value(backend) END AS backend,
       CASE WHEN count(DISTINCT dtype) = 1 THEN any_value(dtype) END AS dtype,
       CASE WHEN count(bytes) = count(*) THEN sum(bytes) END::BIGINT AS bytes, count(*) AS calls,
       min(ranks) AS ranks, min(missing_ranks) AS missing_ranks, NULL::BIGINT AS start_ns,
       NULL::BIGINT AS last_arrival_ns, NULL::BIGINT AS end_ns, {_OFTEN} AS last_rank,
       sum(wait_ns)::BIGINT AS wait_ns, sum(transfer_ns)::BIGINT AS transfer_ns,
       CASE WHEN count(DISTINCT matched_by) = 1 THEN any_value(matched_by) END AS matched_by,
       sum(bytes) / nullif(sum(transfer_ns) FILTER (bytes IS NOT NULL), 0) AS algorithm_gb_per_s,
       sum(bytes * factor) / nullif(sum(transfer_ns) FILTER (bytes * factor IS NOT NULL), 0) AS bus_gb_per_s,
       sum(bytes * factor / peak)
           / nullif(sum(transfer_ns) FILTER (bytes * factor / peak IS NOT NULL), 0) AS link_share
FROM figures LEFT JOIN missing USING (number) GROUP BY {{keys}}
ORDER BY sum(wait_ns) + sum(transfer_ns) DESC, {{keys}}
"""
_BY = {
    "call": _CALL,
    "kind": _SUMMED.format(
        keys="figures.kind, figures.backend", group="NULL::VARCHAR", group_ranks="NULL::VARCHAR", kind="kind"
    ),
    "group": _SUMMED.format(
        keys="figures.gid",
        group='any_value("group")',
        group_ranks="any_value(group_ranks)",
        kind="CASE WHEN count(DISTINCT kind) = 1 THEN any_value(kind) END",
    ),
    "size": _SUMMED.format(
        keys="figures.gid, figures.kind, CASE WHEN figures.bytes > 0 THEN floor(log2(figures.bytes)) END",
        group='any_value("group")',
        group_ranks="any_value(group_ranks)",
        kind="any_value(kind)",
    ),
}
