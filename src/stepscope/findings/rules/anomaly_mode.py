"""Autograd's anomaly detection was left on."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.starving_phases import StarvingPhase
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice, Bounds, Category, Saving, rule
from stepscope.findings._phrases import often
from stepscope.findings._waits import NODE, anomaly_checks
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.fixes import Change, fix_of, line
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["anomaly_mode"]

_FIX = """\
torch.autograd.set_detect_anomaly(False)    # or remove `with torch.autograd.detect_anomaly():`
torch.autograd.set_detect_anomaly(True, check_nan=False)    # keeps the stacks, does not check gradients"""


@rule(category=Category.SYNC)
def anomaly_mode(
    mean_step: MeanStep,
    step_ops: Table[StepOp],
    starving_phases: Table[StarvingPhase],
    *,
    least_per_step: float = 1.0,
) -> Advice | None:
    """Every gradient is checked for NaN, because autograd's anomaly detection was left on.

    Gain:

    - at least: the host time of the checks, which follow every node of backward; and the time in which
      forward records a Python stack for every operator. That is what forward takes per launch beyond a node
      of backward, which records none.
    - at most: also the GPU time of the checks, and all waiting for forward, as if recording had not
      stretched it. Without the checks the host also gets ahead of the GPU, at most by all of the GPU's work.
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
        title="Autograd's anomaly detection is on",
        because=f"Backward checks gradients for NaN and waits for each answer: {often(reads, 'check')}. That "
        f"takes {units.duration(host)} of host time ({units.share(mean_step.share(host))} of the step)"
        + (f" and {units.duration(device)} of GPU time." if device else "."),
        saving=Saving(
            starved_ns=(starved, starved),
            device_ns=(0.0, device),
            waited_ns=(0.0, max(0.0, most - left * least) + mean_step.busy_ns - device),
        ),
        certainty="certain",
        fix=fix_of(line(Change.ANOMALY, _FIX)),
        check="stepscope show step_ops: no aten::isnan inside autograd::engine::evaluate_function.",
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
    """What the stacks cost in all steps: at least what forward takes beyond backward, at most all of it."""
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
