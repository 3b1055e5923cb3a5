"""What a replayed graph repeats: the table `replays`, made when a question first needs it.

A replay shows kernels, but one call for all of them, so no operator. Often the profile has the same work
once more: launched piece by piece before the graph was made (a warm-up, or steps that run eagerly), or as the
calls that were captured. A replay is matched as a whole or not at all: against a stretch of eager work on one
stream with the same kernels and launch shapes in the same order; else against a capture of as many calls of
the same kinds. Where several stretches match and disagree about an operator or a module (layers look alike),
that one is not known.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope import _native
from stepscope.schema import derived_table
from stepscope.store.columns import ROW_GROUP, arrow_schema, parquet_writer, record_batch, view

if TYPE_CHECKING:
    from stepscope.store.trace import Trace
    from stepscope.streams import Progress

__all__ = ["write_replays"]

REPLAYS = derived_table("replays").columns

_LEAST = 3  # fewer kernels in a row occur by chance
_MOST = 8  # stretches that are asked for their operators

_GRAPHS = """
    graphs AS (
        SELECT l.event FROM stored.launches l JOIN stored.names n ON n.id = l.name
        WHERE n.text LIKE '%GraphLaunch%' AND l.work_events > 0)
"""
# Equal tokens: equal names and launch shapes. The rest of a skeleton differs between eager and replayed work.
_TOKENS = """
    looks AS (SELECT DISTINCT name, skeleton FROM stored.device_work),
    tokens AS (
        SELECT looks.name, looks.skeleton, dense_rank() OVER (
                   ORDER BY n.text, s.category, json_extract_string(s.text, '$.args.grid'),
                            json_extract_string(s.text, '$.args.block')) AS token
        FROM looks LEFT JOIN stored.names n ON n.id = looks.name
        LEFT JOIN stored.skeletons s ON s.id = looks.skeleton),
    work AS (
        SELECT w.event, w.thread, w.launch, w.start_ns, t.token
        FROM stored.device_work w JOIN tokens t
        ON t.name IS NOT DISTINCT FROM w.name AND t.skeleton = w.skeleton
        WHERE w.start_ns IS NOT NULL)
"""
# Work without a launch may be that of another replay: it is like nothing.
_EAGER = f"""
    WITH {_GRAPHS}, {_TOKENS}
    SELECT thread, CASE WHEN launch IS NULL THEN -1 ELSE token END AS token, event FROM work
    WHERE launch IS NULL OR launch NOT IN (SELECT event FROM graphs)
    ORDER BY thread, start_ns, event
"""
_REPLAYED = f"""
    WITH {_GRAPHS}, {_TOKENS}
    SELECT launch, token, event FROM work WHERE launch IN (SELECT event FROM graphs)
    ORDER BY launch, start_ns, event
"""


def write_replays(trace: Trace, target: Path, *, progress: Progress | None = None) -> None:
    """Finds for each replayed graph the work that it repeats, and writes a row for each piece of its work."""
    graphs = f"WITH {_GRAPHS} SELECT 1 FROM graphs LIMIT 1"
    if not (trace.may_have_name("GraphLaunch") and trace.rows(graphs)):
        with parquet_writer(target, REPLAYS) as file:
            file.write_table(arrow_schema(REPLAYS).empty_table())
        return
    finder = _native.StretchFinder()
    total, done = max(trace.meta.rows.get("device_work", 0), 1), 0
    for sql, add in ((_REPLAYED, finder.add_replayed), (_EAGER, finder.add_eager)):
        for batch in trace.batches(sql):
            add(*(view(column) for column in batch.columns))
            done += batch.num_rows
            if progress:
                progress("following replays", min(done / total, 0.999), 0, done)
    finder.find(_LEAST, _MOST)
    found = {
        "replayed": (("event", "launch", "sequence", "place"), finder.take_replays()),
        "stretches": (("sequence", "stretch", "place", "event"), finder.take_stretches()),
    }
    tables = {name: target.with_suffix(f".{name}") for name in found}
    try:
        for name, (columns, values) in found.items():
            _keep(tables[name], columns, values)
        _write(trace, tables, target)
    finally:
        for path in tables.values():
            path.unlink(missing_ok=True)


def _keep(path: Path, names: tuple[str, ...], values: Any) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    batch = record_batch(pa.schema([(name, pa.int64()) for name in names]), values)
    pq.write_table(pa.Table.from_batches([batch]), path)


# Calls between the beginning and the end of a capture put nodes into the graph instead of work on a stream.
_CAPTURES = """
    named AS (SELECT l.event, l.start_ns, l.work_events, l.op, n.text AS name
              FROM stored.launches l JOIN stored.names n ON n.id = l.name),
    captures AS (
        SELECT start_ns, lead(start_ns) OVER (ORDER BY start_ns) AS end_ns, name FROM named
        WHERE regexp_matches(name, 'StreamBeginCapture|StreamEndCapture')),
    calls AS (
        SELECT c.start_ns AS capture, c.end_ns, n.event, n.start_ns,
               CASE WHEN n.name ILIKE '%memcpy%' THEN 'memcpy' WHEN n.name ILIKE '%memset%' THEN 'memset'
                    ELSE 'kernel' END AS kind
        FROM named n ASOF JOIN captures c ON n.start_ns >= c.start_ns
        WHERE c.name LIKE '%BeginCapture%' AND n.start_ns < c.end_ns AND n.work_events = 0
          AND regexp_matches(n.name, 'Launch(Cooperative)?Kernel|Mem(cpy|set).*Async|MemcpyWithStream')),
    captured AS (
        SELECT capture, end_ns, list(kind ORDER BY start_ns, event) AS kinds,
               list(event ORDER BY start_ns, event) AS events
        FROM calls GROUP BY capture, end_ns)
