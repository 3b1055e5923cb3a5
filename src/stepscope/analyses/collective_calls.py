"""Every collective, send and receive that one rank took part in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from stepscope.analyses import analysis
from stepscope.analyses._collectives import (
    ALL_RANGES,
    COLLECTIVE_NAMES,
    COLLECTIVE_READS,
    KERNELS,
    RANGES,
    TOLD,
    first_type,
    grouped_by,
)
from stepscope.analyses._exposed import EXPOSED_READS, exposed
from stepscope.analyses._process_groups import Groups
from stepscope.analyses._windows import how_steps_were_found, reads_of_all
from stepscope.costs.collectives import collective_of, ranks_text, splits_of
from stepscope.records import dataclass
from stepscope.schema import COMMUNICATION_RANGE, NOT_HOST
from stepscope.store.trace import Trace
from stepscope.tables import Table

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["CollectiveCall", "collective_calls"]


@dataclass(frozen=True, slots=True)
class CollectiveCall:
    """One collective, send or receive that the rank took part in."""

    call: Annotated[int, "Its number: in the order of their starts on this rank, from 0."]
    step: Annotated[int | None, "Step in which it began; NULL outside of all."]
    kind: Annotated[str, "As in `collective_kinds`: all-reduce, all-gather, …, send-receive; or unknown."]
    backend: Annotated[
        str, "device (kernels, as of NCCL and RCCL), or where the host does it: gloo, mpi, ucc."
    ]
    group: Annotated[str | None, "Name of the process group; NULL if not recorded."]
    group_ranks: Annotated[
        str | None,
        "Ranks of the group, as `0,1,2,3`; over 64 that are evenly spaced as `0-1023` or `0-1016:8`; "
        "NULL if not recorded.",
    ]
    group_size: Annotated[int | None, "How many ranks the group has; NULL if not recorded."]
    sequence: Annotated[int | None, "Sequence number in its group; NULL if not recorded."]
    dtype: Annotated[str | None, "Data type of the elements."]
    bytes: Annotated[int | None, "Size of the larger side; NULL if not known."]
    in_bytes: Annotated[int | None, "What this rank gave, 0 for a receive; NULL if not known."]
    out_bytes: Annotated[int | None, "What this rank got, 0 for a send; NULL if not known."]
    in_splits: Annotated[str | None, "Elements for each rank of the group, as `8,8`; NULL for even parts."]
    out_splits: Annotated[str | None, "Elements from each rank of the group; NULL for even parts."]
    source: Annotated[int | None, "Rank that a receive or broadcast takes from; NULL if not known."]
    target: Annotated[int | None, "Rank that a send or reduce goes to; NULL if not known."]
    stream: Annotated[str, "Device and stream, or thread, that it ran on: one after the other."]
    asked_ns: Annotated[int | None, "When the host asked for it; NULL if the launch is not known."]
    start_ns: Annotated[int, "When this rank arrived: the start of its kernel or range."]
    dur_ns: Annotated[int, "How long its kernel or range took, with the wait for others."]
    exposed_ns: Annotated[
        int, "Time of the steps in which nothing else ran and it was the last to end of those that did."
    ]


_TOLD = (
    *TOLD, "in_splits", "out_splits", "source", "target", "root", "first_rank", "rank_stride", "given_size",
)  # fmt: skip
_CALLS = f"""
    SELECT c.*, {grouped_by(_TOLD)} AS grouped, CASE WHEN c.start_ns < s.end_ns THEN s.step END AS step
    FROM (SELECT * EXCLUDE (sequence), TRY_CAST(sequence AS BIGINT) AS sequence,
                 row_number() OVER (ORDER BY start_ns, dur_ns, kernel, event) - 1 AS call
          FROM ({{calls}}) WHERE start_ns IS NOT NULL) c
    ASOF LEFT JOIN (SELECT step, start_ns, end_ns FROM steps) s ON c.start_ns >= s.start_ns
    ORDER BY call
"""
# Threads of gloo take what was asked for in the order in which it was asked, of all groups together.
_ASKED = """
    SELECT start_ns, name FROM ops WHERE regexp_matches(name, '^c10d::') AND start_ns IS NOT NULL
    ORDER BY start_ns
