"""Time of the steps in which an operator was the innermost one of its thread."""

from __future__ import annotations

from stepscope import _native
from stepscope.analyses._windows import threads_that_drive
from stepscope.records import dataclass
from stepscope.store.columns import arrays, view
from stepscope.store.trace import Reads, Trace

__all__ = ["OWN_READS", "OwnTime", "own_times"]

OWN_READS: Reads = {
    "call_tree": ("node", "parent", "thread", "stored_in", "name", "step_self_ns", "starved_ns"),
    "call_sites": ("node", "step"),
    "launches": ("thread", "work_events"),
    "ops": ("thread", "forward_thread"),
    "steps": ("thread", "source"),
}
"""What `own_times` reads."""
_TREE = """
    WITH begun AS (SELECT node, count(*) AS calls FROM call_sites WHERE step IS NOT NULL GROUP BY node)
    SELECT t.parent, t.thread, t.stored_in = 'ops' AS is_op, t.name, t.step_self_ns, t.starved_ns,
           CASE WHEN t.stored_in = 'ops' THEN coalesce(b.calls, 0) ELSE 0 END AS calls
    FROM call_tree t LEFT JOIN begun b ON b.node = t.node ORDER BY t.node
"""


@dataclass(frozen=True, slots=True)
class OwnTime:
    """One operator without those inside it; frames, ranges and runtime calls in it count as its own."""

    op: str | None
    """None for what is outside of all operators."""
    calls: int
    own_ns: int
    starved_ns: int
    """The part in which a device was idle and waited for a launch of this thread."""


def own_times(trace: Trace) -> list[OwnTime]:
    """The paths of calls on the threads that drive the work, summed up by their innermost operator."""
    import pyarrow as pa
    import pyarrow.compute as pc

    tree = trace.arrow(_TREE)
    if not tree.num_rows:
        return []
    numbers = pa.array(range(tree.num_rows), pa.int64())
    is_op = pc.fill_null(tree["is_op"].combine_chunks(), fill_value=False)
    own = pc.if_else(is_op, numbers, pa.scalar(None, pa.int64()))
    nearest = arrays([_native.inherited(view(tree["parent"]), view(own))])[0]
    driving = pa.array(threads_that_drive(trace), tree["thread"].type)
    named = tree.append_column("op", pc.take(tree["name"], nearest))
    named = named.filter(pc.is_in(named["thread"], driving))
    figures = ("calls", "step_self_ns", "starved_ns")
    summed = named.group_by("op").aggregate([(name, "sum") for name in figures]).to_pylist()
    return [OwnTime(row["op"], *(row[f"{name}_sum"] for name in figures)) for row in summed]
