"""What was live when a device held the most memory."""

from __future__ import annotations

from typing import Annotated

from stepscope import units
from stepscope.analyses import analysis
from stepscope.analyses._memory import COLUMNS, EVENTS, STEP_COLUMNS, STEPS, missing, parameters
from stepscope.analyses._windows import how_steps_were_found
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["PeakMemory", "memory_peaks"]


@dataclass(frozen=True, slots=True)
class PeakMemory:
    """Blocks of one kind that were live at the peak of a device; the rows of a device sum to its peak."""

    device: Annotated[str, "The device by its index, or cpu."]
    category: Annotated[
        str,
        "activations: made in forward, freed in backward. gradients: made in backward and kept, or freed by "
        "zero_grad. optimizer state: made by the optimizer and kept. temporaries: freed in the phase that "
        "made them. unknown: none of these, or alive before the profile began.",
    ]
    phase: Annotated[str, "Phase that allocated them; before: alive when the profile began."]
    freed_in: Annotated[
        str, "Phase that freed them, 'later …' after another phase; kept: not in this profile."
    ]
    module: Annotated[str | None, "Innermost nn.Module around the allocation; in backward that of forward."]
    op: Annotated[str | None, "Innermost operator around the allocation."]
    blocks: Annotated[int | None, "How many blocks; NULL where the profile does not list them."]
    bytes: Annotated[int, "Their size."]
    share: Annotated[float | None, "Share of the peak."]


@analysis(
    reads={
        "memory_events": COLUMNS,
        "steps": STEP_COLUMNS,
        "call_sites": ("event", "node", "phase", "module"),
        "call_tree": ("node", "parent", "stored_in", "name"),
        "ops": ("event", "name", "args", "start_ns", "sequence", "forward_thread"),
    }
)
def memory_peaks(
    trace: Trace,
    *,
    step: Annotated[int | None, "the peak of this step instead of that of the whole profile"] = None,
) -> Table[PeakMemory]:
    """Says what was live when each device held the most memory, by kind, phase, module and operator."""
    if notes := missing(trace):
        return Table.of(PeakMemory, (), notes)
    table = trace.query(PeakMemory, _SQL, step=step)
    return table.with_notes((*how_steps_were_found(trace), *_when(trace, step), *parameters(trace)))


