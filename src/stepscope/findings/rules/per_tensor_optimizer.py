"""The optimizer launches kernels for every tensor."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.annotations import Annotation
from stepscope.analyses.phases import Phase
from stepscope.analyses.starving_phases import StarvingPhase
from stepscope.analyses.step_classes import StepClass
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice, Category, Saving, rule
from stepscope.findings._fewer_calls import fewer_calls
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
from stepscope.findings._phrases import if_idle, often, times
from stepscope.findings._weight_loops import WeightLoop, loop_saves, weight_loop_of
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.fixes import Change, fix_of, line
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["per_tensor_optimizer"]


LEAST_TENSORS = 8
"""With fewer tensors there is hardly anything to launch."""
LEAST_OF_LISTS = 0.02
"""What a fused kernel must gain at least if lists of tensors are updated, which is nearly as good."""


_MEAN = """\
torch._foreach_lerp_(averages, weights, 1 - decay)    # lists of all tensors: a moving average of the weights
average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))    # or this"""
_CLAMP = "torch.nn.utils.clip_grad_value_(parameters, most)    # all gradients at once"
_OWN = "torch._foreach_add_(weights, gradients, alpha=-lr)    # or your own update, with lists of all tensors"


_GROUPS = """\
groups = {}    # one for all tensors with the same settings, not one for each tensor
for name, weight in model.named_parameters(): groups.setdefault(settings(name), []).append(weight)
optimizer = AdamW([{"params": some, "lr": lr, "weight_decay": d} for (lr, d), some in groups.items()])"""
MANY_GROUPS = 50
"""More calls of a fused optimizer than that are no groups that somebody chose."""


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

    So does a loop over the weights in the program: an optimizer written by hand, or a moving average.

    Gain, with n operators for each tensor:

    - at most: all of the GPU's waiting in the optimizer's phase, and the fills of zero_grad.
    - at least: n/(n+2) of that waiting, because the Python that looks up each tensor stays.
    - of GPU time: the passes over memory beyond those of a fused kernel.
    - lists of tensors (foreach): the calls except one, and the same of GPU time. If such an optimizer takes
      much of the step, that is another finding (`optimizer-share`).
    - a loop in the program: the calls at least; also the Python between them at most.
    - a group of parameters for each tensor: half of the host's time in the optimizer at least, nearly all of
      it at most.
    """
    update = update_of(step_ops, annotations)
    told = []
    if update and (saving := _of_optimizer(update, mean_step, starving_phases, phases)):
        told.append(_advice(update, saving, mean_step, starving_phases))
    if update and update.kind != "per tensor" and update.turns >= MANY_GROUPS:
        told.append(_of_groups(update, mean_step, phases))
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
    """What a fused kernel saves, if that is worth a finding."""
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


def _of_groups(update: Update, mean_step: MeanStep, phases: Table[Phase]) -> Advice:
    took = mean_step.per_step(sum(row.stretch_ns for row in phases if row.phase == "optimizer"))
    part = mean_step.share(took) * (1 - 1 / update.turns)
    name = update.name or "The optimizer"
    return Advice(
        title="The optimizer has a group for nearly every tensor",
        because=f"{name} calls `{update.ops[0].name}` {often(update.turns, 'time')}, once for each group of "
        f"parameters. That takes the host {units.duration(took)}, {units.share(mean_step.share(took))} of "
        "the step. All tensors with the same settings can share a group.",
        saving=fewer_calls(mean_step, (0.5 * part, part), (0.0, 0.0)),
        certainty="likely",
        fix=_GROUPS,
        check="stepscope show step_ops: the optimizer's operator is called a few times a step.",
        evidence={
            "optimizer": update.name,
            "kind": "groups",
            "turns_per_step": update.turns,
            "optimizer_host_ns": round(took),
        },
        claims=frozenset({Claim(Time.STARVED, Part.OPTIMIZER)}),
        locations=places_of(update.ops, "operator"),
    )


def _of_loop(loop: WeightLoop, saving: Saving, mean_step: MeanStep, *, is_optimizer: bool) -> Advice:
    work = cost_of(loop.ops, mean_step)
    names = ", ".join(loop.names[:4])
    where = "in place of an optimizer" if is_optimizer else "outside of the optimizer"
    return Advice(
        title="Weights are updated one by one in a loop",
        because=f"A loop {where} calls {names} on {times(loop.tensors, 'tensor')} one by one, as many as "
        f"there are weights: {times(work.calls, 'operator')} and {times(work.launches, 'launch')} a step. "
        f"They take {units.duration(work.device_ns)} of GPU time."
        + if_idle(saving.starved_ns[1], "The GPU waits up to {} for them."),
        saving=saving,
        certainty="likely",
        fix=_fix_of_loop(loop, is_optimizer=is_optimizer),
        check="stepscope show step_ops: a few _foreach_ operators instead of mul_, add_ and lerp_.",
        evidence={
            "kind": "loop",
            "tensors_per_step": loop.tensors,
            "operators_per_tensor": loop.calls_per_tensor,
            "loop_launches_per_step": work.launches,
            "loop_starved_ns": work.starved_ns,
            "loop_device_ns": work.device_ns,
        },
        claims=frozenset({Claim(Time.STARVED, Part.OPTIMIZER), Claim(Time.DEVICE, Part.OPTIMIZER)}),
        locations=places_of(loop.ops, "operator"),
    )


def _fix_of_loop(loop: WeightLoop, *, is_optimizer: bool) -> str:
    """What torch has for the whole loop, or operators that take lists of tensors."""
    used = set(loop.names)
    if is_optimizer:
        return fix_of(fused_line("AdamW" if "addcdiv_" in used else "SGD"), _OWN)
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
    what = (
        f"{name} updates {times(update.turns, 'tensor')} a step one by one, with "
        f"{times(update.calls_per_turn, 'operator')} for each"
        if each
        else f"{name} calls {times(update.calls_per_turn, 'operator')} for each list of tensors, where a "
        "fused optimizer calls one"
    )
    lines = [fused_line(update.name)]
    if update.fills:
        lines.append(
            line(Change.ZERO_GRAD, "optimizer.zero_grad(set_to_none=True)    # the default: no fills")
        )
    return Advice(
        title="The optimizer updates tensors one by one" if each else "The optimizer is not fused",
        because=f"{what}. That makes {often(phase.launches, 'launch')} and takes "
        f"{units.duration(phase.device_ns)} of GPU time."
        + if_idle(mean_step.with_latency(phase.starved_ns), "The GPU waits {} for the launches."),
        saving=saving,
        certainty="certain" if each else "likely",
        fix=fix_of(*lines),
        check="stepscope show starving_phases: a handful of launches in the optimizer.",
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
        locations=places_of(update.ops, "operator"),
    )
