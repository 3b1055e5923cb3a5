"""A large matrix product computes rows that nobody reads."""

from __future__ import annotations

from typing import Any

from stepscope import units
from stepscope.analyses.cut_products import CutProduct
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
    "logits = model(**batch, logits_to_keep=n).logits    # with transformers: of the last n positions, as 1",
    "logits = head(hidden[:, -1])    # take the rows first, then multiply; not head(hidden)[:, -1]",
)


@rule(category=Category.DEVICE)
def unread_products(
    mean_step: MeanStep,
    unread_products: Table[UnreadProduct],
    cut_products: Table[CutProduct],
    *,
    least_share: float = 0.02,
) -> Advice | None:
    """A large product computes all rows, such as logits of all positions, and only some of them are read.

    Gain:

    - at most: the part that belongs to the other rows, of the GPU time of the product, of its products in the
      backward pass, and of elementwise operators on the whole result; and the gradients of the cuts, which
      are copied into zeros of the whole size.
    - at least: nine tenths of that part of the products, because a product of few rows reads all weights as
      well; all of it of elementwise operators; and of the zeros.

    Gain without shapes, for the last large product of a step, if what follows a cut of its result cannot have
    read all of it:

    - at most: all of the product, of its products in the backward pass, of elementwise operators before the
      cut, and of the gradients of the cut.
    - at least: the same as with shapes, if as much is read as the time after the cut allows. In training only
      the backward pass counts: the other rows have no gradient, but something may look at them.
    """
    rows = list(unread_products)
    if not rows and cut_products:
        return _unsized(mean_step, next(iter(cut_products)), least_share)
    multiplied_ns = sum((1 - row.read_share) * (row.device_ns + row.backward_ns) for row in rows)
    around_ns = sum((1 - row.read_share) * (row.elementwise_ns + row.zeros_ns) for row in rows)
    unread_ns = multiplied_ns + around_ns
    # The gradient of any cut is worth nothing by itself: few rows that are cut off, as one of each sequence,
    # are no fault.
    if not rows or mean_step.gain(off_device((0.0, unread_ns), mean_step)).high_share < least_share:
        return None
    cuts_ns = sum(row.cut_ns - (1 - row.read_share) * row.zeros_ns for row in rows)
    saving = off_device((_LEAST * multiplied_ns + around_ns, unread_ns + cuts_ns), mean_step)
    main = rows[0]
    return Advice(
        title="A large product computes rows that nobody reads",
        because=f"A matrix product with a result of {main.shape} takes {units.duration(main.device_ns)} of a "
        f"step, {units.share(main.device_share)} of the GPU's work. Only {units.share(main.read_share)} of "
        "the result is read: the rest is cut off by select or slice, or after a number of each row was "
        f"picked, as logits of all positions are if only the last are needed.{_said_of_the_rest(rows)}",
        saving=saving,
        certainty="likely",
        fix=_FIX,
        check="stepscope show unread_products: no rows.",
        evidence=_evidence(rows) | {"unread_ns": round(unread_ns)},
        claims=_claims(rows),
        locations=locations_of(
            (row.user_frame, f"a result of {row.shape}", ("aten::linear",)) for row in rows
        ),
    )


def _evidence(rows: list[UnreadProduct]) -> dict[str, Any]:
    return {
        "shape": rows[0].shape,
        "read_share": rows[0].read_share,
        "product_ns": rows[0].device_ns,
        "backward_ns": sum(row.backward_ns for row in rows),
        "elementwise_ns": sum(row.elementwise_ns for row in rows),
        "cut_ns": sum(row.cut_ns for row in rows),
    }


def _unsized(mean_step: MeanStep, row: CutProduct, least_share: float) -> Advice | None:
    """The advice on a product without shapes: what is read at most follows from times."""
    unread = 1 - row.read_most
    if row.backward_ns:
        least_ns = unread * (_LEAST * row.backward_ns + row.zeros_ns)
    else:
        least_ns = unread * (_LEAST * row.device_ns + row.elementwise_ns)
    most_ns = row.device_ns + row.backward_ns + row.elementwise_ns + row.cut_ns
    if mean_step.gain(off_device((0.0, least_ns), mean_step)).high_share < least_share:
        return None
    how = (
        "the gradient of that part is copied into zeros of the whole size, and takes too little time against"
        " these zeros"
        if row.backward_ns
        else "what the step does with it afterwards is far too short to have read all"
    )
    return Advice(
        title="A large product computes rows that nobody reads",
        because=f"The last large matrix product of a step takes {units.duration(row.device_ns)}, "
        f"{units.share(row.device_share)} of the GPU's work. A part of its result is cut out ({row.cut}), "
        f"and at most {units.share(row.read_most)} of it is read: {how}. So it is with logits of all "
        f"positions if only the last are needed.{_said_of_the_rest([row])} record_shapes=True would show how "
        "much it is.",
        saving=off_device((least_ns, most_ns), mean_step),
        certainty="possible",
        fix=_FIX,
        check="stepscope show cut_products: no rows.",
        evidence={
            "read_most_share": row.read_most,
            "product_ns": row.device_ns,
            "backward_ns": row.backward_ns,
            "elementwise_ns": row.elementwise_ns,
            "cut_ns": row.cut_ns,
        },
        claims=_claims([row]),
        locations=locations_of([(row.user_frame, "the product", ("aten::linear",))]),
    )


def _said_of_the_rest(rows: list[UnreadProduct] | list[CutProduct]) -> str:
    """A sentence about what else is computed of all rows, with a space before it; nothing without any."""
    parts = {
        "its products in the backward pass": sum(row.backward_ns for row in rows),
        "casts and other elementwise operators": sum(row.elementwise_ns for row in rows),
        "gradients of the cuts, which are copied into zeros": sum(row.cut_ns for row in rows),
    }
    said = [f"{what} ({units.duration(ns)})" for what, ns in parts.items() if ns]
    return f" As large as the whole result are also: {', '.join(said)}." if said else ""


def _claims(rows: list[UnreadProduct] | list[CutProduct]) -> frozenset[Claim]:
    parts = {
        Part.MATMUL: True,
        Part.ELEMENTWISE: any(row.elementwise_ns for row in rows),
        Part.FILLS: any(row.cut_ns for row in rows),
    }
    return frozenset(Claim(Time.DEVICE, part) for part, claimed in parts.items() if claimed)
