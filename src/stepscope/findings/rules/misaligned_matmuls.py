"""Matrix products whose sizes rule out the fast kernels."""

from __future__ import annotations

import json
from collections.abc import Iterable

from stepscope import units
from stepscope.analyses.kernels import Kernel
from stepscope.analyses.precision import Precision
from stepscope.analyses.rooflines import Roofline
from stepscope.analyses.step_ops import StepOp
from stepscope.analyses.steps import Step
from stepscope.findings import Advice, Category, rule
from stepscope.findings._kernels import Ran, ran_in_steps
from stepscope.findings._products import heaviest, off_device
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.fixes import Change, Fix, fix_of, line
from stepscope.findings.mean_step import MeanStep
from stepscope.patterns import late_pattern
from stepscope.tables import Table

__all__ = ["misaligned_matmuls"]

# How many numbers a kernel for matrix units loads at once, as cuBLAS puts it into the names of its CUTLASS
# kernels. Kernels that do not use matrix units (simt) read single numbers anyway.
_ALIGNED_TO = late_pattern(r"tensorop_\w*?align(\d+)")
_SIXTEEN_BITS = late_pattern(r"tensorop_(?:bf16|f16|h\d)|gemm_(?:\w+?_)?(?:bf16|f16)_")
_AT_ONCE_BYTES = 16
"""What a thread can load at once if rows begin at multiples of it."""
_COPIED_AHEAD = 4
"""Up to this many times more loads than needed, of 4 bytes each, can be issued ahead in the background."""
_WIDTHS = {"bf16": 8, "fp16": 8, "tf32": 4}
_LEAST_SIZE = 16
"""Odd sizes below this are heads and counts that padding does not make faster."""

_SIZES = """\
vocabulary = -(-vocabulary // 64) * 64    # embedding and head; the extra entries are unused
hidden = -(-hidden // 64) * 64    # or 128; also head sizes and concatenated features"""
_INPUTS = "x = torch.nn.functional.pad(x, (0, -x.shape[-1] % 8))    # inputs with an odd number of features"


@rule(category=Category.DEVICE)
def misaligned_matmuls(  # noqa: PLR0913  # a rule's parameters are what it looks at
    mean_step: MeanStep,
    steps_by_any: Table[Step],
    kernels: Table[Kernel],
    precision: Table[Precision],
    rooflines: Table[Roofline],
    step_ops: Table[StepOp],
    *,
    least_share: float = 0.03,
) -> Advice | None:
    """Matrix products have sizes that are not aligned, so their kernels load one or two numbers at a time.

    Gain: a kernel that loads 16 bytes at once needs N times fewer loads than one that loads 2, 4 or 8.

    - at most: N times faster, 8 times for single bf16 numbers; N^(3/4) for loads of 4 bytes or more, which
      can be issued ahead: 2.8 times for single TF32 numbers.
    - at least: N^(1/2), 2.8 times for single bf16 numbers; N^(1/4) for loads of 4 bytes or more, 1.4 times.

    Measured: 3.7 times for sizes of 1000 and 6.3 times in a language model in bf16 (H200); about 1.7 times
    (A100) and 2 times (H200) in TF32.
    """
    odd_ns, low, high = _odd(ran_in_steps(kernels, steps_by_any, mean_step))
    products_ns = mean_step.per_step(sum(row.total_ns for row in precision if row.family == "matmul"))
    known = [row for row in precision if row.misaligned_ns is not None]
    if known and odd_ns:
        # cuBLAS may pick such a kernel for aligned sizes, too: then it is the fastest there is.
        sized = min(1.0, mean_step.per_step(sum(row.misaligned_ns or 0 for row in known)) / odd_ns)
        odd_ns, low, high = sized * odd_ns, sized * low, sized * high
    if not odd_ns or mean_step.share(high) < least_share:
        return None
    sizes = _sizes(rooflines)
    largest = f" The longest: {', '.join(sizes)}." if sizes else ""
    return Advice(
        title="Matrix products have sizes that slow them down",
        because="Matrix products with sizes that are not a multiple of 8 (4 in TF32) take "
        f"{units.duration(odd_ns)} of a step, {units.share(odd_ns / mean_step.work_ns)} of the GPU's work. "
        "Their rows do not begin at multiples of 16 bytes, so their kernels load one or two numbers at a "
        f"time.{largest}",
        saving=off_device((low, high), mean_step),
        certainty="likely" if known or 2 * low > odd_ns else "possible",
        fix=_fix(sizes),
        check="stepscope show kernels: no matmul kernel has align1 or align2 in its name.",
        evidence={
            "misaligned_ns": round(odd_ns),
            "misaligned_step_share": mean_step.share(odd_ns),
            "sizes": "; ".join(sizes) or None,
        },
        claims=frozenset({Claim(Time.DEVICE, Part.MATMUL)}),
        locations=heaviest(step_ops, mean_step) if 2 * odd_ns > products_ns else (),
    )


def _fix(sizes: list[str]) -> Fix:
    """What to make larger: sizes of the model, which only training can change, or of inputs."""
    if sizes and all(size.startswith(("bmm", "baddbmm")) for size in sizes):
        # Both factors are computed: as in attention, whose scores are as large as a sequence is long.
        return fix_of(
            "x = torch.nn.functional.pad(x, (0, 0, 0, -x.shape[1] % 8))    # the length; mask the rest"
        )
    return fix_of(line(Change.MODEL_SIZES, _SIZES), _INPUTS)


def _odd(ran: Iterable[Ran]) -> tuple[float, float, float]:
    """Time of kernels that load fewer bytes at once than they could, and the bounds of what that costs."""
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
    """How many times fewer loads it would need with aligned sizes; 1 if they are aligned, or not known."""
    found = _ALIGNED_TO.search(kernel)
    if not found:
        return 1.0
    number_bytes = 2 if _SIXTEEN_BITS.search(kernel) else 4
    return max(1.0, _AT_ONCE_BYTES / (int(found[1]) * number_bytes))


def _sizes(rooflines: Iterable[Roofline]) -> list[str]:
    """The two products with misaligned sizes that take longest, as far as sizes were recorded."""
    odd = [
        row
        for row in rooflines
        if row.family == "matmul" and row.shapes and _is_odd(row.shapes, _WIDTHS.get(row.data_type or "", 0))
    ]
    odd.sort(key=lambda row: -row.work_ns)
    return [f"{(row.op or '').removeprefix('aten::')} {row.shapes}" for row in odd[:2]]


def _is_odd(shapes: str, width: int) -> bool:
    """Whether one of the last two sizes of a matrix is not a multiple; shapes are `[8,512] [512,17]`."""
    try:
        tensors = [json.loads(shape) for shape in shapes.split()]
    except ValueError:
        return False
    sizes = [size for tensor in tensors if len(tensor) > 1 for size in tensor[-2:] if isinstance(size, int)]
    return bool(width) and any(size % width and size > _LEAST_SIZE for size in sizes)
