"""Matrix products in TF32 where bf16 would have twice the rate."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.precision import Precision
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice, Category, NotKnown, rule
from stepscope.findings._products import (
    Products,
    claims_of,
    half_type,
    heaviest,
    is_tf32,
    is_worth,
    off_device,
    peak_of,
    products_in,
    saved_ns,
)
from stepscope.findings.facts import DeviceFacts, Facts
from stepscope.findings.fixes import fix_of, sixteen_bits
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["tf32_matmuls"]


@rule(category=Category.PRECISION)
def tf32_matmuls(
    mean_step: MeanStep,
    facts: Facts,
    precision: Table[Precision],
    step_ops: Table[StepOp],
    *,
    least_share: float = 0.05,
    least_gain: float = 0.01,
) -> Advice | None:
    """Matrix products, convolutions or attention run in TF32, where bf16 has a higher rate.

    Gain:

    - at most: the time falls in the ratio of the GPU's peaks for TF32 and bf16, and by another fifth, because
      TF32 kernels stay further below their peak. No kernel gets shorter than 2 µs.
    - at least: by the square root of that ratio: memory-bound kernels read half the bytes, but weights have
      to be cast first. No kernel gets shorter than 6 µs.

    Attention in fp32 counts as well: torch has none in TF32, and 16 bits allow flash or cuDNN kernels.
    """
    found = products_in(precision, ("tf32",), mean_step)
    if not found.ns or not mean_step.busy_ns or found.ns < least_share * mean_step.busy_ns:
        return None
    beside = products_in(
        precision, ("fp32",), mean_step, families=("attention",) if is_tf32(precision) else ()
    )
    device = facts.device(mean_step.device)
    rate, half = peak_of(device, "tf32"), half_type(device)
    if device is None or rate is None or half is None:
        raise NotKnown("the GPU's rate in bf16 is not known: this GPU model is not recognised")
    bounds = zip(
        saved_ns(found, half, device, mean_step), saved_ns(beside, half, device, mean_step), strict=True
    )
    low, high = (sum(ends) for ends in bounds)
    saving = off_device((low, high), mean_step)
    if not saving.device_ns[1] or not is_worth(found, found.ns, saving, mean_step, least_gain):
        return None
    return Advice(
        title=f"{found.subject} in TF32, not in {half}",
        because=_because(found, beside, device, half, mean_step),
        saving=saving,
        certainty="likely",
        fix=fix_of(*sixteen_bits("bf16", "around forward and loss, not backward")),
        check="stepscope show precision: the time is in bf16 and about half as long. Compare the loss, too.",
        evidence={
            "tf32_ns": round(found.ns),
            "fp32_attention_ns": round(beside.ns),
            "tf32_calls_per_step": found.calls,
            "busy_share": found.ns / mean_step.busy_ns,
            "tf32_peak_flops_per_s": rate,
            "half_peak_flops_per_s": peak_of(device, half),
        },
        claims=claims_of(found.families + beside.families),
        locations=heaviest(step_ops, mean_step),
    )


def _because(
    found: Products, attention: Products, device: DeviceFacts, half: str, mean_step: MeanStep
) -> str:
    rates = [units.tally((peak_of(device, name) or 0.0) / 1e12) for name in (half, "tf32")]
    text = (
        f"{units.duration(found.ns)} of a step ({units.share(found.ns / mean_step.busy_ns)} of the GPU's "
        f"work) is {found.words} in TF32 (fp32 numbers, rounded for the matrix units). {device.name} reaches "
        f"{rates[0]} TFLOP/s in {half} and {rates[1]} in TF32."
    )
    if not attention.ns:
        return text
    return f"{text} Attention takes another {units.duration(attention.ns)} in fp32, because it has no TF32."
