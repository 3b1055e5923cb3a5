"""Products in fp32 or fp64 on a device that has matrix units for less."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.precision import Precision
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice, Category, NotKnown, rule
from stepscope.findings._products import (
    NARROW,
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
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["full_precision_matmuls"]

FULL = ("fp32", "fp64")


@rule(category=Category.PRECISION)
def full_precision_matmuls(
    mean_step: MeanStep,
    facts: Facts,
    precision: Table[Precision],
    step_ops: Table[StepOp],
    *,
    least_share: float = 0.05,
    least_gain: float = 0.01,
) -> Advice | None:
    """Matrix products, convolutions or attention run in fp32 or fp64, past the matrix units.

    Gain: their time, if each gets faster as the device's peaks for its data type and for bf16 (fp16 where
    there is none) say, is the most. At the least they get faster by the root of that: it is what TF32 gains
    with sizes that come near its peak, and bf16 with those that do not. No kernel gets shorter than 2 µs, or
    6 µs for the low bound. Attention in fp32 counts, unless products are in TF32: see the rule about that.
    """
    families = ("matmul", "convolution") if is_tf32(precision) else ("matmul", "convolution", "attention")
    full = products_in(precision, FULL, mean_step, families)
    tf32 = products_in(precision, ("tf32",), mean_step)
    narrow = products_in(precision, NARROW, mean_step)
    # Where nothing at all runs in 16 bits, what is left in fp32 beside TF32 is a setting that was forgotten.
    counted = full.ns if narrow.ns else full.ns + tf32.ns
    if not full.ns or not mean_step.busy_ns or counted < least_share * mean_step.busy_ns:
        return None
    device = facts.device(mean_step.device)
    half = half_type(device)
    if device is None or half is None:
        raise NotKnown("what the device would do in bf16 is not known: its product is not recognised")
    saving = off_device(saved_ns(full, half, device, mean_step), mean_step)
    if not saving.device_ns[1] or not is_worth(full, counted, saving, mean_step, least_gain):
        return None
    return Advice(
        title=f"{full.subject} in full precision",
        because=_because(full, device, half, mean_step) + _beside(tf32, narrow),
        saving=saving,
        certainty="possible" if _mostly_fp64(full) else "likely",
        fix=_fix(full, device, half),
        check="stepscope show precision: the time moves from fp32 to tf32 or 16 bits; watch the loss, too.",
        evidence={
            "full_precision_ns": round(full.ns),
            "tf32_ns": round(tf32.ns),
            "narrow_ns": round(narrow.ns),
            "full_precision_calls_per_step": full.calls,
            "busy_share": full.ns / mean_step.busy_ns,
        },
        claims=claims_of(full.families),
        locations=heaviest(step_ops, mean_step),
    )


def _mostly_fp64(full: Products) -> bool:
    return 2 * sum(row.total_ns for row in full.rows if row.precision == "fp64") > sum(
        row.total_ns for row in full.rows
    )


def _because(full: Products, device: DeviceFacts, half: str, mean_step: MeanStep) -> str:
    worst = max(full.rows, key=lambda row: row.total_ns).precision
    rate, target = peak_of(device, worst), peak_of(device, half) or 0.0
    faster = f", {units.tally(target / rate)} times its rate in {worst}" if rate else ""
    return (
        f"{units.duration(full.ns)} of a step ({units.share(full.ns / mean_step.busy_ns)} of the device's work) "
        f"is {full.words} in {worst}. {device.name} does {units.tally(target / 1e12)} TFLOP/s in "
        f"{half}{faster}."
    )


def _beside(tf32: Products, narrow: Products) -> str:
    """What runs in TF32, where that is all that is not in full precision."""
    if not tf32.ns or narrow.ns:
        return ""
    return f" Another {units.duration(tf32.ns)} is {tf32.words} in TF32, and nothing runs in 16 bits."


def _fix(full: Products, device: DeviceFacts, half: str) -> str:
    scaler = ", with torch.amp.GradScaler()" if half == "fp16" else ""
    dtype = {"bf16": "bfloat16", "fp16": "float16"}[half]
    lines = []
    if peak_of(device, "tf32") and any(row.precision == "fp32" for row in full.rows):
        lines.append(
            'torch.set_float32_matmul_precision("high")    # TF32 for products; one line, weights stay'
        )
        if "convolution" in full.families:
            lines.append("torch.backends.cudnn.allow_tf32 = True")
    lines.append(f'with torch.autocast("cuda", dtype=torch.{dtype}):    # around forward and loss{scaler}')
    if any(row.precision == "fp64" for row in full.rows):
        lines.append("model.float(); batch = batch.float()    # if float64 came in by NumPy, not on purpose")
    return "\n".join(lines)
