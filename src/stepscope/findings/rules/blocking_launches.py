"""CUDA_LAUNCH_BLOCKING was left on."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses._caveats import Caveat
from stepscope.analyses.changed_steps import ChangedStep
from stepscope.analyses.launches import Launch
from stepscope.findings import Advice, Category, rule
from stepscope.findings._simulated import simulated
from stepscope.findings.claims import Claim, Time
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["blocking_launches"]


@rule(category=Category.SYNC)
def blocking_launches(
    mean_step: MeanStep,
    trust: Table[Caveat],
    launches: Table[Launch],
    changed_steps_by_no_sync: Table[ChangedStep],
    *,
    least_share: float = 0.02,
) -> Advice | None:
    """Every launch waits until its kernel is done, because CUDA_LAUNCH_BLOCKING was left on.

    Gain: host and GPU take turns, so a step lasts as long as both together. Without blocking they overlap.

    - at most and at least: what a simulation says in which no call waits, with its error either way.
    """
    found = next((doubt for doubt in trust if doubt.what == "blocking launches"), None)
    if found is None or mean_step.share(mean_step.busy_ns) < least_share:
        return None
    blocked = max(mean_step.busy_ns, mean_step.per_step(sum(row.host_ns for row in launches)))
    return Advice(
        title="Every launch waits for its kernel (CUDA_LAUNCH_BLOCKING)",
        because=f"{found.explanation} The GPU is busy for {units.duration(mean_step.busy_ns)} of a step, and "
        "the host launches nothing in that time.",
        saving=simulated(mean_step, changed_steps_by_no_sync),
        certainty="certain",
        fix="unset CUDA_LAUNCH_BLOCKING    # on AMD: AMD_SERIALIZE_KERNEL; look for os.environ[...], too",
        check="stepscope show trust: 'blocking launches' is gone. A launch takes a few µs.",
        evidence={
            "blocking_launches": found.count,
            "busy_ns": round(mean_step.busy_ns),
            "starved_ns": round(mean_step.starved_ns),
            "blocked_ns": round(blocked),
        },
        claims=frozenset({Claim(Time.STARVED)}),
    )
