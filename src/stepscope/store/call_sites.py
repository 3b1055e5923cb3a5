"""Where each call was made: its step, its phase, the module and the frames around it.

The sweep along the paths of calls leaves one row per call with its path; what a backward operator takes from
its forward operator, and what a worker of autograd takes from the thread that called it, is looked up here.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.schema import derived_table
from stepscope.store.columns import ROW_GROUP, arrow_schema, parquet_writer

if TYPE_CHECKING:
    import pyarrow as pa

    from stepscope.store.trace import Trace

__all__ = ["HostSteps", "numbers", "raw_writer", "write_call_sites"]

_CALL_SITES = derived_table("call_sites")
_RAW = ("step", "event", "start_ns", "node", "backward", "step_self_ns", "starved_ns")
_ANSWERS = (
    "event",
    "forward",
    "module",
    "user_frame",
    "library_frame",
    "asked_module",
    "asked_user_frame",
    "asked_library_frame",
)


def raw_writer(path: Path, columns: Iterable[str] = _RAW) -> Any:
    """A file for numbers that are read once or twice and deleted."""
    import pyarrow.parquet as pq

    return pq.ParquetWriter(path, numbers(columns), compression="none", use_dictionary=False)


def numbers(columns: Iterable[str]) -> pa.Schema:
    """Columns that hold whole numbers."""
    import pyarrow as pa

    return pa.schema([(name, pa.int64()) for name in columns])


class HostSteps:
    """The steps as the host goes through them: an event belongs to the step that it begins in."""

    def __init__(self, trace: Trace) -> None:
        rows = trace.rows(
            "SELECT step, host_start_ns, host_end_ns FROM stored.steps "
            "WHERE host_start_ns IS NOT NULL AND host_end_ns IS NOT NULL ORDER BY host_start_ns"
        )
        self._starts = [row["host_start_ns"] for row in rows]
        # A step that begins ends the one before.
        self._steps = [
            (row["step"], min([row["host_end_ns"], *self._starts[at + 1 : at + 2]]))
            for at, row in enumerate(rows)
        ]

    def of(self, starts: memoryview) -> pa.Array:
        """The step of each event, None for none; their starts are in order."""
        import pyarrow as pa
        import pyarrow.compute as pc

        steps: list[int | None] = []
        ends: list[int] = []

        def until(row: int, step: int | None) -> None:
            if row > (ends[-1] if ends else 0):
                ends.append(row)
                steps.append(step)

        rows = len(starts)
        first = max(0, bisect_right(self._starts, starts[0]) - 1) if rows else 0
        for at in range(first, len(self._starts)):
            begun = bisect_left(starts, self._starts[at])
            if begun == rows:
                break
            step, end = self._steps[at]
            until(begun, None)
            until(bisect_left(starts, end), step)
        until(rows, None)
        runs = pa.RunEndEncodedArray.from_arrays(pa.array(ends, pa.int32()), pa.array(steps, pa.int64()))
        return pc.run_end_decode(runs)


# A forward operator is the last that began with the number: earlier ones made no node. Of those around
# it that share the number, the outermost is meant.
_ANSWERED = """
    WITH forward AS (SELECT event, thread, sequence, start_ns, dur_ns, depth FROM stored.ops
                     WHERE sequence IS NOT NULL AND coalesce(forward_thread, 0) = 0),
         backward AS (SELECT o.event, o.forward_thread, o.sequence, o.start_ns, h.pid FROM stored.ops o
                      JOIN stored.threads h ON h.id = o.thread
                      WHERE o.forward_thread > 0 AND o.sequence IS NOT NULL),
         matching AS (SELECT b.pid, b.forward_thread, f.thread, count(*) AS n
                      FROM (SELECT DISTINCT pid, forward_thread, sequence FROM backward) b
                      JOIN (SELECT DISTINCT thread, sequence FROM forward) f USING (sequence)
                      JOIN stored.threads h ON h.id = f.thread AND h.pid = b.pid GROUP BY ALL),
         counted_by AS (SELECT pid, forward_thread, arg_max(thread, (n, -thread)) AS thread
                        FROM matching GROUP BY ALL),
         asking AS (SELECT b.event, c.thread, b.sequence, b.start_ns
                    FROM backward b JOIN counted_by c USING (pid, forward_thread)),
         last AS (SELECT a.event, f.event AS last, f.thread, f.sequence, f.start_ns
                  FROM asking a ASOF JOIN forward f
                  ON a.thread = f.thread AND a.sequence = f.sequence AND a.start_ns >= f.start_ns),
         outer_most AS (SELECT l.event, arg_min(f.event, (f.depth, f.event)) AS forward
                        FROM last l JOIN forward f ON f.thread = l.thread AND f.sequence = l.sequence
                             AND f.start_ns <= l.start_ns AND f.start_ns + coalesce(f.dur_ns, 0) >= l.start_ns
                             AND (f.event = l.last OR f.start_ns + coalesce(f.dur_ns, 0) > l.start_ns)
                        GROUP BY l.event),
         forward_tree AS (SELECT m.event, m.forward, t.module, t.user_frame, t.library_frame
                          FROM outer_most m
                          JOIN stored.raw_call_sites r ON r.event = m.forward
                          JOIN stored.call_tree t ON t.node = r.node)
    SELECT * FROM forward_tree UNION ALL BY NAME
    SELECT a.event, t.module AS asked_module, t.user_frame AS asked_user_frame,
           t.library_frame AS asked_library_frame
    FROM stored.asked a JOIN stored.call_tree t ON t.node = a.node
"""

# What is asked for has no backward node: one lookup finds what is known of either.
_PLACED = """
    SELECT r.event, r.node, r.step, g.forward, t.phase, r.step_self_ns, r.starved_ns,
           CASE WHEN t.phase = 'recomputation' THEN coalesce(t.module, g.module)
                ELSE coalesce(g.module, t.module, g.asked_module) END AS module,
           CASE WHEN t.phase = 'recomputation' THEN coalesce(t.user_frame, g.user_frame)
                ELSE coalesce(g.user_frame, t.user_frame, g.asked_user_frame) END AS user_frame,
           CASE WHEN t.phase = 'recomputation' AND t.user_frame IS NOT NULL THEN t.library_frame
                WHEN g.user_frame IS NOT NULL THEN g.library_frame
                WHEN t.user_frame IS NOT NULL THEN t.library_frame
                ELSE g.asked_library_frame END AS library_frame
    FROM stored.raw_call_sites r LEFT JOIN stored.answers g ON g.event = coalesce(r.backward, r.event)
    JOIN stored.call_tree t ON t.node = r.node
"""


def write_call_sites(trace: Trace, tables: dict[str, Path], target: Path) -> None:
    """Writes the call sites, from the tree, the rows of the sweep and what workers asked.

    `tables` says where these are, and where to put the answers meanwhile.
    """
    schema = arrow_schema(_CALL_SITES.columns)
    # In two queries: of a file the database knows how few rows it has, and looks up in it what is many.
    known = {name: path for name, path in tables.items() if name != "answers"}
    with trace.beside(known) as ask, raw_writer(tables["answers"], _ANSWERS) as file:
        for batch in ask(_ANSWERED):
            file.write_batch(batch.select(_ANSWERS).cast(file.schema))
    with trace.beside(tables) as ask, parquet_writer(target, _CALL_SITES.columns) as file:
        for batch in ask(_PLACED):
            file.write_batch(batch.select(schema.names).cast(schema), row_group_size=ROW_GROUP)
