"""A model runs in training mode though nothing is trained."""

from __future__ import annotations

import re

from stepscope import units
from stepscope.analyses.op_kernels import OpKernel
from stepscope.analyses.step_classes import StepClass
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice, Category, locations_of, rule
from stepscope.findings._fewer_calls import fewer_calls, host_part
from stepscope.findings._inference import infers
from stepscope.findings._phrases import often
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.fixes import fix_of
from stepscope.findings.mean_step import MeanStep
from stepscope.patterns import late_pattern
from stepscope.tables import Table

__all__ = ["training_mode_in_inference"]

_DROPS = ("aten::native_dropout", "aten::_fused_dropout", "aten::bernoulli_")
_DROPOUT = late_pattern(r"aten::(feature_|alpha_)?dropout_?")
_NORMS = late_pattern(r"aten::(native|cudnn|miopen)_batch_norm")
_STATISTICS = late_pattern(r"batch_norm_collect_statistics|bn_fw_tr|BatchNormFwdTrain", re.IGNORECASE)
_LESS, _MORE = 0.3, 0.6
"""What a normalisation with known statistics saves: it reads its input once, not twice."""
_FIX = fix_of("model.eval()    # once, before inference; model.train() before the next epoch")


@rule(category=Category.INFERENCE)
def training_mode_in_inference(
    mean_step: MeanStep,
    step_classes: Table[StepClass],
    step_ops: Table[StepOp],
    op_kernels: Table[OpKernel],
    *,
    least_share: float = 0.02,
) -> Advice | None:
    """The model is in training mode in inference: values are dropped, and statistics of batches are taken.

    Its results are not what was trained for, either.

    Gain:

    - at least: dropout goes, on the host and on the GPU, and three tenths of batch normalisations.
    - at most: six tenths of these.
    """
    ops = list(step_ops)
    if not infers(step_classes):
        return None
    drops = [op for op in ops if op.name in _DROPS and _DROPOUT.fullmatch(op.within or "")]
    has_statistics = any(_STATISTICS.search(row.kernel or "") for row in op_kernels)
    norms = [op for op in ops if has_statistics and _NORMS.fullmatch(op.name or "")]
    dropped_ns = mean_step.per_step(sum(op.device_ns for op in drops))
    norm_ns = mean_step.per_step(sum(op.device_ns for op in norms))
    part = host_part((op for op in ops if drops and _DROPOUT.fullmatch(op.name or "")), ops)
    saving = fewer_calls(
        mean_step, (part, part), (dropped_ns + _LESS * norm_ns, dropped_ns + _MORE * norm_ns)
    )
    if not (drops or norms) or mean_step.gain(saving).high_share < least_share:
        return None
    told = []
    if drops:
        number = often(sum(op.per_step for op in drops), "time")
        told.append(f"Dropout runs {number}, {units.duration(dropped_ns)} of GPU time.")
    if norms:
        number = often(sum(op.per_step for op in norms), "time")
        told.append(f"Batch normalisation takes statistics {number}, {units.duration(norm_ns)} of GPU time.")
    return Advice(
        title="The model is in training mode in inference",
        because=" ".join(told) + " Nothing is trained in these steps, and results vary with the batch.",
        saving=saving,
        certainty="likely",
        fix=_FIX,
        check="stepscope show step_ops: no aten::native_dropout.",
        evidence={"dropout_ns": round(dropped_ns), "norm_ns": round(norm_ns)},
        claims=frozenset(
            {
                Claim(Time.DEVICE, Part.ELEMENTWISE),
                Claim(Time.DEVICE, Part.NORMALISATION),
                Claim(Time.STARVED),
            }
        ),
        locations=locations_of(
            (op.user_frame, f"{op.name}, {often(op.per_step, 'call')}", (op.name,))
            for op in sorted((*drops, *norms), key=lambda op: -op.device_ns)
        ),
    )
