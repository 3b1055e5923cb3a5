"""What operators cost inside the steps, with all they called: host, device, and devices that waited."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from stepscope import _native
from stepscope.analyses import analysis
from stepscope.analyses._windows import how_steps_were_found
from stepscope.store.columns import arrays, view
from stepscope.store.trace import Trace
from stepscope.tables import Table

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["StepOp", "step_ops"]


@dataclass(frozen=True, slots=True)
class StepOp:
    """One operator, in one phase, called from one function of the user's."""

    name: Annotated[str | None, "Name of the operator."]
    phase: Annotated[str, "Phase of training."]
    user_frame: Annotated[str | None, "Function of the user's code that led to it, for most of its calls."]
    within: Annotated[str | None, "Operator right around it; NULL for those that the program called itself."]
    calls: Annotated[int, "How often it began in a step."]
    per_step: Annotated[float, "The same per step, on average."]
    host_ns: Annotated[int, "Time in it and all it called, inside the steps; recursion counts once."]
    starved_ns: Annotated[int, "Such time while a device was idle and waited for a launch of this thread."]
    device_ns: Annotated[int, "Device work that it and all it called launched in the steps."]
    launches: Annotated[int, "Launches of that work."]


_TREE = """
    WITH begun AS (
        SELECT p.node, count(*) AS calls, coalesce(sum(l.work_ns), 0) AS device_ns,
               count(*) FILTER (l.work_events > 0) AS launches, mode(p.user_frame) AS user_frame
        FROM call_sites p ANTI JOIN memory_events m ON m.event = p.event
        LEFT JOIN launches l ON l.event = p.event WHERE p.step IS NOT NULL GROUP BY p.node)
    SELECT t.parent, t.stored_in = 'ops' AND t.recursive = 0 AS counts, t.stored_in = 'ops' AS is_op, t.name,
           t.phase, f.name AS user_frame, coalesce(b.calls, 0)::BIGINT AS calls,
           t.step_self_ns, t.starved_ns, coalesce(b.device_ns, 0)::BIGINT AS device_ns,
           coalesce(b.launches, 0)::BIGINT AS launches
    FROM call_tree t LEFT JOIN begun b ON b.node = t.node
    LEFT JOIN call_tree f ON f.node = coalesce(b.user_frame, t.user_frame) ORDER BY t.node
"""
_SUMMED = ("step_self_ns", "starved_ns", "device_ns", "launches")
_KEYS = ("name", "phase", "user_frame", "within")


@analysis(
    reads={
        "call_tree": (
            "node", "parent", "stored_in", "recursive", "name", "phase", "user_frame", "step_self_ns",
            "starved_ns",
        ),
        "call_sites": ("event", "node", "step", "user_frame"),
        "launches": ("event", "work_ns", "work_events"),
        "memory_events": ("event",),
        "steps": ("step", "source"),
    }
)  # fmt: skip
def step_ops(trace: Trace) -> Table[StepOp]:
    """Sums up operators inside the steps with all they called: host time, device work, starved time.

    Unlike `ops` it leaves out what is outside the steps, and keeps phases and callers apart. An operator
    counts with all that it called, so rows of operators inside one another hold the same time.
    """
    steps = trace.rows("SELECT count(*) AS steps FROM steps")[0]["steps"]
    tree = trace.arrow(_TREE)
    found = _grouped(tree) if tree.num_rows else []
    rows = [
        StepOp(
            **{key: row[key] for key in _KEYS},
            calls=row["calls_sum"],
            per_step=row["calls_sum"] / steps,
            host_ns=row["step_self_ns_sum"],
            **{figure: row[f"{figure}_sum"] for figure in _SUMMED[1:]},
        )
        for row in found
        if row["calls_sum"] or row["step_self_ns_sum"]
    ]
    rows.sort(key=lambda row: (-row.starved_ns - row.device_ns, -row.host_ns, *map(str, _of(row))))
    nothing = [] if rows else ["No operator began in a step."]
    return Table.of(StepOp, rows, nothing + how_steps_were_found(trace))


def _of(row: StepOp) -> tuple[Any, ...]:
    return tuple(getattr(row, key) for key in _KEYS)


def _grouped(tree: pa.Table) -> list[dict[str, Any]]:
    """The operators of the tree, by name, phase, frame and what is around them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    parent = view(tree["parent"])
    numbers = pa.array(range(tree.num_rows), pa.int64())
    own = pc.if_else(tree["is_op"].combine_chunks(), numbers, pa.scalar(None, pa.int64()))
    nearest = arrays([_native.inherited(parent, view(own))])[0]
    around = pc.take(nearest, tree["parent"].combine_chunks())
    columns = {name: tree[name] for name in ("counts", "name", "phase", "user_frame", "calls")}
    columns["within"] = pc.take(tree["name"], around)
    for name in _SUMMED:
        columns[name] = arrays([_native.subtree_sums(parent, view(tree[name]))])[0]
    ops = pa.table(columns)
    ops = ops.filter(pc.fill_null(ops["counts"], fill_value=False))
    summed: list[dict[str, Any]] = (
        ops.group_by(list(_KEYS)).aggregate([(name, "sum") for name in ("calls", *_SUMMED)]).to_pylist()
    )
    return summed
