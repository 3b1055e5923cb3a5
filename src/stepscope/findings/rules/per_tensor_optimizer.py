"""The optimizer launches kernels for every tensor."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.annotations import Annotation
from stepscope.analyses.phases import Phase
from stepscope.analyses.starving_phases import StarvingPhase
from stepscope.analyses.step_classes import StepClass
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice, Category, Saving, rule
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
from stepscope.findings._weight_loops import WeightLoop, loop_saves, weight_loop_of
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["per_tensor_optimizer"]


LEAST_TENSORS = 8
"""With fewer, there is hardly anything to launch."""
LEAST_OF_LISTS = 0.02
"""What a fused kernel has to gain at the least where lists of tensors are updated: these are no fault."""


_MEAN = """\
torch._foreach_lerp_(means, weights, 1 - decay)    # lists of all tensors; a moving mean of the weights
mean = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))    # or that"""
_CLAMP = "torch.nn.utils.clip_grad_value_(parameters, most)    # all gradients at once"
_OWN = "torch._foreach_add_(weights, gradients, alpha=-lr)    # or lists of all tensors in your own update"


@rule(category=Category.HOST)
def per_tensor_optimizer(  # noqa: PLR0913  # each is a table or a threshold
    mean_step: MeanStep,
    starving_phases: Table[StarvingPhase],
    phases: Table[Phase],
    step_ops: Table[StepOp],
    annotations: Table[Annotation],
    step_classes: Table[StepClass],
    *,
    least_share: float = 0.01,
) -> Advice | None:
    """The optimizer launches kernels for every tensor, where one fused kernel could update them all.

    So does a loop of the program's own that goes through the weights: an optimizer written out, or a moving
    mean of the weights.

    Gain: of the time in which the device waits in the optimizer's phase, all but the Python that looks up
    each tensor: with n operators for a tensor n/(n+2) at the least. At the most all of it, with the fills of
    zero_grad. Of the device's time, what its passes over memory exceed the one that a fused kernel makes.
    Where lists of tensors are updated (foreach), the calls but one, and the same of the device's time; if
    such an optimizer takes much of the step, that is another finding (`optimizer-share`). Of a loop of the
    program's own, the calls; at the most with the Python between them.
    """
    update = update_of(step_ops, annotations)
    told = []
    if update and (saving := _of_optimizer(update, mean_step, starving_phases, phases)):
        told.append(_advice(update, saving, mean_step, starving_phases))
    loop = weight_loop_of(step_ops, step_classes)
    if loop and loop.tensors >= LEAST_TENSORS:
        saving = loop_saves(loop, mean_step, starving_phases, step_ops, is_optimizer=update is None)
        told.append(_of_loop(loop, saving, mean_step, is_optimizer=update is None))
    gains = [(mean_step.gain(advice.saving).high_share, advice) for advice in told]
    share, advice = max(gains, key=lambda one: one[0], default=(0.0, None))
    return advice if share >= least_share else None


def _of_optimizer(
    update: Update, mean_step: MeanStep, starving_phases: Table[StarvingPhase], phases: Table[Phase]
) -> Saving | None:
    """What a fused kernel saves, if that is worth a word."""
    if update.kind == "fused":
        return None
    saving = fusing_saves(update, mean_step, starving_phases)
    if update.kind == "foreach":
        large = mean_step.share(optimizer_time(mean_step, phases, starving_phases)) > FINDING_SHARE
        if large or mean_step.gain(saving).low_share < LEAST_OF_LISTS or not can_be_fused(update):
            return None
    elif update.turns < LEAST_TENSORS:
        return None
    return saving


def _of_loop(loop: WeightLoop, saving: Saving, mean_step: MeanStep, *, is_optimizer: bool) -> Advice:
    work = cost_of(loop.ops, mean_step)
    names, calls = ", ".join(loop.names[:4]), units.tally(work.calls)
    where = "by no optimizer of torch's" if is_optimizer else "beside the optimizer"
    return Advice(
        title="Weights are updated one by one in a loop",
        because=f"{calls} operators a step ({names}) go through {units.tally(loop.tensors)} "
        f"tensors one by one, {where} and outside of autograd, as often as there are weights: "
        f"{units.tally(work.launches)} launches, {units.duration(work.device_ns)} of device time, and the "
        f"device waits up to {units.duration(saving.starved_ns[1])} for them.",
        saving=saving,
        certainty="likely",
        fix=_fix_of_loop(loop, is_optimizer=is_optimizer),
        check="stepscope show step_ops: operators in place (mul_, add_, lerp_) became a few of _foreach_.",
        evidence={
            "kind": "loop",
            "tensors_per_step": loop.tensors,
            "operators_per_tensor": loop.calls_per_tensor,
            "loop_launches_per_step": work.launches,
            "loop_starved_ns": work.starved_ns,
            "loop_device_ns": work.device_ns,
        },
        claims=frozenset({Claim(Time.STARVED, Part.OPTIMIZER), Claim(Time.DEVICE, Part.OPTIMIZER)}),
        locations=places_of(loop.ops, "operators"),
    )


def _fix_of_loop(loop: WeightLoop, *, is_optimizer: bool) -> str:
    """What torch has for the whole of it, or operators that take lists of tensors."""
    used = set(loop.names)
    if is_optimizer:
        return f"{fused_line('AdamW' if 'addcdiv_' in used else 'SGD')}\n{_OWN}"
    if "lerp_" in used or {"mul_", "add_"} <= used:
        return _MEAN
    if all(name.startswith("clamp") for name in used):
        return _CLAMP
    changing = [name for name in loop.names if name.endswith("_")]
    return "\n".join(f"torch._foreach_{name}(tensors, ...)    # a list of all tensors" for name in changing)


def _advice(
    update: Update, saving: Saving, mean_step: MeanStep, starving_phases: Table[StarvingPhase]
) -> Advice:
    phase = cost_of_phase(mean_step, starving_phases)
    work = cost_of(update.ops, mean_step)
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
        f"device time, and the device waits {units.duration(mean_step.with_latency(phase.starved_ns))} for them.",
        saving=saving,
        certainty="certain" if each else "likely",
        fix=fix,
        check="stepscope show starving_phases: the optimizer has a handful of launches.",
        evidence={
            "optimizer": update.name,
            "kind": update.kind,
            "turns_per_step": update.turns,
            "operators_per_turn": update.calls_per_turn,
            "optimizer_launches_per_step": phase.launches,
            "optimizer_starved_ns": phase.starved_ns,
            "optimizer_device_ns": phase.device_ns,
            "update_device_ns": work.device_ns,
        },
        claims=frozenset({Claim(Time.STARVED, Part.OPTIMIZER), Claim(Time.DEVICE, Part.OPTIMIZER)}),
        locations=places_of(update.ops, "operators"),
    )