"""
_KNOWN = (
    "kind", "dtype", "group", "group_ranks", "group_size", "bytes", "in_bytes", "out_bytes", "in_splits",
    "out_splits", "source", "target",
)  # fmt: skip


@analysis(reads=reads_of_all(COLLECTIVE_READS, EXPOSED_READS))
def collective_calls(trace: Trace) -> Table[CollectiveCall]:
    """Lists every collective, send and receive of one rank: group, size, arrival and duration.

    Those outside of the steps, too. The time on one rank includes the wait for others: what is waiting and
    what is transfer, the ranks tell together.
    """
    notes = how_steps_were_found(trace)
    calls = []
    if trace.has("device_work") and trace.may_have_name(COLLECTIVE_NAMES):
        calls.append(KERNELS)
    if trace.may_have_name(COMMUNICATION_RANGE):
        calls.append(RANGES.format(ranges=ALL_RANGES))
    nothing = ["No collectives in this profile."]
    if not calls:
        return Table.of(CollectiveCall, [], nothing + notes)
    on_host = {"not_host": list(NOT_HOST)} if len(calls) > 1 or calls[0] is not KERNELS else {}
    found = trace.arrow(_CALLS.format(calls=" UNION ALL BY NAME ".join(map(_whole, calls))), **on_host)
    return Table(CollectiveCall, _rows(trace, found), notes if found.num_rows else nothing + notes)


def _whole(sql: str) -> str:
    return f"(SELECT * FROM ({sql}))"


def _rows(trace: Trace, found: pa.Table) -> pa.Table:
    """The calls with what their arguments mean; like ones are looked at once."""
    import pyarrow as pa
    import pyarrow.compute as pc

    groups = Groups.of(trace.meta.metadata)
    alike = found.group_by("grouped", use_threads=False).aggregate([("call", "min")])
    known = [_known(told, groups) for told in found.select([*_TOLD]).take(alike["call_min"]).to_pylist()]
    place = pc.index_in(found["grouped"], alike["grouped"].combine_chunks())
    exposed_parts = exposed(trace).group_by("call").aggregate([("dur_ns", "sum")])
    parts = pc.take(exposed_parts["dur_ns_sum"], pc.index_in(found["call"], exposed_parts["call"]))
    numbers = ("group_size", "bytes", "in_bytes", "out_bytes", "source", "target")
    columns = {
        name: pa.array([one[name] for one in known], pa.int64() if name in numbers else pa.string()).take(
            place
        )
        for name in _KNOWN
    }
    columns |= {name: found[name] for name in ("call", "step", "backend", "sequence", "start_ns", "dur_ns")}
    columns["stream"] = found["queue"]
    columns["asked_ns"] = found["asked_ns"]
    columns["exposed_ns"] = pc.fill_null(parts, 0)
    return pa.table({name: columns[name] for name in CollectiveCall.__dataclass_fields__})


def _known(told: dict[str, Any], groups: Groups) -> dict[str, Any]:
    """What is known about a collective by its arguments."""
    name, ranks, size = groups.of_call(told)
    seen = {**told, "group": name, "type": first_type(told["types"]), "group_size": size}
    one = collective_of(seen)
    root = _number(told["root"])
    # Peers are counted within their group, unless the profile says their global rank.
    peer = ranks[root] if root is not None and root < len(ranks) else None
    gets, gives = one.in_bytes == 0, one.out_bytes == 0
    source, target = _number(told["source"]), _number(told["target"])
    if source is None and (gets or one.kind in ("broadcast", "scatter")):
        source = peer
    if target is None and (gives or one.kind in ("reduce", "gather")):
        target = peer
    return {
        "kind": one.kind,
        "dtype": one.dtype,
        "group": name,
        "group_ranks": ranks_text(ranks) if ranks else None,
        "group_size": size,
        "bytes": one.bytes,
        "in_bytes": one.in_bytes,
        "out_bytes": one.out_bytes,
        "in_splits": splits_of(told["in_splits"]),
        "out_splits": splits_of(told["out_splits"]),
        "source": source,
        "target": target,
    }


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 10 else None
