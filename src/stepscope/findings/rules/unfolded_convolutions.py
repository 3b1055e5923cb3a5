"""Convolutions are computed as products of patches that are written out."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice, Category, Saving, rule
from stepscope.findings._op_costs import places_of
from stepscope.findings._phrases import often
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.fixes import fix_of
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["unfolded_convolutions"]

_UNFOLDS = ("aten::im2col", "aten::col2im")
_COPY = "aten::copy_"
_FIX = fix_of(
    "y = F.conv2d(x, weight.view(outputs, inputs, height, width), padding=padding)    # no patches in memory",
    "patches = x.unfold(2, size, step).unfold(3, size, step)    # a view, where patches are wanted",
)


@rule(category=Category.DEVICE)
def unfolded_convolutions(
    mean_step: MeanStep, step_ops: Table[StepOp], *, least_share: float = 0.05
) -> Advice | None:
    """Patches of tensors are written out (F.unfold) for a product that a convolution does without them.

    Gain: a convolution reads its input in place.

    - at least: all time of the GPU in writing patches out and in adding their gradients up.
    - at most: also all copies: products of patches want another order in memory.
    """
    found = [op for op in step_ops if op.name in _UNFOLDS]
    unfold_ns = min(mean_step.busy_ns, mean_step.per_step(sum(op.device_ns for op in found)))
    copies_ns = mean_step.per_step(sum(op.device_ns for op in step_ops if op.name == _COPY))
    saving = Saving(device_ns=(unfold_ns, min(mean_step.busy_ns, unfold_ns + copies_ns)))
    if mean_step.gain(saving).low_share < least_share:
        return None
    calls = mean_step.per_step(sum(op.calls for op in found if op.name == _UNFOLDS[0]))
    return Advice(
        title="Convolutions are computed by F.unfold and a product",
        because=f"{often(calls, 'call')} of F.unfold write each patch of a tensor out, and backward adds the "
        f"gradients of the patches up: {units.duration(unfold_ns)} of the GPU's time, "
        f"{units.share(unfold_ns / mean_step.work_ns)} of its work. All copies of a step "
        f"take {units.duration(copies_ns)}: products of patches want another order in memory.",
        saving=saving,
        certainty="likely",
        fix=_FIX,
        check="stepscope show step_ops: no aten::im2col.",
        evidence={"calls_per_step": calls, "unfold_ns": round(unfold_ns), "copies_ns": round(copies_ns)},
        claims=frozenset({Claim(Time.DEVICE, Part.CONVOLUTION), Claim(Time.DEVICE, Part.ELEMENTWISE)}),
        locations=places_of([op for op in found if op.name == _UNFOLDS[0]]),
    )