# The first instant of the highest total, in the whole profile or in the mark of one step.
_PEAKS = """
    peaks AS MATERIALIZED (
        SELECT device_name, arg_max(nth, row(allocated_bytes, -nth)) AS peak_nth,
               max(allocated_bytes) AS peak_bytes
        FROM changes WHERE $step::BIGINT IS NULL
           OR EXISTS (SELECT * FROM marks WHERE step = $step AND start_ns >= host_start_ns
                                            AND start_ns < host_end_ns)
        GROUP BY device_name)
"""
# A block is live if the last change at its address up to the peak made it, or if the first one at all frees
# it later: then it was alive before the profile began. An address given out twice hides the free between.
_LIVE = """
    touched AS (
        SELECT device_name, address,
               arg_max(row(nth, event, bytes), nth) FILTER (nth <= peak_nth) AS made,
               arg_min(row(nth, event, bytes), nth) FILTER (nth > peak_nth) AS next
        FROM changes JOIN peaks USING (device_name) WHERE address IS NOT NULL GROUP BY device_name, address),
    live AS MATERIALIZED (
        SELECT device_name, made[1] AS made_nth, made[2] AS made_event,
               coalesce(made[3], -next[3]) AS bytes, next[1] AS freed_nth, next[2] AS freed_event,
               next[3] > 0 AS lost
        FROM touched WHERE made[3] > 0 OR (made IS NULL AND next[3] < 0))
"""
# Stretches of forward, backward and optimizer, as the changes of memory show them. What a thread beside them
# does (a loader, say) does not end a stretch, and recomputation is part of backward.
_STRETCHES = """
    placed AS MATERIALIZED (
        SELECT nth, event, start_ns, node, phase, module FROM changes LEFT JOIN call_sites USING (event)),
    phased AS (
        SELECT nth, CASE phase WHEN 'recomputation' THEN 'backward' ELSE phase END AS phase FROM placed
        WHERE phase IN ('forward', 'backward', 'recomputation', 'optimizer')),
    begun AS (
        SELECT nth, phase, lag(phase) OVER (ORDER BY nth) AS before_phase FROM phased),
    stretches AS MATERIALIZED (
        SELECT nth, row_number() OVER (ORDER BY nth) AS stretch FROM begun
        WHERE phase IS DISTINCT FROM before_phase)
"""
_PATHS = """
    wanted AS (
        SELECT DISTINCT node FROM placed
        WHERE event IN (SELECT made_event FROM live UNION ALL SELECT freed_event FROM live)),
    up AS (
        SELECT node, node AS at, 0 AS rise FROM wanted
        UNION ALL
        SELECT up.node, parent, rise + 1 FROM up JOIN call_tree ON call_tree.node = up.at
        WHERE parent IS NOT NULL),
    paths AS MATERIALIZED (
        SELECT up.node, arg_min(name, rise) FILTER (stored_in = 'ops') AS op,
               bool_or(name LIKE 'Optimizer.zero\\_grad#%' ESCAPE '\\') AS zeroes
        FROM up JOIN call_tree ON call_tree.node = up.at GROUP BY up.node)
"""
# A block that is never freed has outlived its phase if anything of another phase, or the end of its step,
# follows it.
_TOLD = """
    told AS (
        SELECT live.device_name, live.bytes, made_event, freed_event, lost,
               coalesce(a.phase, 'other') AS phase, f.phase AS freed_phase, b.stretch AS made_in,
               e.stretch AS ended_in, coalesce(z.zeroes, false) AS zeroed, p.op, m.name AS module,
               (SELECT max(stretch) FROM stretches) > b.stretch
                   OR (SELECT max(host_end_ns) FROM marks WHERE source IN ('mark', 'annotation')) > a.start_ns
                   AS outlived
        FROM live LEFT JOIN placed a ON a.nth = made_nth LEFT JOIN placed f ON f.nth = freed_nth
        LEFT JOIN paths p ON p.node = a.node LEFT JOIN paths z ON z.node = f.node
        LEFT JOIN call_tree m ON m.node = a.module
        ASOF LEFT JOIN stretches b ON b.nth <= coalesce(made_nth, 0)
        ASOF LEFT JOIN stretches e ON e.nth <= coalesce(freed_nth, 0)),
    kinds AS (
        SELECT device_name, bytes, op, regexp_replace(module, '^nn.Module: ', '') AS module,
               CASE WHEN made_event IS NULL THEN 'before' ELSE phase END AS phase,
               CASE WHEN lost THEN 'unknown' WHEN freed_event IS NULL THEN 'kept'
                    WHEN freed_phase = phase AND ended_in > made_in THEN 'later ' || phase
                    ELSE coalesce(freed_phase, 'other') END AS freed_in,
               CASE WHEN lost THEN 'unknown'
                    WHEN made_event IS NULL THEN CASE WHEN zeroed THEN 'gradients' ELSE 'unknown' END
                    WHEN freed_event IS NULL THEN
                        CASE WHEN phase = 'backward' AND outlived THEN 'gradients'
                             WHEN phase = 'optimizer' AND outlived THEN 'optimizer state' ELSE 'unknown' END
                    WHEN phase = 'forward' AND freed_phase IN ('backward', 'recomputation') THEN 'activations'
                    WHEN phase = 'recomputation' AND freed_phase = 'backward' THEN 'activations'
                    WHEN freed_phase = phase AND ended_in IS NOT DISTINCT FROM made_in THEN 'temporaries'
                    WHEN phase = 'backward' AND (freed_phase <> 'recomputation' OR ended_in > made_in)
                        THEN 'gradients'
                    ELSE 'unknown' END AS category
        FROM told)
"""
_SQL = f"""
    WITH RECURSIVE {EVENTS}, {STEPS}, {_PEAKS}, {_LIVE}, {_STRETCHES}, {_PATHS}, {_TOLD},
    listed AS (
        SELECT device_name, category, phase, freed_in, module, op, count(*) AS blocks, sum(bytes) AS bytes
        FROM kinds GROUP BY ALL),
    rows AS (
        SELECT * FROM listed
        UNION ALL
        SELECT device_name, 'unknown', 'before', 'kept', NULL, NULL, NULL,
               peak_bytes - coalesce(live_bytes, 0)
        FROM peaks LEFT JOIN (SELECT device_name, sum(bytes) AS live_bytes FROM live GROUP BY device_name)
             USING (device_name))
    SELECT device_name AS device, category, phase, freed_in, module, op, blocks, bytes::BIGINT AS bytes,
           bytes / nullif(peak_bytes, 0)::DOUBLE AS share
    FROM rows JOIN peaks USING (device_name) WHERE bytes <> 0
    ORDER BY peak_bytes DESC, device, rows.bytes DESC, category, phase, freed_in, module, op
"""


def _when(trace: Trace, step: int | None) -> tuple[str, ...]:
    """Where the peaks are, a line for each device."""
    found = trace.arrow(
        f"""
        WITH {EVENTS}, {STEPS}, {_PEAKS}
        SELECT peaks.device_name, peak_bytes, start_ns - (SELECT min(start_ns) FROM changes) AS after_ns,
               CASE WHEN start_ns < host_end_ns THEN marks.step END AS step
        FROM peaks JOIN changes ON nth = peak_nth
        ASOF LEFT JOIN marks ON start_ns >= host_start_ns ORDER BY peak_bytes DESC, peaks.device_name
        """,
        step=step,
    )
    if not found.num_rows:
        return (f"No event of memory in step {step}.",)
    return tuple(
        f"Device {row['device_name']}: {units.size(row['peak_bytes'])}"
        f"{'' if row['step'] is None else ' in step ' + str(row['step'])}, "
        f"{units.duration(row['after_ns'])} after the first event of memory."
        for row in found.to_pylist()
    )
