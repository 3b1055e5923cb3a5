"""Large matrix products of a step, and what their results go through: for tables of results that are cut."""

from __future__ import annotations

from stepscope.analyses._in_steps import MIDDLE_STEP
from stepscope.store.trace import Trace

__all__ = ["BY_ROW", "CALLED", "MULTIPLIES", "OPS", "longest_products"]

BY_ROW = (
    r"aten::(to|_to_copy|float|type_as|contiguous|clone|(add|sub|mul|div|neg|tanh|clamp|clip|relu|sigmoid)_?)"
)
"""What computes each number of its result from one number of the same row: rows that are cut off later need
none of it."""
MULTIPLIES = ": (Mm|Addmm|Bmm|Baddbmm|Linear)Backward"
"""Nodes of autograd that multiply."""
OPS = ("event", "thread", "name", "start_ns", "dur_ns", "depth", "args", "sequence", "device_once_ns")
CALLED = f"""
    one AS ({MIDDLE_STEP}),
    called AS (
        SELECT o.*, s.step, s.host_end_ns,
               lead(o.sequence IGNORE NULLS) OVER (
                   PARTITION BY o.thread ORDER BY o.start_ns, o.event) AS later
        FROM ops o JOIN one s ON o.start_ns >= s.host_start_ns AND o.start_ns < s.host_end_ns
        WHERE o.depth = 0)
"""
"""SQL of what a step in the middle calls; `later` is autograd's number of the operator after it."""
_LONGEST = """
    SELECT coalesce(max(device_once_ns) FILTER (has_shapes), 0) AS with_shapes,
           coalesce(max(device_once_ns) FILTER (NOT has_shapes), 0) AS without_shapes
    FROM (SELECT device_once_ns, (args->'$."Input Dims"') IS NOT NULL AS has_shapes
          FROM ops WHERE name = 'aten::linear' AND depth = 0)
"""


def longest_products(trace: Trace) -> dict[str, int]:
    """Device time of the longest linear layer that was recorded with its shapes, and without.

    To plan a question about them takes longer than to answer this one, and most traces have none.
    """
    found: dict[str, int] = trace.once(longest_products, lambda: trace.rows(_LONGEST)[0])
    return found
