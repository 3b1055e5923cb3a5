"""Kernels in a row that a compiler could fuse into one."""

from __future__ import annotations

from typing import Annotated

from stepscope.analyses import analysis
from stepscope.analyses._device_time import STEPS
from stepscope.analyses._windows import how_steps_were_found
from stepscope.analyses._work_families import WORK, WORK_READS, WorkGroup, family_of_group, work_groups
from stepscope.costs.families import is_of_host
from stepscope.patterns import late_pattern
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = [
    "ANCHORS",
    "ENDS",
    "FUSED",
    "JOINS",
    "LEAST_KERNEL_NS",
    "UNFUSED",
    "KernelChain",
    "kernel_chains",
]

ANCHORS = ("matmul", "attention", "convolution", "communication")
"""Families of kernels that a model is made of, and that end a chain."""
ENDS = (*ANCHORS, "optimizer")
"""All families of kernels that end a chain."""
JOINS = ("elementwise", "normalisation", "reduction")
"""Families that a compiler fuses into one kernel."""
FUSED = late_pattern(r"^triton_")
"""Kernels of Inductor: these are fused already."""
UNFUSED = late_pattern(r"c10::complex|thrust::complex|fft(?!2d_)")
"""Kernels that Inductor leaves as they are: it writes none for complex numbers. `fft2d_` are convolutions."""
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
    kernels: Annotated[int, "Kernels in a row; those of one name that one operator launches count once."]
    chains: Annotated[int, "How often it ran."]
    device_ns: Annotated[int, "Summed time of its kernels."]
    shortest_ns: Annotated[int, "Summed time of the shortest kernel of each."]
    copies_ns: Annotated[int, "Summed time of the copies and casts between them."]
    beside_ns: Annotated[int, "Summed time of the copies and casts before the first and after the last."]


# Rows that are sorted are narrow: operators are numbers, and a stream of a device is one hash. A tensor of
# 2^31 elements and more is gone through by several kernels of one call, which cannot become fewer.
_SQL = f"""
    WITH numbered AS (
        SELECT unnest($groups::BIGINT[]) AS grouped, unnest($numbers::TINYINT[]) AS number,
               unnest($ops::INT[]) AS op),
    taken AS (
        SELECT hash(w.device_name, w.stream) AS lane, w.event, w.start_ns, w.dur_ns, n.op, n.number,
               hash(coalesce(w.op, -w.event), grouped) AS call
        FROM ({WORK}) w JOIN numbered n USING (grouped)),
    work AS (
        SELECT t.* EXCLUDE (event), s.step,
               sum((t.number = {_ENDS})::INT) OVER (PARTITION BY t.lane ORDER BY t.start_ns, t.event) AS ended
        FROM taken t ASOF JOIN (SELECT row_number() OVER () AS step, start_ns, end_ns FROM steps) s
            ON t.start_ns >= s.start_ns
        WHERE t.start_ns < s.end_ns),
    placed AS (
        SELECT *, number = {_JOINS} AS joins, min(start_ns) FILTER (number = {_JOINS}) OVER chain AS first_ns,
               max(start_ns) FILTER (number = {_JOINS}) OVER chain AS last_ns
        FROM work WHERE number <> {_ENDS} AND dur_ns >= {LEAST_KERNEL_NS}
        WINDOW chain AS (PARTITION BY lane, step, ended)),
    chains AS (
        SELECT list(op ORDER BY start_ns) FILTER (joins) AS called,
               count(DISTINCT call) FILTER (joins) AS kernels, sum(dur_ns) FILTER (joins) AS device_ns,
               min(dur_ns) FILTER (joins) AS shortest_ns,
               sum(dur_ns) FILTER (NOT joins AND start_ns BETWEEN first_ns AND last_ns) AS copies_ns,
               sum(dur_ns) FILTER (NOT joins AND start_ns NOT BETWEEN first_ns AND last_ns) AS beside_ns
        FROM placed
        GROUP BY lane, step, ended HAVING count(DISTINCT call) FILTER (joins) > 1),
    named AS (
        SELECT kernels, device_ns, shortest_ns, coalesce(copies_ns, 0) AS copies_ns,
               coalesce(beside_ns, 0) AS beside_ns,
               list_filter(called, lambda one, place: place = 1 OR one <> called[place - 1])[:{_MOST_OPS}]
                   AS ops
        FROM chains),
    alike AS (
        SELECT ops, kernels, count(*) AS chains, sum(device_ns)::BIGINT AS device_ns,
               sum(shortest_ns)::BIGINT AS shortest_ns, sum(copies_ns)::BIGINT AS copies_ns,
               sum(beside_ns)::BIGINT AS beside_ns
        FROM named GROUP BY ops, kernels)
    SELECT list_aggregate(list_transform(ops, lambda one: $names[one]), 'string_agg', ', ') AS ops,
           * EXCLUDE (ops)
    FROM alike ORDER BY device_ns DESC, ops, kernels
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

    A matrix product, attention, a convolution, a collective, the optimizer or work on complex numbers ends a
    chain. Copies on the device, casts and what gathers or scatters do not end it and are none of its kernels.
    Kernels under 5 µs and those that a compiler made do not count either.
    """
    families = {group["grouped"]: (family_of_group(group), group) for group in work_groups(trace)}
    told = {grouped: _number(family, group) for grouped, (family, group) in families.items()}
    numbers = {grouped: number for grouped, number in told.items() if number is not None}
    if _JOINS not in numbers.values():
        return Table.of(KernelChain, [], ["No kernel is elementwise, a norm or a reduction."])
    ops = [families[grouped][1]["op"] or "?" for grouped in numbers]
    names = sorted(set(ops))
    found = trace.query(
        KernelChain,
        _SQL,
        groups=list(numbers),
        numbers=list(numbers.values()),
        ops=[names.index(op) + 1 for op in ops],
        names=names,
    )
    nothing = [] if len(found) else ["No two such kernels of 5 µs or more follow one another."]
    return Table(KernelChain, found.arrow, nothing + how_steps_were_found(trace))


def _number(family: str, group: WorkGroup) -> int | None:
    """Whether such work ends a chain, joins one or copies in it; None where it does none of them."""
    name = group["name"] or ""
    if family in ENDS or UNFUSED.search(name):
        return _ENDS
    if FUSED.match(name) or is_of_host(group["kind"], name):
        return None
    return _JOINS if family in JOINS else _COPIES if family == "copy" else None
