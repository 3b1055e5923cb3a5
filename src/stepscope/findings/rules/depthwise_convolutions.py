"""Depthwise convolutions run in torch's own kernels, which cuDNN's outrun."""

from __future__ import annotations

from collections.abc import Iterable

from stepscope import units
from stepscope.analyses.kernel_families import KernelFamily
from stepscope.analyses.kernels import Kernel
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice, Category, Saving, rule
from stepscope.findings._op_costs import part_in_steps, places_of
from stepscope.findings._phrases import often
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.fixes import Change, fix_of, line
from stepscope.findings.mean_step import MeanStep
from stepscope.patterns import late_pattern
from stepscope.tables import Table

__all__ = ["depthwise_convolutions"]

_KERNEL = late_pattern(r".*\bconv_depthwise2d_(forward|backward|grad_weight)_kernel")
_OP = late_pattern(r"aten::_conv_depthwise2d|aten::conv2d")
_HALF = late_pattern(r".*\b(BFloat16|Half)\b")
_SHORT_NS, _LONG_NS = 60_000, 200_000
_SAVED = (0.35, 0.75)
"""Of the time of kernels in 16 bits: at least of long ones, at most of all but short ones. On an H200 cuDNN's
kernels for channels_last saved 0.37 to 0.74 of large tensors (18 sizes, kernels of 3, 5 and 7, forward and
backward together), and hardly anything of images of 7 or 14 pixels."""
_MOST_WIDE = 0.7
"""The same in fp32, at most; with kernels of 7 the backward pass got slower."""
_FIX = fix_of(
    line(
        Change.CHANNELS_LAST,
        "model = model.to(memory_format=torch.channels_last)    # as cuDNN's depthwise kernels want it\n"
        "images = images.to(memory_format=torch.channels_last)",
    )
)


@rule(category=Category.DEVICE)
def depthwise_convolutions(
    mean_step: MeanStep,
    kernels: Table[Kernel],
    kernel_families: Table[KernelFamily],
    step_ops: Table[StepOp],
    *,
    least_share: float = 0.05,
) -> Advice | None:
    """Depthwise convolutions run in kernels of torch's own, because tensors are not channels_last.

    Gain: cuDNN's kernels for `channels_last` take less time, as measured for eighteen sizes on an H200.

    - at most: three quarters of the time of kernels of 60 µs and more in 16 bits; 0.7 of it in fp32.
    - at least: a third of the time of those of 200 µs and more in 16 bits. Nothing in fp32, where some sizes
      get slower.
    """
    found = [row for row in kernels if _KERNEL.match(row.name or "") and row.mean_ns >= _SHORT_NS]
    if not found:
        return None
    inside = part_in_steps(kernels, kernel_families)

    def spent(rows: Iterable[Kernel]) -> float:
        return mean_step.per_step(sum(row.exclusive_ns for row in rows) * inside)

    half = [row for row in found if _HALF.match(row.name or "")]
    time_ns, half_ns = spent(found), spent(half)
    least_ns = _SAVED[0] * spent(row for row in half if row.mean_ns >= _LONG_NS)
    most_ns = _SAVED[1] * half_ns + _MOST_WIDE * (time_ns - half_ns)
    saving = Saving(device_ns=(least_ns, most_ns))
    if mean_step.gain(saving).high_share < least_share:
        return None
    ops = [op for op in step_ops if op.within is None and _OP.fullmatch(op.name or "")]
    calls = mean_step.per_step(sum(row.calls for row in found) * inside)
    return Advice(
        title="Depthwise convolutions are not channels_last",
        because=f"{often(calls, 'kernel')} of depthwise convolutions take {units.duration(time_ns)}, "
        f"{units.share(time_ns / mean_step.work_ns)} of the GPU's work. They are torch's own, which it takes "
        "for tensors that are not channels_last; cuDNN's are two to four times as fast for large tensors.",
        saving=saving,
        certainty="likely" if 2 * half_ns > time_ns else "possible",
        fix=_FIX,
        check="stepscope show kernels: no kernel is named conv_depthwise2d_….",
        evidence={"kernels_per_step": calls, "device_ns": round(time_ns), "half_ns": round(half_ns)},
        claims=frozenset({Claim(Time.DEVICE, Part.CONVOLUTION)}),
        locations=places_of(ops),
    )
