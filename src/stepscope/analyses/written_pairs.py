"""Pairs whose members are repeated and joined, only to go through a linear layer."""

from __future__ import annotations

from typing import Annotated, Any

from stepscope.analyses import analysis
from stepscope.analyses._around import READS, around, together
from stepscope.analyses._joined_rows import JOINS, PRODUCTS, REPEATS, joined_rows
from stepscope.analyses._windows import how_steps_were_found
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["WrittenPairs", "written_pairs"]

_LEAST_SHARE = 0.005
"""Of the device work of a step: shorter joins are not looked at."""
_BEFORE, _AFTER = 24, 12
"""How many operators of its thread before and after a join are looked at."""


@dataclass(frozen=True, slots=True)
class WrittenPairs:
    """Calls of one linear layer on rows that were repeated and joined for it, in one step."""

    step: Annotated[int, "The step that was looked at, one in the middle."]
    user_frame: Annotated[str | None, "Function of the user's code that joins; needs with_stack=True."]
    told_by: Annotated[
        str, "How it was found: shapes, times of copies and gradients, or the order of operators alone."
    ]
    shape: Annotated[str | None, "Shape of the joined rows; None without shapes."]
    out_width: Annotated[int | None, "Width of what the layer gives; None without shapes."]
    times: Annotated[float | None, "How often each row is repeated, at least; None without shapes."]
    repeated_share: Annotated[float | None, "The part of a joined row that is repeated; None without shapes."]
    gathered: Annotated[bool, "Whether rows are repeated by an index, as both ends of every edge."]
    calls: Annotated[int, "How often rows are joined for such a layer."]
    spread_ns: Annotated[int, "Device time of the copies that repeat the rows."]
    joined_ns: Annotated[int, "Device time of the joins, and of copies and casts of what they give."]
    product_ns: Annotated[int, "Device time of the layer."]
    copies_backward_ns: Annotated[int, "Device time of the gradients of the repeated rows and of the joins."]
    product_backward_ns: Annotated[int, "Device time of the gradients of the layer."]
    stays_least_ns: Annotated[int, "What stays of all this, at least, if the layer is applied to the items."]
    stays_most_ns: Annotated[
        int, "What stays at most: with the sums of the results for all pairs, and their gradients."
    ]
    host_share: Annotated[float, "The part of the host's time in operators that repeating and joining takes."]


_SUMMED = (
    "calls",
    "spread_ns",
    "joined_ns",
    "product_ns",
    "copies_backward_ns",
    "product_backward_ns",
    "stays_least_ns",
    "stays_most_ns",
    "host_share",
)

_CHOSEN = f"""
    SELECT event, thread, place, step
    FROM called WHERE regexp_full_match(name, '{JOINS}') AND device_ns > 0
        AND device_ns >= {_LEAST_SHARE} * (SELECT sum(device_ns) FROM called)
    ORDER BY device_ns DESC, place LIMIT 256
"""
_JOINING = f"""
    SELECT coalesce(sum(device_once_ns) FILTER (regexp_full_match(name, '{JOINS}')), 0)::BIGINT AS joins_ns,
           coalesce(sum(device_once_ns), 0)::BIGINT AS all_ns
    FROM ops WHERE depth = 0
"""
_NOTHING = "No large tensor is joined from repeated rows for a linear layer."


@analysis(reads=READS)
def written_pairs(trace: Trace) -> Table[WrittenPairs]:
    """Finds linear layers whose input is joined from repeated rows, as the features of all pairs are.

    With shapes, at least two parts of the join have several times as many rows as what they were made from.
    Without, the time of the copies or of their gradients tells, or else the order of operators alone.
    """
    if not all(trace.may_have_name(f"^{names}$") for names in (JOINS, REPEATS, PRODUCTS)):
        return Table.of(WrittenPairs, [], ["Nothing is repeated and joined for a linear layer."])
    (joining,) = trace.rows(_JOINING)
    if joining["joins_ns"] < max(1, _LEAST_SHARE * joining["all_ns"]):
        return Table.of(WrittenPairs, [], [_NOTHING, *how_steps_were_found(trace)])
    found = (one for row in trace.rows(around(_CHOSEN, _BEFORE, _AFTER)) if (one := _found(row)))
    rows = together(found, _SUMMED)
    rows.sort(key=lambda row: -(row.spread_ns + row.joined_ns + row.product_ns))
    return Table.of(WrittenPairs, rows, ([] if rows else [_NOTHING]) + how_steps_were_found(trace))


def _found(row: dict[str, Any]) -> WrittenPairs | None:
    """One join, if it is of repeated rows for a linear layer."""
    found = joined_rows(row["ops"])
    if found is None:
        return None
    copies, product = [*found.spread, *found.joins], found.product
    whole_ns = sum(op["ns"] + op["backward_ns"] for op in (*copies, product))
    least_ns, most_ns = (min(round(ns), whole_ns) for ns in found.stays_ns)
    return WrittenPairs(
        step=row["step"],
        user_frame=row["user_frame"],
        told_by=found.told_by,
        shape=found.shape,
        out_width=found.out_width,
        times=found.times,
        repeated_share=found.repeated_share,
        gathered=found.gathered,
        calls=1,
        spread_ns=sum(op["ns"] for op in found.spread),
        joined_ns=sum(op["ns"] for op in found.joins),
        product_ns=product["ns"],
        copies_backward_ns=sum(op["backward_ns"] for op in copies),
        product_backward_ns=product["backward_ns"],
        stays_least_ns=least_ns,
        stays_most_ns=max(least_ns, most_ns),
        host_share=sum(op["host_ns"] for op in copies) / row["host_ns"],
    )
