"""CUDA_LAUNCH_BLOCKING was left on."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses._doubts import Doubt
from stepscope.analyses.changed_steps import ChangedStep
from stepscope.analyses.launches import Launch
from stepscope.findings import Advice, rule
from stepscope.findings._replays import replayed
from stepscope.findings.pace import Pace
from stepscope.tables import Table

__all__ = ["blocking_launches"]


@rule
def blocking_launches(
    pace: Pace,
    trust: Table[Doubt],
    launches: Table[Launch],
    changed_steps_by_no_sync: Table[ChangedStep],
    *,
    least_share: float = 0.02,
) -> Advice | None:
    """Launches wait for their kernels: CUDA_LAUNCH_BLOCKING was left on.

    Gain: host and device take turns, so that a step lasts as long as both together. Without blocking they
    overlap. How far is what a replay says in which no call waits, without the profiler.
    """
    found = next((doubt for doubt in trust if doubt.what == "blocking launches"), None)
    if found is None or pace.share(pace.busy_ns) < least_share:
        return None
    blocked = max(pace.busy_ns, pace.per_step(sum(row.host_ns for row in launches)))
    return Advice(
        title="Every launch waits for its kernel (CUDA_LAUNCH_BLOCKING)",
        because=f"{found.explanation} The device works {units.duration(pace.busy_ns)} of a step, and the "
        "host prepares nothing meanwhile.",
        saving=replayed(pace, changed_steps_by_no_sync),
        certainty="certain",
        fix="unset CUDA_LAUNCH_BLOCKING    # and AMD_SERIALIZE_KERNEL, or os.environ[...] in the script",
        check="stepscope show trust: the doubt 'blocking launches' is gone, and launches take a few µs.",
        evidence={
            "blocking_launches": found.count,
            "busy_ns": round(pace.busy_ns),
            "late_ns": round(pace.late_ns),
            "blocked_ns": round(blocked),
        },
        claims=frozenset({"late"}),
    )
