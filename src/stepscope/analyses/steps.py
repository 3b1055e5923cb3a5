"""How long each step took, and what for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from stepscope.analyses import analysis
from stepscope.analyses._windows import claimed
from stepscope.schema import COMMUNICATION_RANGE, DATALOADER_RANGE, NOT_HOST
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["Step", "steps"]


@dataclass(frozen=True, slots=True)
class Step:
    """One step that the profiler marked, each instant of it in exactly one part."""

    rank: Annotated[int, "Rank that recorded the profile."]
    step: Annotated[int, "Number in the mark."]
    name: Annotated[str, "Name of the mark."]
    start_ns: Annotated[int, "When the step began: its mark, and all device work launched before it done."]
    dur_ns: Annotated[int, "How long it took, until the device work launched in its mark was done."]
    mark_ns: Annotated[int, "Length of the mark on the host; the host may run ahead of the step."]
    kernel_ns: Annotated[int, "Time in which a kernel computed, on any device of the rank."]
    memcpy_ns: Annotated[int, "Time in which a copy ran, and none of the above."]
    memset_ns: Annotated[int, "Time in which a fill ran, and none of the above."]
    communication_ns: Annotated[int, "Time in which a collective ran, device or host, and none of the above."]
    runtime_ns: Annotated[int, "Time in which the host called the device's runtime, and none of the above."]
    dataloader_ns: Annotated[int, "Time in which the host waited for data, and none of the above."]
    cpu_ns: Annotated[int, "Time in which the host ran an operator, and none of the above."]
    other_ns: Annotated[int, "The rest: Python between operators, waiting, nothing recorded."]


PARTS = ("kernel", "memcpy", "memset", "communication", "runtime", "dataloader", "cpu")

_WINDOWS = """
    SELECT step, name, start_ns, end_ns, host_end_ns - host_start_ns AS mark_ns, thread
    FROM steps WHERE source = 'mark' ORDER BY start_ns, end_ns, host_start_ns
"""
_LAUNCHING = "SELECT DISTINCT thread FROM launches WHERE work_events > 0"
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


@analysis(
    reads={
        "steps": ("step", "name", "source", "start_ns", "end_ns", "host_start_ns", "host_end_ns", "thread"),
        "device_work": ("start_ns", "dur_ns", "kind", "communicates"),
        "launches": ("start_ns", "dur_ns", "thread", "work_events"),
        "ops": (*_RANGE, "thread", "depth", "self_ns"),
        "annotations": _RANGE,
        "other_events": _RANGE,
    }
)
def steps(trace: Trace) -> Table[Step]:
    """Divides each marked step: kernels, copies, communication, runtime, data loading, operators, other."""
    windows = trace.arrow(_WINDOWS).to_pylist()
    if not windows:
        note = (
            "No step marks (ProfilerStep#k): call step() on the profiler after each step to have them. "
            "The table `iterations` shows steps found without marks."
        )
        return Table.of(Step, [], [note])
    rows = [
        Step(
            rank=trace.rank,
            step=window["step"],
            name=window["name"],
            start_ns=window["start_ns"],
            dur_ns=window["end_ns"] - window["start_ns"],
            mark_ns=window["mark_ns"],
            **{f"{part}_ns": time for part, time in zip((*PARTS, "other"), parts, strict=True)},
        )
        for window, parts in zip(windows, _parts(trace, windows), strict=True)
    ]
    return Table.of(Step, rows)


def _parts(trace: Trace, windows: list[dict[str, Any]]) -> list[list[int]]:
    """The time of each part in each window, and the rest."""
    # Only threads that drive the work: a thread that pins memory would hide that the others wait.
    launching = trace.arrow(_LAUNCHING)["thread"].to_pylist()
    threads = sorted({*launching, *(window["thread"] for window in windows)})
    nested = trace.arrow(_NESTED, threads=threads).to_pylist()
    return claimed(
        trace,
        _CLAIMS,
        windows,
        len(PARTS),
        threads=threads,
        crossed=[row["thread"] for row in nested if not row["nested"]],
        not_host=list(NOT_HOST),
    )
