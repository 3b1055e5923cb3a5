"""Matrix products in fp32 on a GPU with tensor cores."""

from __future__ import annotations

import re
from collections.abc import Iterable

from stepscope import units
from stepscope.analyses.kernel_families import KernelFamily
from stepscope.analyses.precision import Precision
from stepscope.analyses.product_casts import WEIGHTED
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice, Category, NotKnown, rule
from stepscope.findings._compiling import takes_attention_apart
from stepscope.findings._op_costs import cost_of
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
from stepscope.findings.fixes import Change, Fix, FixLine, fix_of, line, sixteen_bits
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["full_precision_matmuls"]

FULL = ("fp32",)

_MOVING = ("elementwise", "normalisation", "copy")
_PARTS = "head = head.to(model.dtype)    # parts in fp32 beside 16 bits; peft: autocast_adapter_dtype=False"


@rule(category=Category.PRECISION)
def full_precision_matmuls(  # noqa: PLR0913  # one parameter for each table
    mean_step: MeanStep,
    facts: Facts,
    precision: Table[Precision],
    kernel_families: Table[KernelFamily],
    step_ops: Table[StepOp],
    *,
    least_share: float = 0.05,
    least_gain: float = 0.01,
) -> Advice | None:
    """Matrix products, convolutions or attention run in fp32, without tensor cores.

    Gain:

    - at most: each gets faster in the ratio of the GPU's peaks for its data type and for bf16 (fp16 if there
      is no bf16). No kernel gets shorter than 2 µs. If nothing runs in 16 bits yet, elementwise kernels,
      norms and copies take half as long, because they move half the bytes. If others run in 16 bits without
      autocast, conversions go.
    - at least: each gets faster by the square root of that. TF32 gains this much with sizes that come near
      its peak, and bf16 with sizes that do not. No kernel gets shorter than 6 µs.

    Products of attention that torch's compiler took apart are left out: that computes in fp32 by itself.
    Attention in fp32 counts, unless products are in TF32: then the rule about TF32 reports it. What runs in
    fp64 is reported by the rule about float64.
    """
    families = ("matmul", "convolution") if is_tf32(precision) else ("matmul", "convolution", "attention")
    full = products_in(precision, FULL, mean_step, families)
    tf32 = products_in(precision, ("tf32",), mean_step)
    narrow = products_in(precision, NARROW, mean_step)
    # If nothing runs in 16 bits, what is left in fp32 beside TF32 is a setting that was forgotten.
    counted = full.ns if narrow.ns else full.ns + tf32.ns
    counted -= _of_attention_ns(step_ops, mean_step)
    if not full.ns or not mean_step.busy_ns or counted < least_share * mean_step.busy_ns:
        return None
    device = facts.device(mean_step.device)
    half = half_type(device)
    if device is None or half is None:
        raise NotKnown("the bf16 peak of this GPU is not known: its name is not recognised")
    converted_ns = _converted_ns(step_ops, mean_step) if narrow.ns else 0.0
    beside_ns = converted_ns if narrow.ns else _moved_ns(kernel_families, mean_step) / 2
    low, high = saved_ns(full, half, device, mean_step)
    saving = off_device((low, high and high + beside_ns), mean_step)
    if not saving.device_ns[1] or not is_worth(full, counted, saving, mean_step, least_gain):
        return None
    return Advice(
        title=f"{full.subject} in full precision",
        because=_because(full, device, half, mean_step) + _beside(tf32, narrow, converted_ns),
        saving=saving,
        certainty="likely",
        fix=_fix(full, device, half, parts=bool(converted_ns)),
        check="stepscope show precision: the time moves from fp32 to tf32 or 16 bits. Compare the loss, too.",
        evidence={
            "full_precision_ns": round(full.ns),
            "tf32_ns": round(tf32.ns),
            "narrow_ns": round(narrow.ns),
            "converted_ns": round(converted_ns),
            "full_precision_calls_per_step": full.calls,
            "busy_share": full.ns / mean_step.work_ns,
        },
        claims=claims_of(full.families),
        locations=heaviest(step_ops, mean_step),
    )


def _of_attention_ns(step_ops: Table[StepOp], mean_step: MeanStep) -> float:
    """The time of products of attention that the compiler took apart."""
    products = [op for op in step_ops if op.name in ("aten::bmm", "aten::baddbmm")]
    return cost_of(products, mean_step).device_ns if takes_attention_apart(step_ops) else 0.0


def _moved_ns(kernel_families: Iterable[KernelFamily], mean_step: MeanStep) -> float:
    """The time of kernels that move what products compute: the bytes set their pace."""
    return mean_step.per_step(sum(row.exclusive_ns for row in kernel_families if row.family in _MOVING))


def _converted_ns(step_ops: Table[StepOp], mean_step: MeanStep) -> float:
    """The time of conversions that the program asks for; none if it leaves them to autocast."""
    if any(op.name == "aten::to" and re.fullmatch(WEIGHTED, op.within or "") for op in step_ops):
        return 0.0
    return mean_step.per_step(sum(op.device_ns for op in step_ops if op.name == "aten::_to_copy"))


def _because(full: Products, device: DeviceFacts, half: str, mean_step: MeanStep) -> str:
    rate, target = peak_of(device, "fp32"), peak_of(device, half) or 0.0
    faster = f", {units.tally(target / rate)} times its peak in fp32" if rate else ""
    return (
        f"{full.words[0].upper()}{full.words[1:]} in fp32 take {units.duration(full.ns)} of a step "
        f"({units.share(full.ns / mean_step.work_ns)} of the GPU's work). The peak of {device.name} in "
        f"{half} is {units.tally(target / 1e12)} TFLOP/s{faster}."
    )


def _beside(tf32: Products, narrow: Products, converted_ns: float) -> str:
    """What runs in TF32, if nothing runs in 16 bits; what is converted, if something does."""
    if converted_ns:
        return (
            f" Other products run in 16 bits, and conversions between data types take another "
            f"{units.duration(converted_ns)}."
        )
    if not tf32.ns or narrow.ns:
        return ""
    return f" Another {units.duration(tf32.ns)} goes to {tf32.words} in TF32. Nothing runs in 16 bits."


def _fix(full: Products, device: DeviceFacts, half: str, *, parts: bool) -> Fix:
    scaler = ", with torch.amp.GradScaler()" if half == "fp16" else ""
    lines: list[FixLine | str] = [_PARTS] if parts else []
    if peak_of(device, "tf32"):
        lines.append(
            line(
                Change.TF32,
                'torch.set_float32_matmul_precision("high")    # TF32 for matrix products; weights stay fp32',
            )
        )
        if "convolution" in full.families:
            lines.append(
                line(
                    Change.TF32,
                    'torch.backends.cudnn.allow_tf32 = True    # or cudnn.conv.fp32_precision = "tf32"',
                )
            )
    lines += sixteen_bits(half, f"around forward and loss{scaler}")
    return fix_of(*lines)
