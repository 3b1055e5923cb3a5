"""What the analyses of sampled stacks share."""

from __future__ import annotations

from stepscope import units
from stepscope.store.trace import Trace

__all__ = ["NO_SAMPLES", "PARTED", "WEIGHED", "sampled_notes"]

NO_SAMPLES = (
    "No samples of the CPU: record them with py-spy record --native or perf record -g, and name the file "
    "beside the profile."
)
WEIGHED = """
    weighed AS (
        SELECT coalesce(process, -1) AS process, thread, command, event, stack,
               sum(samples)::BIGINT AS samples, sum(weight) AS weight
        FROM cpu_samples GROUP BY ALL),
    placed AS (SELECT stack, depth, name, module, part FROM sampled_stacks JOIN sampled_frames USING (frame))
"""
"""`weighed`: samples by thread, event and stack. `placed`: the frames of each stack."""
PARTED = """
    parted AS (
        SELECT stack, CASE WHEN bool_or(part = 'gil') THEN 'gil'
                           WHEN bool_or(part = 'data loader') THEN 'data loader'
                           WHEN bool_or(part = 'collector') THEN 'collector'
                           ELSE coalesce(min(part) FILTER (depth = 0), 'program') END AS part
        FROM placed GROUP BY stack)
"""
"""`parted`: what kind of code each stack is. Waits for the GIL, loading and collecting hold all they call."""


def sampled_notes(trace: Trace) -> tuple[str, ...]:
    """How many samples there are, and of what."""
    sql = "SELECT event, sum(samples)::BIGINT AS n FROM cpu_samples GROUP BY event ORDER BY n DESC"
    rows = trace.rows(sql)
    total = sum(row["n"] for row in rows)
    named = [f"{units.count(row['n'])} {row['event']}" for row in rows if row["event"]]
    kinds = f" ({', '.join(named[:4])})" if named else ""
    return (f"{units.counted(total, 'sample')}{kinds}. Shares are of each event by itself.",)
