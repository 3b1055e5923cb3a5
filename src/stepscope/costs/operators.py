"""What an operator computes and moves, from its recorded inputs; where that is unknown, why."""

from __future__ import annotations

import re

from stepscope.costs.bytes import MEMORY_OPS
from stepscope.costs.families import family_of
from stepscope.costs.flops import MATRIX_OPS
from stepscope.costs.tensor_shapes import UnknownCostError, inputs_of
from stepscope.records import dataclass

__all__ = ["COUNTED_OPS", "MATRIX_FAMILIES", "Cost", "cost_of"]

MATRIX_FAMILIES = ("matmul", "convolution", "attention")
"""Families whose work runs on matrix units."""

COUNTED_OPS: dict[str, str] = {
    **{name: family for name, (family, _) in MATRIX_OPS.items()},
    **{name: family for name, (family, _) in MEMORY_OPS.items()},
}
"""Operators that have a formula, and their families."""

_UNCOUNTED = tuple(
    (re.compile(pattern), reason)
    for pattern, reason in (
        (r"grouped_m?m", "a grouped matrix product: the sizes of its groups are not in the profile"),
        (r"varlen|paged|unified_attention|mha_batch", "attention over sequences of unequal length"),
        (r"^triton_|^Torch-Compiled|^inductor", "a generated kernel: what it computes is not in the profile"),
        (r"^(nccl|c10d|gloo|mpi|ucc)|record_param_comms|_c10d_", "communication: nothing is computed"),
        (
            r"^aten::(_?index|_index_put_impl|masked_select|nonzero|_?unique|take)",
            "what it touches depends on the data",
        ),
        (r"^aten::(sort|topk|argsort|randperm|searchsorted)", "the passes of a sort are not in the profile"),
        (r"^aten::", "no formula for this operator"),
        (r"^ProfilerStep|^autograd::", "no operator around the launch tells what it computes"),
    )
)


@dataclass(frozen=True, slots=True)
class Cost:
    """What one call of an operator costs; None where it is unknown, and then `reason` says why."""

    family: str
    shapes: str | None
    type: str | None
    """Type of the elements of its first tensor, as the profile names it."""
    flops: int | None
    bytes: int | None
    again_flops: int = 0
    """The part of the FLOPs that computes anew what forward had computed."""
    causal: bool = False
    reason: str | None = None

    @property
    def is_matrix(self) -> bool:
        """Whether its work runs on matrix units."""
        return self.family in MATRIX_FAMILIES


def cost_of(name: str | None, args: str | None, kernel: str | None) -> Cost:
    """What one call costs, from its name, its arguments and the kernel that does most of it."""
    family = COUNTED_OPS.get(name or "") or family_of(kernel, name)
    shapes = kind = None
    try:
        if name in MATRIX_OPS and family_of(kernel) == "indexing":
            return Cost("indexing", None, None, None, None, reason=_SPARSE)
        inputs = inputs_of(args, kernel or "")
        shapes = inputs.shapes or None
        kind = inputs.element_type()
        if name in MATRIX_OPS:
            found = MATRIX_OPS[name][1](inputs)
            return Cost(family, shapes, kind, found.flops, found.bytes, found.again_flops, found.causal)
        if name in MEMORY_OPS:
            moved = MEMORY_OPS[name][1](inputs)
            flops = 0 if kind in _WHOLE_NUMBERS else moved.flops
            return Cost(family, shapes, kind, flops, moved.bytes, reason=moved.reason or None)
        reason = _why_uncounted(name)
    except UnknownCostError as unknown:
        reason = str(unknown) if name in COUNTED_OPS else _why_uncounted(name)
    return Cost(family, shapes, kind, None, None, reason=reason)


_SPARSE = "a product with a sparse matrix: how much that stores is not in the profile"
_WHOLE_NUMBERS = ("long int", "long", "int", "short", "short int", "signed char", "unsigned char", "bool")
"""What computes with these does no floating point operations."""


def _why_uncounted(name: str | None) -> str:
    if name is None:
        return "launched outside any operator"
    return next(
        (reason for pattern, reason in _UNCOUNTED if pattern.search(name)), "an operator of another library"
    )
