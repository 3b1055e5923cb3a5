"""Tensors that became float64 on the way."""

from __future__ import annotations

import re

from stepscope import units
from stepscope.analyses.kernels import Kernel
from stepscope.findings import Advice, Category, Saving, rule
from stepscope.findings._phrases import times
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["dtype_conversions"]

# The data type of a kernel of torch is in the arguments of its functors and lambdas: …Functor<double>,
# ReduceOp<double, …>, {lambda(double)#1}, layer_norm_kernel<double, …>. A bare `double` is mostly a
# scalar argument: a learning rate, the bounds of a clamp.
_DOUBLE = re.compile(r"lambda\(double|(?:Functor\w*|Ops?|_t|[kK]ernel\w*)<double\b")
_OTHERS = ("matmul", "attention", "convolution", "optimizer", "communication")
"""Families whose data type other rules look at, or whose arguments say nothing."""
_LONG_NS = 10_000
_MOST_OF_IT = 0.5

_FIX = """\
x = torch.as_tensor(array, dtype=torch.float32)           # numpy arrays are float64 by default
scale = torch.tensor(0.5, dtype=x.dtype, device=x.device)
loss_sum = loss_sum + loss.detach().float()               # not .double() in every step"""


@rule(category=Category.PRECISION)
def dtype_conversions(
    mean_step: MeanStep, kernels: Table[Kernel], *, least_share: float = 0.02
) -> Advice | None:
    """Tensors are converted to float64, and the kernels that follow compute in it.

    Conversions as such are not reported: a trace does not tell a needless one from one that autocast makes.
    float64 is nearly always an accident of numpy's default, and it is in the names of kernels.

    Gain:

    - at most: all of the time of these kernels. Conversions go, and most GPUs are many times slower in
      float64.
    - at least: half of the time of kernels of 10 µs or more, because they move half the bytes in float32.
      Shorter ones take their time in any data type.
    - at least nothing: if most of the kernel time is float64. Then it is probably on purpose.
    """
    found = [row for row in kernels if row.name and row.family not in _OTHERS and _DOUBLE.search(row.name)]
    share = sum(row.share or 0.0 for row in found)
    device = share * mean_step.busy_ns
    if not found or mean_step.share(device) < least_share:
        return None
    long = sum(row.share or 0.0 for row in found if row.mean_ns >= _LONG_NS) * mean_step.busy_ns
    meant = share > _MOST_OF_IT
    return Advice(
        title="Some kernels compute in float64",
        because=f"float64 kernels take {units.duration(device)} of a step ({units.share(share)} of the "
        f"kernel time): {_kernels(len(found))} called "
        f"{times(max(found, key=lambda row: row.total_ns).calls, 'time')} in the whole trace.",
        saving=Saving(device_ns=(0.0 if meant else long / 2, device)),
        certainty="possible" if meant else "likely",
        fix=_FIX,
        check="stepscope show kernels: no elementwise kernel with double in its name.",
        evidence={
            "float64_ns": round(device),
            "float64_share": share,
            "kernels": len(found),
            "longest": max(found, key=lambda row: row.total_ns).name,
        },
        claims=frozenset({Claim(Time.DEVICE, Part.ELEMENTWISE)}),
    )


def _kernels(count: int) -> str:
    """How many there are, for a sentence that goes on with how often one is called."""
    if count == 1:
        return "one kernel, which is"
    return f"{units.count(count)} different kernels, the most expensive of which is"
