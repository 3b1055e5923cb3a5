"""Products whose sizes keep them from the fast kernels."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from stepscope import units
from stepscope.analyses.breakdowns import Breakdown
from stepscope.analyses.kernels import Kernel
from stepscope.analyses.precision import Precision
from stepscope.analyses.rooflines import Roofline
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice, Category, rule
from stepscope.findings._kernels import Ran, ran_in_steps
from stepscope.findings._products import heaviest, off_device
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["misaligned_matmuls"]

# How many numbers a kernel for matrix units loads at once, as cuBLAS writes it into the names of those it has
# from CUTLASS; kernels beside the matrix units (simt) read single numbers anyway.
_ALIGNED_TO = re.compile(r"tensorop_\w*?align(\d+)")
_SIXTEEN_BITS = re.compile(r"tensorop_(?:bf16|f16|h\d)|gemm_(?:\w+?_)?(?:bf16|f16)_")
_AT_ONCE_BYTES = 16
"""What a thread can load at once, if rows begin at multiples of it."""
_COPIED_AHEAD = 4
"""Up to so many times more loads than needed, 4 bytes each, can be made ahead, in the background."""
_WIDTHS = {"bf16": 8, "fp16": 8, "tf32": 4}
_LEAST_SIZE = 16
"""Odd sizes below are heads and counts that no padding makes fast."""


@rule(category=Category.DEVICE)
def misaligned_matmuls(  # noqa: PLR0913  # a rule's parameters are what it looks at
    mean_step: MeanStep,
    breakdowns: Table[Breakdown],
    kernels: Table[Kernel],
    precision: Table[Precision],
    rooflines: Table[Roofline],
    step_ops: Table[StepOp],
    *,
    least_share: float = 0.03,
) -> Advice | None:
    """Matrix products have odd sizes, so that their kernels load a number or two at a time.

    Gain: a kernel that may load 16 bytes at once needs fewer loads than one that loads 2, 4 or 8. At the most
    it is as many times faster, at the least by the root of that: 2.8 to 8 times for single bf16 numbers. On
    an H200, 3.7 times the rate was seen for products of 1000, and 6.3 times in a language model. Loads of 4
    bytes or more can be made ahead, and cost less: between the fourth root and the cube of that, 1.4 to 2.8
    times for single TF32 numbers; about 1.7 was seen on an A100, and 2 on an H200.
    """
    odd_ns, low, high = _odd(ran_in_steps(kernels, breakdowns, mean_step))
    products_ns = mean_step.per_step(sum(row.total_ns for row in precision if row.family == "matmul"))
    known = [row for row in precision if row.misaligned_ns is not None]
    if known and odd_ns:
        # cuBLAS may take such a kernel for even sizes, too: then it is the fastest there is.
        sized = min(1.0, mean_step.per_step(sum(row.misaligned_ns or 0 for row in known)) / odd_ns)
        odd_ns, low, high = sized * odd_ns, sized * low, sized * high
    if not odd_ns or mean_step.share(high) < least_share:
        return None
    sizes = _sizes(rooflines)
    largest = f" The largest: {', '.join(sizes)}." if sizes else ""
    return Advice(
        title="Matrix products have sizes that slow them down",
        because=f"Products with sizes that are no multiple of 8 (4 in TF32) take {units.duration(odd_ns)} of "
        f"a step, {units.share(odd_ns / mean_step.busy_ns)} of the device's work: their rows do not begin at "
        f"multiples of 16 bytes, so their kernels load a number or two at a time.{largest}",
        saving=off_device((low, high), mean_step),
        certainty="likely" if known or 2 * low > odd_ns else "possible",
        fix="vocabulary = -(-vocabulary // 64) * 64    # embedding and head; the extra words are never used\n"
        "hidden = -(-hidden // 64) * 64    # or 128; also sizes of heads and of concatenated features\n"
        "batch = functional.pad(batch, (0, -batch.shape[-1] % 8))    # inputs with an odd number of features",
        check="stepscope show kernels: no kernel of a product has align1 or align2 in its name.",
        evidence={
            "misaligned_ns": round(odd_ns),
            "misaligned_step_share": mean_step.share(odd_ns),
            "sizes": "; ".join(sizes) or None,
        },
        claims=frozenset({Claim(Time.DEVICE, Part.MATMUL)}),
        locations=heaviest(step_ops, mean_step) if 2 * odd_ns > products_ns else (),
    )


def _odd(ran: Iterable[Ran]) -> tuple[float, float, float]:
    """Time of kernels that load less than they could, and what it would save to load all of it."""
    odd_ns, low, high = 0.0, 0.0, 0.0
    for one in ran:
        fewer = _fewer_loads(one.name)
        if fewer > 1 and one.kernel.family == "matmul":
            odd_ns += one.ns
            least, most = (fewer**0.5, fewer) if fewer > _COPIED_AHEAD else (fewer**0.25, fewer**0.75)
            low += one.ns * (1 - 1 / least)
            high += one.ns * (1 - 1 / most)
    return odd_ns, low, high


def _fewer_loads(kernel: str) -> float:
    """How many times fewer loads it would need with even sizes; 1 where they are, or nobody knows."""
    found = _ALIGNED_TO.search(kernel)
    if not found:
        return 1.0
    number_bytes = 2 if _SIXTEEN_BITS.search(kernel) else 4
    return max(1.0, _AT_ONCE_BYTES / (int(found[1]) * number_bytes))


def _sizes(rooflines: Iterable[Roofline]) -> list[str]:
    """The two products with odd sizes that take longest, as far as sizes were recorded."""
    odd = [
        row
        for row in rooflines
        if row.family == "matmul" and row.shapes and _is_odd(row.shapes, _WIDTHS.get(row.data_type or "", 0))
    ]
    odd.sort(key=lambda row: -row.work_ns)
    return [f"{(row.op or '').removeprefix('aten::')} {row.shapes}" for row in odd[:2]]


def _is_odd(shapes: str, width: int) -> bool:
    """Whether the last two sizes of a matrix are no multiples; shapes are `[8,512] [512,17]`."""
    try:
        tensors = [json.loads(shape) for shape in shapes.split()]
    except ValueError:
        return False
    sizes = [size for tensor in tensors if len(tensor) > 1 for size in tensor[-2:] if isinstance(size, int)]
    return bool(width) and any(size % width and size > _LEAST_SIZE for size in sizes)
