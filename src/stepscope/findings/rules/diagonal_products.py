"""Rows or columns are scaled by a product with a diagonal matrix."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.diagonal_products import DiagonalProducts
from stepscope.findings import Advice, Bounds, Category, locations_of, rule
from stepscope.findings._phrases import often
from stepscope.findings._products import off_device
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.fixes import fix_of
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["diagonal_products"]

_PASSES, _BACKWARD_PASSES = 2, 6
"""To scale a matrix reads and writes it; its gradients do so three times."""
_LEAST = 0.5
_FIX = fix_of(
    "scaled = left[:, None] * matrix * right[None, :]    # not torch.diag(left) @ matrix @ torch.diag(right)"
)


@rule(category=Category.DEVICE)
def diagonal_products(
    mean_step: MeanStep, diagonal_products: Table[DiagonalProducts], *, least_share: float = 0.03
) -> Advice | None:
    """A matrix is multiplied with a diagonal one, which only scales its rows or columns.

    Gain, if a vector is multiplied instead:

    - at most: all GPU time of these products, of the matrix, and of their gradients.
    - at least: the same without two passes over the matrix for each product, and six with gradients; a pass
      takes as long as making the diagonal matrix. No less than half.
    """
    rows = list(diagonal_products)
    ends = [_saved_ns(row) for row in rows]
    saving = off_device((sum(low for low, _ in ends), sum(high for _, high in ends)), mean_step)
    if not rows or mean_step.gain(saving).high_share < least_share:
        return None
    main = rows[0]
    size = f"{units.count(main.size)} × {units.count(main.size)}" if main.size else "its square"
    products = sum(row.products for row in rows)
    return Advice(
        title="A matrix is multiplied with a diagonal one",
        because=f"torch.diag makes a matrix of {size} from a vector, nearly all of it zeros, and "
        f"{often(products, 'product')} with it {'takes' if products == 1 else 'take'} "
        f"{units.duration(sum(row.products_ns for row in rows))}, gradients "
        f"{units.duration(sum(row.backward_ns for row in rows))}. It only scales rows or columns, as a "
        "multiplication with the vector does.",
        saving=saving,
        certainty="likely",
        fix=_FIX,
        check="stepscope show diagonal_products: no rows.",
        evidence={
            "size": main.size,
            "products_per_step": products,
            "products_ns": sum(row.products_ns for row in rows),
            "backward_ns": sum(row.backward_ns for row in rows),
        },
        claims=frozenset({Claim(Time.DEVICE, Part.MATMUL)}),
        locations=locations_of(
            (row.user_frame, often(row.products, "product"), ("aten::matmul", "aten::mm")) for row in rows
        ),
    )


def _saved_ns(row: DiagonalProducts) -> Bounds:
    whole = row.made_ns + row.products_ns + row.backward_ns
    passes = _BACKWARD_PASSES if row.backward_ns else _PASSES
    return max(_LEAST * whole, whole - passes * row.made_ns), whole