"""
_PLACED = f"""
    WITH {_CAPTURES},
    eager AS (
        SELECT m.sequence, m.place, m.stretch, 'eager' AS basis, m.event AS repeats, d.op, d.launch AS call
        FROM stored.stretches m JOIN stored.device_work d ON d.event = m.event),
    firsts AS (
        SELECT sequence, min(launch) AS launch FROM stored.replayed
        WHERE sequence NOT IN (SELECT sequence FROM stored.stretches) GROUP BY sequence),
    graphs AS (
        SELECT r.sequence, l.start_ns AS launched_ns, list(CASE
                   WHEN s.category IN ('gpu_memcpy', 'Memcpy') THEN 'memcpy'
                   WHEN s.category IN ('gpu_memset', 'Memset') THEN 'memset' ELSE 'kernel' END
                   ORDER BY r.place) AS kinds
        FROM stored.replayed r JOIN firsts USING (sequence, launch)
        JOIN stored.launches l ON l.event = r.launch JOIN stored.device_work w ON w.event = r.event
        LEFT JOIN stored.skeletons s ON s.id = w.skeleton GROUP BY ALL),
    candidates AS (
        SELECT sequence, events, row_number() OVER (PARTITION BY sequence ORDER BY capture) - 1 AS stretch
        FROM graphs g JOIN captured c ON c.kinds = g.kinds AND c.end_ns <= g.launched_ns
        WHERE len(g.kinds) >= {_LEAST}),
    recorded AS (
        SELECT sequence, unnest(range(len(events))) AS place, stretch, unnest(events) AS event
        FROM candidates),
    alike AS (
        SELECT * FROM eager
        UNION ALL
        SELECT r.sequence, r.place, r.stretch, 'capture', r.event, l.op, l.event
        FROM recorded r JOIN stored.launches l ON l.event = r.event),
    known AS (
        SELECT a.*, n.text AS op_name, p.phase, p.module, p.user_frame, m.name AS module_name,
               u.name AS frame_name
        FROM alike a LEFT JOIN stored.ops o ON o.event = a.op LEFT JOIN stored.names n ON n.id = o.name
        LEFT JOIN stored.call_sites p ON p.event = a.call
        LEFT JOIN stored.call_tree m ON m.node = p.module
        LEFT JOIN stored.call_tree u ON u.node = p.user_frame),
    agreed AS (
        SELECT sequence, place, any_value(basis) AS basis, arg_min(repeats, stretch) AS repeats,
               CASE WHEN {{op_name}} THEN arg_min(op, stretch) END AS op,
               CASE WHEN {{phase}} THEN min(phase) END AS phase,
               CASE WHEN {{module_name}} THEN arg_min(module, stretch) END AS module,
               CASE WHEN {{frame_name}} THEN arg_min(user_frame, stretch) END AS user_frame
        FROM known GROUP BY sequence, place)
    SELECT r.event, r.launch, r.sequence, r.place, a.repeats, a.op, a.phase, a.module, a.user_frame, a.basis
    FROM stored.replayed r LEFT JOIN agreed a USING (sequence, place)
""".format(
    **{
        name: f"count(DISTINCT {name}) = 1 AND count({name}) = count(*)"
        for name in ("op_name", "phase", "module_name", "frame_name")
    }
)


def _write(trace: Trace, tables: dict[str, Path], target: Path) -> None:
    schema = arrow_schema(REPLAYS)
    with trace.beside(tables) as ask, parquet_writer(target, REPLAYS) as file:
        for batch in ask(_PLACED):
            file.write_batch(batch.cast(schema), row_group_size=ROW_GROUP)
