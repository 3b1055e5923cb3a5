"""Pairs whose members are repeated and joined, only to go through a linear layer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Annotated, Any

from stepscope.analyses import analysis
from stepscope.analyses._in_steps import MIDDLE_STEP
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

# Autograd numbers its nodes, and writes an operator with the number that comes next: the nodes that it adds
# have the numbers up to that of the operator after it. A node runs in the backward pass under its number.
_SQL = f"""
    WITH one AS ({MIDDLE_STEP}),
    called AS (
        SELECT o.event, o.thread, coalesce(o.name, '') AS name, o.sequence, o.args, s.step,
               coalesce(o.dur_ns, 0) AS host_ns, coalesce(o.device_once_ns, 0) AS device_ns,
               lead(o.sequence IGNORE NULLS) OVER called AS later, row_number() OVER called AS place
        FROM ops o JOIN one s ON o.start_ns >= s.host_start_ns AND o.start_ns < s.host_end_ns
        WHERE o.depth = 0
        WINDOW called AS (PARTITION BY o.thread ORDER BY o.start_ns, o.event)),
    joins AS (
        SELECT c.event, c.thread, c.place, c.step, t.host_ns
        FROM called c CROSS JOIN (SELECT sum(device_ns) AS device_ns, sum(host_ns) AS host_ns FROM called) t
        WHERE regexp_full_match(c.name, '{JOINS}') AND c.device_ns >= {_LEAST_SHARE} * t.device_ns
            AND c.device_ns > 0
        ORDER BY c.device_ns DESC, c.place LIMIT 256),
    near AS (
        SELECT j.event AS joined, c.event, c.name, c.sequence, c.later, c.device_ns, c.host_ns,
               CAST(c.args->'$."Input Dims"' AS VARCHAR) AS dims, c.place - j.place AS place
        FROM joins j JOIN called c ON c.thread = j.thread
            AND c.place BETWEEN j.place - {_BEFORE} AND j.place + {_AFTER}),
    nodes AS (
        SELECT sequence, device_ns, host_ns FROM called
        WHERE starts_with(name, 'autograd::engine::evaluate_function: ') AND sequence IS NOT NULL),
    undone AS (
        SELECT n.event, sum(b.device_ns)::BIGINT AS device_ns, sum(b.host_ns)::BIGINT AS host_ns
        FROM (SELECT DISTINCT event, sequence, later FROM near WHERE sequence IS NOT NULL) n
            JOIN nodes b ON b.sequence >= n.sequence AND b.sequence < coalesce(n.later, n.sequence + 1)
        GROUP BY n.event),
    around AS (
        SELECT n.joined, list({{
            'name': n.name, 'dims': n.dims, 'place': n.place, 'ns': n.device_ns,
            'backward_ns': coalesce(u.device_ns, 0),
            'host_ns': n.host_ns + coalesce(u.host_ns, 0)}} ORDER BY n.place) AS ops
        FROM near n LEFT JOIN undone u ON u.event = n.event GROUP BY n.joined)
    SELECT j.step, t.name AS user_frame, greatest(j.host_ns, 1)::BIGINT AS host_ns, a.ops
    FROM joins j JOIN around a ON a.joined = j.event
        LEFT JOIN call_sites p ON p.event = j.event LEFT JOIN call_tree t ON t.node = p.user_frame
    ORDER BY j.place
"""
_JOINING = f"""
    SELECT coalesce(sum(device_once_ns) FILTER (regexp_full_match(name, '{JOINS}')), 0)::BIGINT AS joins_ns,
           coalesce(sum(device_once_ns), 0)::BIGINT AS all_ns
    FROM ops WHERE depth = 0
"""
_NOTHING = "No large tensor is joined from repeated rows for a linear layer."


@analysis(
    reads={
        "steps": ("step", "source", "start_ns", "host_start_ns", "host_end_ns"),
        "ops": (
            "event",
            "thread",
            "name",
            "start_ns",
            "dur_ns",
            "depth",
            "args",
            "sequence",
            "device_once_ns",
        ),
        "call_sites": ("event", "user_frame"),
        "call_tree": ("node", "name"),
    }
)
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
    rows = _together(one for row in trace.rows(_SQL) if (one := _found(row)))
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


def _together(found: Iterable[WrittenPairs]) -> list[WrittenPairs]:
    """One row for all calls of one function that join rows of the same shape; the longest first."""
    alike: dict[tuple[Any, ...], list[WrittenPairs]] = defaultdict(list)
    for one in found:
        key = (one.step, one.user_frame, one.told_by, one.shape, one.out_width, one.times, one.repeated_share)
        alike[*key, one.gathered].append(one)
    rows = [
        WrittenPairs(*key, **{name: sum(getattr(one, name) for one in calls) for name in _SUMMED})
        for key, calls in alike.items()
    ]
    return sorted(rows, key=lambda row: -(row.spread_ns + row.joined_ns + row.product_ns))
