"""Tensors are copied only to change their layout."""

from __future__ import annotations

import re

from stepscope import units
from stepscope.analyses.kernel_families import KernelFamily
from stepscope.analyses.kernels import Kernel
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice, Category, Saving, rule
from stepscope.findings._op_costs import cost_of, part_in_steps, places_of
from stepscope.findings._phrases import often
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.fixes import Change, fix_of, line
from stepscope.findings.mean_step import MeanStep
from stepscope.patterns import late_pattern
from stepscope.records import dataclass
from stepscope.tables import Table

__all__ = ["layout_conversions"]

# cuDNN's kernels (`nchwToNhwcKernel`, with several prefixes), and MIOpen's (`batched_transpose_…`).
_TURNING = late_pattern(r"nchw_?to_?nhwc|nhwc_?to_?nchw|^batched_transpose", re.IGNORECASE)
# torch's own kernels for channels first; those for channels last say so in their names.
_NORM = late_pattern(r"native::batch_norm_(?!.*channels_last)")
_CONVOLUTION = late_pattern(r"aten::(conv\d?d?|convolution|conv_transpose\dd)")
_BACKWARD = "aten::convolution_backward"
# What a program calls to have a tensor in another order.
_REORDERING = late_pattern(r"aten::(contiguous|reshape|flatten)")
_CHANNELS_LAST = """\
model = model.to(memory_format=torch.channels_last)
images = images.to(device, memory_format=torch.channels_last)"""
_AS_PICTURES = """\
layer = torch.nn.Conv2d(inputs, outputs, (1, size))    # instead of Conv1d, which has no channels last
signal = signal.unsqueeze(2).to(device, memory_format=torch.channels_last)"""
LEAST_GAIN = 0.01
LEAST_COPIES = 0.05
"""Copies of contiguous() are often needed: fewer are not worth a finding."""


@dataclass(frozen=True, slots=True)
class _Turned:
    """Kernels that convert layouts in a mean step, and batch norms that are slow in the same layout."""

    calls: float
    time_ns: float
    norms_ns: float


@rule(category=Category.DEVICE)
def layout_conversions(
    mean_step: MeanStep,
    kernels: Table[Kernel],
    kernel_families: Table[KernelFamily],
    step_ops: Table[StepOp],
    *,
    least_share: float = 0.02,
) -> Advice | None:
    """Kernels only change the layout of tensors, around convolutions or for contiguous().

    Gain:

    - at most: all conversions around convolutions, and 2/3 of torch's own batch norm kernels. With channels
      first these run one block per channel, which does not fill the GPU; with channels last they took a third
      of the time.
    - at least: 3/4 of the conversions, because input and output of the network may still be converted, and
      1/4 of the batch norms. Nothing for one-dimensional convolutions, which have to be rewritten first.
      Nothing if there are fewer conversions than convolutions: a convolution in the wrong layout converts
      its input and its output, so most have the right layout already (a single channel is padded in any
      layout).
    - copies of contiguous() and reshape(): all of them at most; nothing at least, because what follows may
      need them.
    """
    turning = [row for row in kernels if _TURNING.search(row.name or "")]
    inside = part_in_steps(kernels, kernel_families)
    turned_ns = min(mean_step.busy_ns, mean_step.per_step(sum(row.exclusive_ns for row in turning) * inside))
    if turned_ns >= least_share * mean_step.busy_ns > 0:
        calls = mean_step.per_step(sum(row.calls for row in turning) * inside)
        norms_ns = mean_step.per_step(
            sum(row.exclusive_ns for row in kernels if _NORM.search(row.name or ""))
        )
        return _around_convolutions(mean_step, step_ops, _Turned(calls, turned_ns, norms_ns * inside))
    return _copies(mean_step, step_ops)


def _around_convolutions(mean_step: MeanStep, step_ops: Table[StepOp], found: _Turned) -> Advice | None:
    calls, turned_ns = found.calls, found.time_ns
    convolutions = [op for op in step_ops if op.within is None and _CONVOLUTION.fullmatch(op.name or "")]
    runs = sum(op.calls for op in convolutions)
    runs += sum(op.calls for op in step_ops if op.name == _BACKWARD)
    few = bool(runs) and calls * mean_step.steps < runs
    lines = {op.name for op in convolutions} == {"aten::conv1d"}
    least = 0.0 if lines or few else 0.75 * turned_ns + 0.25 * found.norms_ns
    saving = Saving(device_ns=(least, min(mean_step.busy_ns, turned_ns + 2 / 3 * found.norms_ns)))
    if mean_step.gain(saving).high_share < LEAST_GAIN:
        return None
    return Advice(
        title="Convolutions convert their tensors to another layout",
        because=f"{often(calls, 'kernel')} only convert tensors between channels first and channels "
        f"last. They take {units.duration(turned_ns)}, {units.share(turned_ns / mean_step.work_ns)} of the "
        "GPU's work.",
        saving=saving,
        certainty="possible" if lines or few else "likely",
        fix=_AS_PICTURES if lines else fix_of(line(Change.CHANNELS_LAST, _CHANNELS_LAST)),
        check="stepscope show kernels: no nchwToNhwc and nhwcToNchw.",
        evidence={
            "conversions_per_step": calls,
            "conversions_ns": turned_ns,
            "conversions_share": turned_ns / mean_step.work_ns,
        },
        claims=frozenset({Claim(Time.DEVICE, Part.LAYOUTS)}),
        locations=places_of(convolutions, "convolution"),
    )


def _copies(mean_step: MeanStep, step_ops: Table[StepOp]) -> Advice | None:
    ops = [
        op for op in step_ops if op.within is None and _REORDERING.fullmatch(op.name or "") and op.launches
    ]
    cost = cost_of(ops, mean_step)
    copied_ns = min(mean_step.busy_ns, cost.device_ns)
    saving = Saving(device_ns=(0.0, copied_ns))
    if copied_ns < LEAST_COPIES * mean_step.busy_ns or mean_step.gain(saving).high_share < LEAST_GAIN:
        return None
    return Advice(
        title="Tensors are copied only to change their layout",
        because=f"contiguous() and reshape() make {often(cost.launches, 'copy')}. That takes "
        f"{units.duration(copied_ns)}, {units.share(copied_ns / mean_step.work_ns)} of the GPU's work.",
        saving=saving,
        certainty="possible",
        fix="y = x.transpose(1, 2)    # no .contiguous(): attention and matrix products take any order\n"
        "y = x.view(rows, length, heads, size)    # split dimensions before the transpose: no copy",
        check="stepscope show step_ops: contiguous and reshape launch no kernels.",
        evidence={
            "copies_per_step": cost.launches,
            "copies_ns": copied_ns,
            "copies_share": copied_ns / mean_step.work_ns,
        },
        claims=frozenset({Claim(Time.DEVICE, Part.LAYOUTS)}),
        locations=places_of(ops, "copy"),
    )
