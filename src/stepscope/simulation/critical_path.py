"""The walk back along what each step waited for, from its end to its start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope import _native
from stepscope.simulation.dependencies import dependencies, roles
from stepscope.store.columns import record_batch, view
from stepscope.store.trace import Trace

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "KINDS",
    "ON_DEVICE",
    "PATH_STEPS",
    "THREAD_WAIT_NS",
    "leading_thread",
    "path_sums",
    "walk_of",
]

KINDS = (
    "kernel",
    "communication",
    "memcpy",
    "memset",
    "launch latency",
    "device scheduling",
    "graph latency",
    "waited on the device",
    "synchronising call",
    "waited for a thread",
    "unknown",
    "host",
    "dataloader",
    "host op",
    "Python between ops",
    "allocation call",
    "other runtime call",
    "nothing recorded",
)
"""As native code numbers them; `host` is replaced by one of those that follow it."""

ON_DEVICE = tuple(kind for kind in KINDS[:8] if kind != "launch latency")
"""Those that are the device's."""

SCHEDULING_NS = 3_000
THREAD_WAIT_NS = 50_000

PATH_STEPS = """
    SELECT step, start_ns, end_ns, thread FROM steps WHERE end_ns > start_ns
    ORDER BY start_ns, end_ns, host_start_ns
"""
"""The steps whose path can be walked, in their order."""
_LEADING = """
    SELECT thread FROM (
        SELECT thread, count(*) AS launched, 0 AS worked FROM launches WHERE work_events > 0 GROUP BY thread
        UNION ALL SELECT thread, 0, sum(self_ns) FROM ops GROUP BY thread)
    ORDER BY launched DESC, worked DESC, thread LIMIT 1
"""


def walk_of(trace: Trace, steps: pa.Table) -> _native.PathWalk:
    """Walks back from the end of each step; what the host did along the way is not asked yet."""
    import pyarrow as pa
    import pyarrow.compute as pc

    lead = pc.fill_null(steps["thread"], pa.scalar(leading_thread(trace), pa.int32()))
    walk = _native.PathWalk(dependencies(trace), roles(trace), SCHEDULING_NS, THREAD_WAIT_NS)
    walk.walk(
        *(view(column.combine_chunks()) for column in (steps["start_ns"], steps["end_ns"], lead)),
    )
    return walk


def leading_thread(trace: Trace) -> int:
    """The thread that launches most, or else works most; -1 for none."""
    leading = trace.once("leading thread", lambda: trace.rows(_LEADING))
    return int(leading[0]["thread"]) if leading else -1


def path_sums(columns: dict[str, Any]) -> pa.Table:
    """Columns of numbers as native code gives them."""
    import pyarrow as pa

    schema = pa.schema([(name, pa.int64()) for name in columns])
    return pa.Table.from_batches([record_batch(schema, list(columns.values()))])
