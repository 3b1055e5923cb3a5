"""What each instant of a step was spent on."""

from __future__ import annotations

from typing import Any

from stepscope.analyses._windows import claimed, launching_threads
from stepscope.schema import COMMUNICATION_RANGE, DATALOADER_RANGE, NOT_HOST
from stepscope.store.trace import Reads, Trace

__all__ = ["PARTS", "PART_READS", "parts_of"]

PARTS = ("kernel", "memcpy", "memset", "communication", "runtime", "dataloader", "cpu")
"""In the order in which they claim an instant; the rest of a step is another part."""

# Without device work and without marks, the thread with the most time in operators is the one that drives.
_BUSIEST = "SELECT thread FROM ops GROUP BY thread ORDER BY sum(self_ns) DESC NULLS LAST, thread LIMIT 1"
# Where operators nest without crossing, the outermost cover all others, and there are far fewer of them.
_NESTED = """
    SELECT thread, coalesce(sum(self_ns), 0) = coalesce(sum(dur_ns) FILTER (depth = 0), 0) AS nested
    FROM ops WHERE list_contains($threads, thread) GROUP BY thread
"""
_RANGE = ("name", "category", "phase", "start_ns", "dur_ns")
_RANGES = ("annotations", "ops", "other_events")
_CLAIMS = """
    WITH claims AS (
        SELECT start_ns, dur_ns,
               CASE kind WHEN 'memcpy' THEN 1 WHEN 'memset' THEN 2 ELSE communicates::INT * 3 END AS part
        FROM device_work
        UNION ALL
        SELECT start_ns, dur_ns, 4 FROM launches WHERE list_contains($threads, thread)
        UNION ALL
        SELECT start_ns, dur_ns, 6 FROM ops
        WHERE list_contains($crossed, thread) OR depth = 0 AND list_contains($threads, thread)
        UNION ALL
        SELECT start_ns, dur_ns, CASE WHEN regexp_matches(name, '{communication}') THEN 3 ELSE 5 END
        FROM ({ranges})
        WHERE regexp_matches(name, '{communication}|{dataloader}')
          AND phase = 'X' AND (category IS NULL OR NOT list_contains($not_host, category)))
    SELECT start_ns, dur_ns, part::BIGINT AS label FROM claims
    WHERE dur_ns > 0 AND start_ns < $until AND start_ns + dur_ns > $since ORDER BY start_ns
""".format(
    communication=COMMUNICATION_RANGE,
    dataloader=DATALOADER_RANGE,
    ranges=" UNION ALL ".join(f"SELECT {', '.join(_RANGE)} FROM {table}" for table in _RANGES),
)

PART_READS: Reads = {
    "device_work": ("start_ns", "dur_ns", "kind", "communicates"),
    "launches": ("start_ns", "dur_ns", "thread", "work_events"),
    "ops": (*_RANGE, "thread", "depth", "self_ns"),
    "annotations": _RANGE,
    "other_events": _RANGE,
}
"""What `parts_of` reads."""


def parts_of(trace: Trace, windows: list[dict[str, Any]]) -> list[list[int]]:
    """The time of each part in each window (in order; rows with start_ns, end_ns, thread), and the rest."""
    # Only threads that drive the work: a thread that pins memory would hide that the others wait.
    launching = launching_threads(trace)
    threads = sorted({*launching, *(window["thread"] for window in windows if window["thread"] is not None)})
    threads = threads or [row["thread"] for row in trace.rows(_BUSIEST)]
    nested = trace.rows(_NESTED, threads=threads)
    return claimed(
        trace,
        _CLAIMS,
        windows,
        len(PARTS),
        threads=threads,
        crossed=[row["thread"] for row in nested if not row["nested"]],
        not_host=list(NOT_HOST),
    )
