"""The optimizer launches kernels for every tensor."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.annotations import Annotation
from stepscope.analyses.late_phases import LatePhase
from stepscope.analyses.phases import Phase
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice, Saving, rule
from stepscope.findings._op_costs import cost_of, places_of
from stepscope.findings._optimizers import (
    FINDING_SHARE,
    Update,
    can_be_fused,
    cost_of_phase,
    fused_line,
    fusing_saves,
    optimizer_time,
    update_of,
)
from stepscope.findings.pace import Pace
from stepscope.tables import Table

__all__ = ["per_tensor_optimizer"]


LEAST_TENSORS = 8
"""With fewer, there is hardly anything to launch."""
LEAST_OF_LISTS = 0.02
"""What a fused kernel has to gain at the least where lists of tensors are updated: these are no fault."""


@rule
def per_tensor_optimizer(
    pace: Pace,
    late_phases: Table[LatePhase],
    phases: Table[Phase],
    step_ops: Table[StepOp],
    annotations: Table[Annotation],
    *,
    least_share: float = 0.01,
) -> Advice | None:
    """The optimizer launches kernels for every tensor, where one fused kernel could update them all.

    Gain: of the time in which the device waits in the optimizer's phase, all but the Python that looks up
    each tensor: with n operators for a tensor n/(n+2) at the least. At the most all of it, with the fills of
    zero_grad. Of the device's time, what its passes over memory exceed the one that a fused kernel makes.
    Where lists of tensors are updated (foreach), the calls but one, and the same of the device's time; if
    such an optimizer takes much of the step, that is another finding (`optimizer-share`).
    """
    update = update_of(step_ops, annotations)
    if update is None or update.kind == "fused":
        return None
    saving = fusing_saves(update, pace, late_phases)
    gain = pace.gain(saving)
    if gain.high_share < least_share:
        return None
    if update.kind == "foreach":
        large = pace.share(optimizer_time(pace, phases, late_phases)) > FINDING_SHARE
        if large or gain.low_share < LEAST_OF_LISTS or not can_be_fused(update):
            return None
    elif update.turns < LEAST_TENSORS:
        return None
    return _advice(update, saving, pace, late_phases)


def _advice(update: Update, saving: Saving, pace: Pace, late_phases: Table[LatePhase]) -> Advice:
    phase = cost_of_phase(pace, late_phases)
    work = cost_of(update.ops, pace)
    each = update.kind == "per tensor"
    name = update.name or "The optimizer"
    operators = units.tally(update.calls_per_turn)
    what = (
        f"{name} updates {units.tally(update.turns)} tensors a step one by one, {operators} operators each"
        if each
        else f"{name} goes through all tensors {operators} times an update, an operator for each list"
    )
    fix = fused_line(update.name)
    if update.fills:
        fix += "\noptimizer.zero_grad(set_to_none=True)    # the default: no fills"
    return Advice(
        title="The optimizer updates tensors one by one" if each else "The optimizer is not fused",
        because=f"{what}: {units.tally(phase.launches)} launches, {units.duration(phase.device_ns)} of "
        f"device time, and the device waits {units.duration(pace.with_latency(phase.late_ns))} for them.",
        saving=saving,
        certainty="certain" if each else "likely",
        fix=fix,
        check="stepscope show late_phases: the optimizer has a handful of launches.",
        evidence={
            "optimizer": update.name,
            "kind": update.kind,
            "turns_per_step": update.turns,
            "operators_per_turn": update.calls_per_turn,
            "optimizer_launches_per_step": phase.launches,
            "optimizer_late_ns": phase.late_ns,
            "optimizer_device_ns": phase.device_ns,
            "update_device_ns": work.device_ns,
        },
        claims=frozenset({"late:optimizer", "device:optimizer"}),
        locations=places_of(update.ops, "operators"),
    )
