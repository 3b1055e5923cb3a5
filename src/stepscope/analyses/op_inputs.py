"""What operators were given, from an execution trace, and what that cost in the profile."""

from __future__ import annotations

from typing import Annotated

from stepscope import units
from stepscope.analyses import analysis
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["OpInputs", "op_inputs"]

NO_EXECUTION_TRACE = (
    "There is no execution trace: record one with torch.profiler.ExecutionTraceObserver and name it with the "
    "profile."
)
_AGREEING = 0.9
"""Part of the nodes of a thread whose place must lead to an operator of the same name."""
_RARE = 32
"""Names up to so many times in a thread tell by how much places are shifted; others would only cost time."""


@dataclass(frozen=True, slots=True)
class OpInputs:
    """Calls of one operator with inputs of the same shapes and types."""

    rank: Annotated[int, "The rank that recorded it."]
    name: Annotated[str, "The operator."]
    input_shapes: Annotated[str | None, "Shapes of its inputs, as JSON."]
    input_types: Annotated[str | None, "Types of its inputs, as JSON."]
    nodes: Annotated[int, "Calls in the execution trace."]
    joined: Annotated[int, "Those of them that are in the profile, too."]
    host_ns: Annotated[int | None, "Host time of those, with the operators inside; NULL if there are none."]
    device_ns: Annotated[int | None, "Device work that they launched themselves; NULL likewise."]


# Both recorders number functions as they begin, each in its own way: on a thread the order is the same. So an
# operator is told by its place among those of its thread whose names both have, and the places differ by
# what one recorder saw before the other began. That shift is the one that most rare names agree on; it is
# believed if nearly all names do.
_JOINED = f"""
    WITH nodes AS (
        SELECT node, name, thread, input_shapes, input_types,
               row_number() OVER (PARTITION BY thread ORDER BY record_id) AS place,
               count(*) OVER (PARTITION BY thread, name) AS alike
        FROM execution_nodes WHERE schema IS NOT NULL AND name IN (SELECT name FROM ops)),
    calls AS (
        SELECT name, thread, dur_ns, device_self_ns,
               row_number() OVER (PARTITION BY thread ORDER BY start_ns, dur_ns DESC, event) AS place,
               count(*) OVER (PARTITION BY thread, name) AS alike
        FROM ops WHERE name IN (SELECT name FROM execution_nodes WHERE schema IS NOT NULL)),
    shifts AS (
        SELECT n.thread, o.thread AS call_thread, o.place - n.place AS shift, count(*) AS agreeing
        FROM nodes n JOIN calls o USING (name)
        WHERE n.alike <= {_RARE} AND o.alike <= 64 * {_RARE} GROUP BY ALL),
    best AS (
        SELECT thread, arg_max({{'thread': call_thread, 'shift': shift}}, (agreeing, -abs(shift))) AS of
        FROM shifts GROUP BY thread),
    found AS (
        SELECT n.node, n.name = o.name AS same, n.thread, o.dur_ns, o.device_self_ns
        FROM nodes n JOIN best ON best.thread = n.thread
        JOIN calls o ON o.thread = best.of.thread AND o.place = n.place + best.of.shift),
    believed AS (
        SELECT thread FROM found GROUP BY thread HAVING count(*) FILTER (same) >= {_AGREEING} * count(*)),
    joined AS (
        SELECT node, any_value(dur_ns) AS dur_ns, any_value(device_self_ns) AS device_self_ns
        FROM found JOIN believed USING (thread) WHERE same GROUP BY node)
    SELECT $rank::BIGINT AS rank, name, input_shapes, input_types, count(*) AS nodes, count(j.node) AS joined,
           sum(j.dur_ns)::BIGINT AS host_ns, sum(j.device_self_ns)::BIGINT AS device_ns
    FROM execution_nodes n LEFT JOIN joined j ON j.node = n.node WHERE schema IS NOT NULL
    GROUP BY name, input_shapes, input_types
    ORDER BY device_ns DESC NULLS LAST, host_ns DESC NULLS LAST, nodes DESC, name, input_shapes, input_types
"""


@analysis(
    reads={
        "execution_nodes": (
            "node", "name", "thread", "record_id", "schema", "input_shapes", "input_types",
        ),
        "ops": ("event", "name", "thread", "start_ns", "dur_ns", "device_self_ns"),
    }
)  # fmt: skip
def op_inputs(trace: Trace) -> Table[OpInputs]:
    """Lists operators by the shapes and types that they were given, from an execution trace.

    Times are from the profile. A node is joined to the operator that is at the same place of its thread, if
    nearly all names on the thread agree.
    """
    if not trace.has("execution_nodes"):
        return Table.of(OpInputs, [], [NO_EXECUTION_TRACE])
    found = trace.query(OpInputs, _JOINED, rank=trace.rank)
    nodes, joined = (sum(getattr(row, name) for row in found) for name in ("nodes", "joined"))
    note = (
        f"{units.count(joined)} of {units.count(nodes)} operators of the execution trace are in the profile."
    )
    if not nodes:
        note = "The nodes of the execution trace have no signatures, so they are no operators of torch."
    elif not trace.has("ops"):
        note = "There is no profile beside the execution trace, so it has no times."
    elif not joined:
        note = "None of its operators was found in the profile: it shows others, or in another order."
    return Table(OpInputs, found.arrow, [note])
