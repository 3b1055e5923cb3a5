"""Which phase of training each step's time went to, on the host and on the device."""

from __future__ import annotations

from typing import Annotated, Any

from stepscope import _native
from stepscope.analyses import analysis
from stepscope.analyses._windows import LAUNCHED, LAUNCHED_READS, how_steps_were_found, threads_that_drive
from stepscope.records import dataclass
from stepscope.schema import DATALOADER_RANGE, OPTIMIZER_RANGE
from stepscope.store.columns import view
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["Phase", "phases"]


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase of one step."""

    rank: Annotated[int, "Rank that recorded the profile."]
    step: Annotated[int, "Number of the step."]
    phase: Annotated[str, "dataloader, forward, backward, recomputation, optimizer, or other."]
    host_ns: Annotated[int, "Time with an operator or range of the phase open; all phases sum to the step."]
    stretch_ns: Annotated[
        int, "The same with the pauses between two calls of the phase; all phases sum to the step."
    ]
    stretch_share: Annotated[float | None, "Share of the step; NULL for a step without length."]
    device_ns: Annotated[int, "Summed time of the device work that was launched in the phase, in the mark."]
    device_share: Annotated[float | None, "Share of that of all phases; NULL without any."]
    launches: Annotated[int, "Launches of device work in the phase."]


# In the order in which they claim an instant that several share; the rest of a step is `other`.
PHASES = ("dataloader", "optimizer", "recomputation", "backward", "forward")
_NUMBER = " ".join(f"WHEN '{phase}' THEN {number}" for number, phase in enumerate(PHASES))

_WINDOWS = "SELECT step, start_ns, end_ns, source, thread FROM steps ORDER BY start_ns, end_ns, host_start_ns"
# The outermost calls of each phase, and with `pauses` the time between two of one phase in which none of
# another began: what Python does between two operators, and autograd between two nodes.
_CALLS = f"""
    WITH called AS (
        SELECT o.start_ns, o.dur_ns, p.phase
        FROM ops o JOIN call_sites p ON p.event = o.event
        LEFT JOIN call_sites around ON around.event = o.parent
        WHERE list_contains($threads, o.thread) AND around.phase IS DISTINCT FROM p.phase
        UNION ALL
        SELECT start_ns, dur_ns, CASE WHEN name LIKE 'Optimizer.%' THEN 'optimizer' ELSE 'dataloader' END
        FROM annotations
        WHERE category = 'user_annotation' AND list_contains($threads, thread)
          AND regexp_matches(name, '{OPTIMIZER_RANGE}|{DATALOADER_RANGE}')),
    timed AS (SELECT start_ns, coalesce(dur_ns, 0) AS dur_ns, phase FROM called
              WHERE phase != 'other' AND start_ns IS NOT NULL),
    following AS (
        SELECT start_ns, phase, lag(phase) OVER (ORDER BY start_ns, dur_ns DESC, phase) AS last_phase,
               max(start_ns + dur_ns) OVER (ORDER BY start_ns, dur_ns DESC, phase
                                            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS last_end
        FROM timed),
    claims AS (
        SELECT start_ns, dur_ns, phase, false AS is_pause FROM timed
        UNION ALL
        SELECT last_end, start_ns - last_end, phase, true FROM following
        WHERE phase = last_phase AND last_end < start_ns)
    SELECT start_ns, dur_ns, (CASE phase {_NUMBER} END)::BIGINT AS label, is_pause FROM claims
    WHERE dur_ns > 0 AND start_ns < $until AND start_ns + dur_ns > $since ORDER BY start_ns
"""
_DEVICE = f"""
    SELECT step, phase, sum(ns)::BIGINT AS device_ns, sum(launches)::BIGINT AS launches
    FROM ({LAUNCHED}) GROUP BY step, phase
"""


@analysis(
    reads={
        **LAUNCHED_READS,
        "steps": ("step", "source", "start_ns", "end_ns", "host_start_ns", "thread"),
        "launches": ("thread", *LAUNCHED_READS["launches"]),
        "ops": ("event", "start_ns", "dur_ns", "thread", "forward_thread", "parent"),
        "annotations": ("name", "category", "start_ns", "dur_ns", "thread"),
    }
)
def phases(trace: Trace) -> Table[Phase]:
    """Divides each step by phase of training: data loading, forward, backward, recomputation, optimizer.

    Backward is what autograd's engine runs; recomputation is forward run again inside it; the optimizer's
    part includes zero_grad, and clipping where stacks were recorded. Forward is every other operator. Device
    work has the phase of its launch; that of a replayed graph the phase in which the same kernels were
    launched one by one, where the profile has that.
    """
    windows = trace.rows(_WINDOWS)
    if not windows:
        return Table.of(Phase, [], ["The profile holds no events with a time."])
    device = {(row["step"], row["phase"]): row for row in trace.rows(_DEVICE)}
    rows: list[Phase] = []
    for window, host, stretches in zip(windows, *_host(trace, windows), strict=True):
        names = (*PHASES, "other")
        launched = [device.get((window["step"], name), {}) for name in names]
        work = sum(one.get("device_ns", 0) for one in launched)
        length = window["end_ns"] - window["start_ns"]
        rows += [
            Phase(
                rank=trace.rank,
                step=window["step"],
                phase=name,
                host_ns=host[at],
                stretch_ns=stretches[at],
                stretch_share=stretches[at] / length if length else None,
                device_ns=launched[at].get("device_ns", 0),
                device_share=launched[at].get("device_ns", 0) / work if work else None,
                launches=launched[at].get("launches", 0),
            )
            for at, name in enumerate(names)
        ]
    return Table.of(Phase, rows, how_steps_were_found(trace))


def _host(trace: Trace, windows: list[dict[str, Any]]) -> tuple[list[list[int]], list[list[int]]]:
    """For each window the time of each phase and the rest; the same with pauses between its calls."""
    import pyarrow.compute as pc

    starts, ends = [window["start_ns"] for window in windows], [window["end_ns"] for window in windows]
    calls, stretches = (_native.PrioritySweep(starts, ends, len(PHASES)) for _ in range(2))
    asked = {"threads": threads_that_drive(trace), "since": starts[0], "until": ends[-1]}
    for batch in trace.batches(_CALLS, **asked):
        without = batch.filter(pc.invert(batch["is_pause"]))
        for sweep, rows in ((calls, without), (stretches, batch)):
            sweep.push(*(view(rows[column]) for column in ("start_ns", "dur_ns", "label")))
    calls.finish()
    stretches.finish()
    return calls.by_window_ns, stretches.by_window_ns
