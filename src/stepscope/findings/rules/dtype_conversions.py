"""Tensors became float64 on their way."""

from __future__ import annotations

import re

from stepscope import units
from stepscope.analyses.kernels import Kernel
from stepscope.findings import Advice, Category, Saving, rule
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["dtype_conversions"]

# What torch's kernels compute with stands in the arguments of their functors and lambdas: …Functor<double>,
# ReduceOp<double, …>, {lambda(double)#1}, layer_norm_kernel<double, …>. A bare `double` is mostly a scalar of
# the call: a learning rate, the bounds of a clamp.
_DOUBLE = re.compile(r"lambda\(double|(?:Functor\w*|Ops?|_t|[kK]ernel\w*)<double\b")
_OTHERS = ("matmul", "attention", "convolution", "optimizer", "communication")
"""Families of which other rules judge the data type, or whose arguments say nothing."""
_LONG_NS = 10_000
_MOST_OF_IT = 0.5

_FIX = """\
x = torch.as_tensor(array, dtype=torch.float32)           # numpy makes float64 unless told otherwise
scale = torch.tensor(0.5, dtype=x.dtype, device=x.device)
loss_sum = loss_sum + loss.detach().float()               # not .double() in every step"""


@rule(category=Category.PRECISION)
def dtype_conversions(
    mean_step: MeanStep, kernels: Table[Kernel], *, least_share: float = 0.02
) -> Advice | None:
    """Tensors are turned into float64, and what follows computes with it.

    Conversions as such are not judged: a trace does not tell a needless one from those that autocast makes.
    float64 is nearly always an accident of numpy's default, and stands in the names of kernels.

    Gain: kernels that are not matrix products move memory, and float32 is half the bytes: at the least half
    of the time of those that last 10 µs or more goes, if the others only cost their launch. At the most all
    of it, for conversions vanish, and most devices compute many times slower in float64. If most of the work
    is float64, it is meant to be, and nothing is promised at the least.
    """
    found = [row for row in kernels if row.name and row.family not in _OTHERS and _DOUBLE.search(row.name)]
    share = sum(row.share or 0.0 for row in found)
    device = share * mean_step.busy_ns
    if not found or mean_step.share(device) < least_share:
        return None
    long = sum(row.share or 0.0 for row in found if row.mean_ns >= _LONG_NS) * mean_step.busy_ns
    meant = share > _MOST_OF_IT
    return Advice(
        title="Part of the work is done in float64",
        because=f"{units.count(len(found))} kernels compute with float64, for {units.duration(device)} of a "
        f"step ({units.share(share)} of the kernels' time); the longest is called "
        f"{units.count(max(found, key=lambda row: row.total_ns).calls)} times.",
        saving=Saving(device_ns=(0.0 if meant else long / 2, device)),
        certainty="possible" if meant else "likely",
        fix=_FIX,
        check="stepscope show kernels: no names with double are left.",
        evidence={
            "float64_ns": round(device),
            "float64_share": share,
            "kernels": len(found),
            "longest": max(found, key=lambda row: row.total_ns).name,
        },
        claims=frozenset({Claim(Time.DEVICE, Part.ELEMENTWISE)}),
    )
