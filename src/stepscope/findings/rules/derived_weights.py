"""Weights are computed from others again in every call, though they do not change."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.step_classes import StepClass
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice, Category, rule
from stepscope.findings._dropped import saved_by_dropping
from stepscope.findings._fewer_calls import host_part
from stepscope.findings._inference import infers
from stepscope.findings._op_costs import cost_of, places_of
from stepscope.findings._phrases import often
from stepscope.findings.claims import Claim, Time
from stepscope.findings.fixes import fix_of
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["derived_weights"]

_DERIVES = "aten::_weight_norm"
_FIX = fix_of(
    'torch.nn.utils.parametrize.remove_parametrizations(layer, "weight")    # once, after loading',
    "model.remove_weight_norm()    # many vocoders have it",
    "torch.nn.utils.remove_weight_norm(layer)    # if it was added by torch.nn.utils.weight_norm",
)


@rule(category=Category.INFERENCE)
def derived_weights(
    mean_step: MeanStep,
    step_ops: Table[StepOp],
    step_classes: Table[StepClass],
    *,
    least_share: float = 0.02,
) -> Advice | None:
    """Inference computes the weights of layers with weight norm in every call, though they never change.

    Gain: all of it, if weight norm is removed after the weights are loaded.

    - at most: 1.5 times the part of the host's time in these operators, because each is called through a
      module of its own; and all of their time on the GPU.
    - at least: 85 % of that part, and all of their time on the GPU.
    """
    if not infers(step_classes):
        return None
    ops = [op for op in step_ops if op.name == _DERIVES and op.within is None]
    saving = saved_by_dropping(ops, step_ops, mean_step)
    if mean_step.gain(saving).high_share < least_share:
        return None
    cost, part = cost_of(ops, mean_step), host_part(ops, step_ops)
    return Advice(
        title="Weights are computed again in every call by weight norm",
        because=f"`{_DERIVES}` computes {often(cost.calls, 'weight')} from their norm and direction: "
        f"{units.share(part)} of the host's time in operators, and {units.duration(cost.device_ns)} of GPU "
        "time. In inference these weights do not change.",
        saving=saving,
        certainty="certain",
        fix=_FIX,
        check="stepscope show step_ops: no aten::_weight_norm.",
        evidence={"calls_per_step": cost.calls, "host_part": part, "device_ns": cost.device_ns},
        claims=frozenset({Claim(Time.STARVED), Claim(Time.DEVICE)}),
        locations=places_of(ops),
    )
