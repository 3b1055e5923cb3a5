"""Rows of a table are looked up by a product with one-hot rows."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.one_hot_products import OneHotProduct
from stepscope.findings import Advice, Category, locations_of, rule
from stepscope.findings._products import off_device
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.fixes import fix_of
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["one_hot_products"]

_FIX = fix_of(
    "found = functional.embedding(index, table)    # not functional.one_hot(index, n).float() @ table",
    "used = torch.bincount(index, minlength=len(table))    # how often each row is used",
)


@rule(category=Category.DEVICE)
def one_hot_products(
    mean_step: MeanStep, one_hot_products: Table[OneHotProduct], *, least_share: float = 0.02
) -> Advice | None:
    """Rows of a table are looked up by multiplying it with rows of zeros and a single one.

    Gain:

    - at most: the GPU time of these products, of those for the table's gradient, and of the one-hot rows.
    - at least: the same without the gradient: a lookup adds up its gradients, which may take as long.
    """
    rows = list(one_hot_products)
    looked_up_ns = sum(row.product_ns + row.filling_ns for row in rows)
    gradient_ns = sum(row.gradient_ns for row in rows)
    saving = off_device((looked_up_ns, looked_up_ns + gradient_ns), mean_step)
    if not rows or mean_step.gain(saving).high_share < least_share:
        return None
    main = rows[0]
    return Advice(
        title="Rows of a table are looked up by a matrix product",
        because=f"{main.rows:,} one-hot rows are multiplied with a table of {main.table_rows:,} rows: the "
        "product reads the whole table for each of them, to find one row. In a step, products and one-hot "
        f"rows take {units.duration(looked_up_ns)}, the table's gradient {units.duration(gradient_ns)}.",
        saving=saving,
        certainty="likely",
        fix=_FIX,
        check="stepscope show one_hot_products: no rows.",
        evidence={
            "rows": main.rows,
            "table_rows": main.table_rows,
            "product_ns": main.product_ns,
            "gradient_ns": gradient_ns,
            "filling_ns": main.filling_ns,
        },
        claims=frozenset({Claim(Time.DEVICE, Part.MATMUL)}),
        locations=locations_of(
            (row.user_frame, f"{row.rows:,} rows of {row.table_rows:,}", ("aten::mm", "aten::addmm"))
            for row in rows
        ),
    )
