"""Kernels in a row that a compiler could fuse into one."""

from __future__ import annotations

import re
from typing import Annotated

from stepscope.analyses import analysis
from stepscope.analyses._device_time import NUMBERED, STEPS
from stepscope.analyses._windows import how_steps_were_found
from stepscope.analyses._work_families import WORK, WORK_READS, family_of_group, work_groups
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["ANCHORS", "ENDS", "FUSED", "JOINS", "LEAST_KERNEL_NS", "KernelChain", "kernel_chains"]

ANCHORS = ("matmul", "attention", "convolution", "communication")
"""Families of kernels that a model is made of, and that end a chain."""
ENDS = (*ANCHORS, "optimizer")
"""All families of kernels that end a chain."""
JOINS = ("elementwise", "normalisation", "reduction")
"""Families that a compiler fuses into one kernel."""
FUSED = re.compile(r"^triton_")
"""Kernels of Inductor: these are fused already."""
LEAST_KERNEL_NS = 5_000
"""A shorter kernel takes the same time, however little it moves."""
_MOST_OPS = 8
_ENDS, _JOINS, _COPIES = 0, 1, 2


@dataclass(frozen=True, slots=True)
class KernelChain:
    """Chains of the same operators, in all steps."""

    ops: Annotated[
        str, "Operators that launched its kernels, in order; no more than eight, each once in a row."
    ]
    kernels: Annotated[int, "Kernels in a row."]
    chains: Annotated[int, "How often it ran."]
    device_ns: Annotated[int, "Summed time of its kernels."]
    shortest_ns: Annotated[int, "Summed time of the shortest kernel of each."]
    copies_ns: Annotated[int, "Summed time of the copies and casts between them."]


_SQL = f"""
    WITH work AS (
        SELECT w.device_name, w.stream, w.start_ns, w.dur_ns, w.op_name, n.number, s.step,
               sum((n.number = {_ENDS})::INT) OVER (
                   PARTITION BY w.device_name, w.stream ORDER BY w.start_ns, w.event) AS ended
        FROM ({WORK}) w JOIN {NUMBERED} n USING (grouped)
        JOIN (SELECT row_number() OVER () AS step, start_ns AS from_ns, end_ns FROM steps) s
            ON w.start_ns >= s.from_ns AND w.start_ns < s.end_ns),
    placed AS (
        SELECT *, number = {_JOINS} AS joins, min(start_ns) FILTER (number = {_JOINS}) OVER chain AS first_ns,
               max(start_ns) FILTER (number = {_JOINS}) OVER chain AS last_ns
        FROM work WHERE number <> {_ENDS} AND dur_ns >= {LEAST_KERNEL_NS}
        WINDOW chain AS (PARTITION BY device_name, stream, step, ended)),
    chains AS (
        SELECT list(coalesce(op_name, '?') ORDER BY start_ns) FILTER (joins) AS named,
               count(*) FILTER (joins) AS kernels, sum(dur_ns) FILTER (joins) AS device_ns,
               min(dur_ns) FILTER (joins) AS shortest_ns, sum(dur_ns) FILTER (NOT joins) AS copies_ns
        FROM placed WHERE start_ns BETWEEN first_ns AND last_ns
        GROUP BY device_name, stream, step, ended HAVING count(*) FILTER (joins) > 1),
    called AS (
        SELECT kernels, device_ns, shortest_ns, coalesce(copies_ns, 0) AS copies_ns,
               array_to_string(list_filter(
                   named, lambda one, place: place = 1 OR one <> named[place - 1])[:{_MOST_OPS}], ', ') AS ops
        FROM chains)
    SELECT ops, kernels, count(*) AS chains, sum(device_ns)::BIGINT AS device_ns,
           sum(shortest_ns)::BIGINT AS shortest_ns, sum(copies_ns)::BIGINT AS copies_ns
    FROM called GROUP BY ops, kernels ORDER BY device_ns DESC, ops, kernels
"""


@analysis(
    reads={
        "device_work": (*WORK_READS["device_work"], "event", "device_name", "stream", "start_ns", "dur_ns"),
        "ops": WORK_READS["ops"],
        "steps": ("step", *STEPS),
    }
)
def kernel_chains(trace: Trace) -> Table[KernelChain]:
    """Lists kernels in a row on a stream that a compiler could fuse: elementwise, norms and reductions.

    A matrix product, attention, a convolution, a collective or the optimizer ends a chain. Copies, casts and
    what gathers or scatters do not end it and are none of its kernels. Kernels under 5 µs and those that a
    compiler made do not count either.
    """
    numbers = {
        group["grouped"]: _ENDS if family in ENDS else _JOINS if family in JOINS else _COPIES
        for group in work_groups(trace)
        if (family := family_of_group(group)) in ENDS
        or (family in (*JOINS, "copy") and not FUSED.match(group["name"] or ""))
    }
    if _JOINS not in numbers.values():
        return Table.of(KernelChain, [], ["No kernel is elementwise, a norm or a reduction."])
    found = trace.query(KernelChain, _SQL, groups=list(numbers), numbers=list(numbers.values()))
    nothing = [] if len(found) else ["No two such kernels of 5 µs or more follow one another."]
    return Table(KernelChain, found.arrow, nothing + how_steps_were_found(trace))
