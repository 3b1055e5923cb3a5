"""Anomaly detection of autograd was left on."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.starving_phases import StarvingPhase
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice, Bounds, Category, Saving, rule
from stepscope.findings._waits import NODE, anomaly_checks
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["anomaly_mode"]

_FIX = """\
torch.autograd.set_detect_anomaly(False)    # or take the `with torch.autograd.detect_anomaly():` away
torch.autograd.set_detect_anomaly(True, check_nan=False)    # keeps the stacks, without reading gradients"""


@rule(category=Category.SYNC)
def anomaly_mode(
    mean_step: MeanStep,
    step_ops: Table[StepOp],
    starving_phases: Table[StarvingPhase],
    *,
    least_per_step: float = 1.0,
) -> Advice | None:
    """Every gradient is searched for NaN: autograd's anomaly detection was left on.

    Gain: after each node of the backward pass the engine searches its gradients and reads the answer. The
    host's time in that goes, and so does the device's; both were measured. In forward every operator writes
    down its stack. That is what forward takes for a launch beyond what the nodes of backward take for one,
    for these write none; at the most it is all the waiting for forward, and Python, which recording does not
    stretch. Without the reads the host is ahead of the device as well, at the most by all the device's work.
    """
    checks = anomaly_checks(step_ops)
    reads = mean_step.per_step(sum(row.calls for row in checks if row.name == "aten::item"))
    if reads < least_per_step:
        return None
    host = mean_step.per_step(sum(row.host_ns for row in checks))
    device = min(mean_step.busy_ns, mean_step.per_step(sum(row.device_ns for row in checks)))
    least, most = (mean_step.per_step(ns) for ns in _stacks_ns(step_ops, starving_phases))
    starved = min(mean_step.starved_ns, host + least)
    left = mean_step.unprofiled_starved_ns[1] / mean_step.starved_ns if mean_step.starved_ns else 0.0
    return Advice(
        title="Anomaly detection of autograd is on",
        because=f"{units.count(round(reads))} times a step the backward pass searches a gradient for NaN and "
        f"waits for the answer: {units.duration(host)} of the host ({units.share(mean_step.share(host))} of the "
        f"step) and {units.duration(device)} of the GPU.",
        saving=Saving(
            starved_ns=(starved, starved),
            device_ns=(0.0, device),
            waited_ns=(0.0, max(0.0, most - left * least) + mean_step.busy_ns - device),
        ),
        certainty="certain",
        fix=_FIX,
        check="stepscope show step_ops: no aten::isnan inside autograd::engine::evaluate_function is left.",
        evidence={
            "checks_per_step": reads,
            "checks_host_ns": round(host),
            "checks_device_ns": round(device),
            "stacks_ns": round(least),
            "forward_starved_ns": round(most),
        },
        claims=frozenset({Claim(Time.STARVED, Part.SYNCS)}),
    )


def _stacks_ns(step_ops: Table[StepOp], starving_phases: Table[StarvingPhase]) -> Bounds:
    """What stacks cost all steps: what forward takes beyond the nodes of backward; and at the most."""
    rows = list(step_ops)
    checks = anomaly_checks(rows)
    nodes = [
        row for row in rows if row.launches and (row.within or "").startswith(NODE) and row not in checks
    ]
    launches = sum(row.launches for row in nodes)
    ordinary = sum(row.host_ns for row in nodes) / launches if launches else 0.0
    forward = [row for row in starving_phases if row.phase == "forward"]
    starved = sum(row.starved_ns for row in forward)
    return max(0.0, starved - ordinary * sum(row.launches for row in forward)), starved
