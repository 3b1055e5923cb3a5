"""Reads of values from a device that follow one another closely: loops over single numbers."""

from __future__ import annotations

from typing import Annotated

from stepscope.analyses import analysis
from stepscope.analyses._windows import how_steps_were_found
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["ReadLoops", "read_loops"]

_READS = "aten::_local_scalar_dense"
_PRODUCTS = r"aten::(mm|addmm|bmm|baddbmm|convolution|_?scaled_dot_product\w+|_cudnn_rnn|_thnn_fused\w+)"
_APART_NS = 1_000_000
"""Operators on single numbers take some 20 µs each with the profiler: fifty of them are another loop."""
_LEAST_READS = 16
_FEW_PRODUCTS = 0.1
"""For each read: what has more of them computes layers, and reads on the way."""


@dataclass(frozen=True, slots=True)
class ReadLoops:
    """All loops of one thread that read values one by one, in all steps."""

    loops: Annotated[int, "Stretches of 16 reads and more, each within 1 ms of the one before."]
    reads: Annotated[int, "Reads in them."]
    ops: Annotated[int, "Operators that the program calls in them, the reads included."]
    launches: Annotated[int, "Launches of device work in them."]
    host_ns: Annotated[int, "From the first read of each to the end of its last."]
    device_ns: Annotated[int, "Device time of the work that they launch."]


_SQL = f"""
    WITH reads AS (
        SELECT s.step, o.thread, o.start_ns, o.start_ns + coalesce(o.dur_ns, 0) AS end_ns
        FROM ops o JOIN steps s ON o.start_ns >= s.host_start_ns AND o.start_ns < s.host_end_ns
        WHERE o.name = '{_READS}' AND o.device_once_ns > 0),
    begun AS (
        SELECT *, (start_ns - lag(end_ns) OVER near > {_APART_NS}) IS DISTINCT FROM FALSE AS begins FROM reads
        WINDOW near AS (PARTITION BY step, thread ORDER BY start_ns)),
    numbered AS (
        SELECT *, sum(begins::INT) OVER (PARTITION BY step, thread ORDER BY start_ns) AS number FROM begun),
    stretches AS (
        SELECT thread, min(start_ns) AS since, max(end_ns) AS until, count(*) AS reads
        FROM numbered GROUP BY step, thread, number HAVING count(*) >= {_LEAST_READS}),
    called AS (
        SELECT r.thread, r.since, count(*) FILTER (o.depth = 0) AS ops,
               count(*) FILTER (regexp_full_match(o.name, '{_PRODUCTS}')) AS products
        FROM ops o ASOF JOIN stretches r ON r.thread = o.thread AND r.since <= o.start_ns
        WHERE o.start_ns < r.until GROUP BY r.thread, r.since),
    launched AS (
        SELECT r.thread, r.since, count(*) AS launches, sum(l.work_ns) AS device_ns
        FROM launches l ASOF JOIN stretches r ON r.thread = l.thread AND r.since <= l.start_ns
        WHERE l.start_ns < r.until AND l.work_events > 0 GROUP BY r.thread, r.since)
    SELECT count(*) AS loops, sum(r.reads)::BIGINT AS reads, sum(c.ops)::BIGINT AS ops,
           sum(l.launches)::BIGINT AS launches, sum(r.until - r.since)::BIGINT AS host_ns,
           sum(l.device_ns)::BIGINT AS device_ns
    FROM stretches r JOIN called c ON c.thread = r.thread AND c.since = r.since
        JOIN launched l ON l.thread = r.thread AND l.since = r.since
    WHERE c.products <= {_FEW_PRODUCTS} * r.reads
    GROUP BY r.thread ORDER BY host_ns DESC, r.thread
"""


@analysis(
    reads={
        "steps": ("step", "source", "host_start_ns", "host_end_ns"),
        "ops": ("thread", "name", "start_ns", "dur_ns", "depth", "device_once_ns"),
        "launches": ("thread", "start_ns", "work_ns", "work_events"),
    }
)
def read_loops(trace: Trace) -> Table[ReadLoops]:
    """Finds loops in Python that read a number from a device again and again, with little work in between.

    Branches make their repetitions differ, so `loops` need not have them. Where products of matrices come
    between the reads, it is a network that looks at a value in each layer, and no row.
    """
    if not trace.may_have_name(f"^{_READS}$"):
        return Table.of(ReadLoops, [], ["Nothing is read from a device."])
    rows = trace.query(ReadLoops, _SQL)
    nothing = [] if len(rows) else ["Reads are few, or have other work between them."]
    return Table.of(ReadLoops, rows, nothing + how_steps_were_found(trace))
