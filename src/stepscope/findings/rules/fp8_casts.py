"""Casts to fp8 that take what the products in fp8 gain."""

from __future__ import annotations

import re

from stepscope import units
from stepscope.analyses.kernels import Kernel
from stepscope.analyses.precision import Precision
from stepscope.findings import Advice, Category, Saving, rule
from stepscope.findings._products import half_type, peak_of, products_in
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.facts import Facts
from stepscope.findings.fixes import Change, fix_of, line
from stepscope.findings.mean_step import MeanStep
from stepscope.patterns import late_pattern
from stepscope.tables import Table

__all__ = ["fp8_casts"]

# Kernels that convert or scale, by the types in their names, and those that look for the largest value. One
# that also normalises, activates or writes a cache is fused with work that is needed anyway.
_CASTS = late_pattern(r"fp8|float8|e4m3|e5m2|amax", re.IGNORECASE)
_FUSED = late_pattern(r"norm|silu|gelu|glu|cache|rope|rotary|softmax|dropout|gemm|all_?reduce", re.IGNORECASE)
_PLAIN = ("elementwise", "copy", "reduction", "other")
_FIX = fix_of(
    line(Change.COMPILE, "model = torch.compile(model)    # fuses scaling, casting and the search"),
    "convert_to_float8_training(model, module_filter_fn=is_large)    # torchao: small layers stay in 16 bits",
    "quantize_(model, Float8DynamicActivationFloat8WeightConfig())    # inference: cast weights once",
)


@rule(category=Category.PRECISION)
def fp8_casts(
    mean_step: MeanStep,
    facts: Facts,
    precision: Table[Precision],
    kernels: Table[Kernel],
    *,
    least_share: float = 0.03,
    least_of_gain: float = 0.5,
) -> Advice | None:
    """Casts to fp8 and searches for the largest value take much of what products in fp8 gain.

    In 16 bits, a product takes at most as much longer as the ratio of the GPU's peaks says, and needs none of
    these kernels.

    Gain:

    - at most: all of the time of these kernels. Fused into others, they read and write nothing of their own.
    - at least: what they take beyond the most that fp8 can gain. So much is saved by going back to 16 bits.
    """
    products = products_in(precision, ("fp8",), mean_step, families=("matmul",))
    device = facts.device(mean_step.device)
    half = half_type(device)
    rate, narrow = peak_of(device, half or ""), peak_of(device, "fp8")
    if not products.ns or not rate or not narrow:
        return None
    casts = [row for row in kernels if row.name and row.family in _PLAIN and _is_cast(row.name)]
    ns = min(sum(row.share or 0.0 for row in casts) * mean_step.work_ns, mean_step.work_ns - products.ns)
    gained = products.ns * (narrow / rate - 1)
    if mean_step.share(ns) < least_share or ns < least_of_gain * gained:
        return None
    return Advice(
        title="Casts to fp8 take much of what fp8 gains",
        because=f"Casts to fp8 and searches for the largest value take {units.duration(ns)} of a step. Its "
        f"products in fp8 take {units.duration(products.ns)}. In {half} they would take at most "
        f"{units.duration(gained)} more, and need no casts.",
        saving=Saving(device_ns=(max(0.0, ns - gained), ns)),
        certainty="likely",
        fix=_FIX,
        check="stepscope show kernels: kernels with float8, fp8 or amax in their names take less time.",
        evidence={
            "casts_ns": round(ns),
            "products_ns": round(products.ns),
            "most_gained_ns": round(gained),
            "longest": max(casts, key=lambda row: row.total_ns).name,
        },
        claims=frozenset({Claim(Time.DEVICE, Part.ELEMENTWISE), Claim(Time.DEVICE, Part.CASTS)}),
    )


def _is_cast(name: str) -> bool:
    return bool(_CASTS.search(name)) and not _FUSED.search(name)
