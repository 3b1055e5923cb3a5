"""A large matrix product computes rows that nobody reads."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.unread_products import UnreadProduct
from stepscope.findings import Advice, Category, locations_of, rule
from stepscope.findings._products import off_device
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.fixes import fix_of
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["unread_products"]

_LEAST = 0.9
"""Of its time: a product of few rows reads all weights, too."""
_FIX = fix_of(
    "logits = model(**batch, logits_to_keep=1).logits    # with transformers: those of the last position",
    "logits = head(hidden[:, -1])    # take the rows first, then multiply; not head(hidden)[:, -1]",
)


@rule(category=Category.DEVICE)
def unread_products(
    mean_step: MeanStep, unread_products: Table[UnreadProduct], *, least_share: float = 0.02
) -> Advice | None:
    """A large product computes all rows, such as logits of all positions, and only some of them are read.

    Gain:

    - at most: the part of its GPU time that belongs to the other rows.
    - at least: nine tenths of that, because a product of few rows reads all weights as well.
    """
    rows = list(unread_products)
    unread_ns = sum((1 - row.read_share) * row.device_ns for row in rows)
    saving = off_device((_LEAST * unread_ns, unread_ns), mean_step)
    if not rows or mean_step.gain(saving).high_share < least_share:
        return None
    main = rows[0]
    return Advice(
        title="A large product computes rows that nobody reads",
        because=f"A matrix product with a result of {main.shape} takes {units.duration(main.device_ns)} of a "
        f"step, {units.share(main.device_share)} of the GPU's work. Only {units.share(main.read_share)} of "
        "the result is read: the rest is cut off by select or slice, as logits of all positions are if only "
        "the last are needed.",
        saving=saving,
        certainty="likely",
        fix=_FIX,
        check="stepscope show unread_products: no rows.",
        evidence={
            "shape": main.shape,
            "read_share": main.read_share,
            "product_ns": main.device_ns,
            "unread_ns": round(unread_ns),
        },
        claims=frozenset({Claim(Time.DEVICE, Part.MATMUL)}),
        locations=locations_of(
            (row.user_frame, f"a result of {row.shape}", ("aten::linear",)) for row in rows
        ),
    )
