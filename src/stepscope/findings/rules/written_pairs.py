"""The features of all pairs are written out only to go through a linear layer."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.written_pairs import WrittenPairs
from stepscope.findings import Advice, Category, Certainty, locations_of, rule
from stepscope.findings._fewer_calls import with_their_calls
from stepscope.findings._phrases import often
from stepscope.findings._products import off_device
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.fixes import Fix, fix_of
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["written_pairs"]

_SURE: dict[str, Certainty] = {"shapes": "likely", "times": "likely", "order": "possible"}
_ALL = 0.999


@rule(category=Category.DEVICE)
def written_pairs(
    mean_step: MeanStep, written_pairs: Table[WrittenPairs], *, least_share: float = 0.03
) -> Advice | None:
    """Features of both members of every pair are repeated and joined, only to go through a linear layer.

    Gain, if the layer's halves are applied to the items and the results are added by broadcasting:

    - at most: the GPU time of the copies that repeat the rows, of the join, of the layer, and of all their
      gradients; with it, their part of the host's time. Without the layer's part for columns that are not
      repeated; where rows are repeated by an index, without such an index of the results.
    - at least: the same without what stays at most: the layer on the items, and the sums, which are as wide
      as the layer's result. Without shapes, what follows the layer tells how long these take, and half of the
      layer counts. Nothing, if the order of operators alone tells of the pairs.
    """
    rows = list(written_pairs)
    copies_ns = sum(row.spread_ns + row.joined_ns + row.copies_backward_ns for row in rows)
    if not rows or mean_step.share(copies_ns) < least_share:
        return None
    least_ns = sum(_whole_ns(row) - row.stays_most_ns for row in rows if row.told_by != "order")
    most_ns = sum(_whole_ns(row) - row.stays_least_ns for row in rows)
    host_share = min(1.0, sum(row.host_share for row in rows))
    saving = with_their_calls(mean_step, off_device((least_ns, most_ns), mean_step), host_share)
    if mean_step.gain(saving).high_share < least_share:
        return None
    gathered = any(row.gathered for row in rows)
    return Advice(
        title="Pairs are written out only for a linear layer",
        because=_because(rows),
        saving=saving,
        certainty=_SURE[rows[0].told_by],
        fix=_fix(rows),
        check="stepscope show written_pairs: no rows.",
        evidence={
            "told_by": rows[0].told_by,
            "shape": rows[0].shape,
            "times": rows[0].times,
            "joins_per_step": sum(row.calls for row in rows),
            "copies_ns": copies_ns,
            "product_ns": sum(row.product_ns + row.product_backward_ns for row in rows),
            "stays_most_ns": sum(row.stays_most_ns for row in rows),
        },
        claims=frozenset(
            Claim(Time.DEVICE, part)
            for part in (Part.COPY, Part.MATMUL, *([Part.INDEXING] if gathered else []))
        ),
        locations=locations_of(
            (
                row.user_frame,
                f"{often(row.calls, 'join')}{f' of {row.shape}' if row.shape else ''}",
                ("aten::cat", "aten::concat", "aten::concatenate"),
            )
            for row in rows
        ),
    )


def _whole_ns(row: WrittenPairs) -> int:
    return row.spread_ns + row.joined_ns + row.product_ns + row.copies_backward_ns + row.product_backward_ns


def _because(rows: list[WrittenPairs]) -> str:
    """What is repeated, how it is known, and what it takes."""
    main, calls = rows[0], sum(row.calls for row in rows)
    if main.shape:
        numbers = units.counted(main.out_width or 0, "number")
        what = (
            f"Rows are repeated {units.tally(main.times or 0)} times and joined to {main.shape}, of which a "
            f"linear layer computes {numbers} a row."
        )
        if not _all_is_repeated(main):
            what += f" {units.share(main.repeated_share)} of each joined row is repeated."
    elif main.told_by == "times":
        what = (
            "Rows are repeated and joined for a linear layer: to write the parts takes about as long as it "
            "would take for all pairs."
        )
    else:
        what = (
            "Several tensors are expanded right before they are joined for a linear layer, as for all pairs; "
            "record_shapes=True would show it."
        )
    forward_ns = sum(row.spread_ns + row.joined_ns for row in rows)
    layer_ns = sum(row.product_ns + row.product_backward_ns for row in rows)
    backward_ns = sum(row.copies_backward_ns for row in rows)
    trained = any(row.product_backward_ns for row in rows)
    undone = f", their gradients {units.duration(backward_ns)}" if backward_ns else ""
    return (
        f"{what} Joins and the copies before them ({often(calls, 'join')}) take {units.duration(forward_ns)}"
        f"{undone}, the layer{' with its gradients' if trained else ''} {units.duration(layer_ns)}. As "
        "W [a; b] = W₁ a + W₂ b, the layer can be applied to the items before they are paired."
    )


def _all_is_repeated(row: WrittenPairs) -> bool:
    return row.repeated_share is None or row.repeated_share > _ALL


def _fix(rows: list[WrittenPairs]) -> Fix:
    """The layer in halves, as the rows are repeated."""
    split, rest = "left, right = layer.weight.split(width, dim=1)    # a half for each member of a pair", ""
    if not all(map(_all_is_repeated, rows)):
        split = (
            "left, right, rest = layer.weight.split([width, width, others], dim=1)    # as they are joined"
        )
        rest = " + F.linear(others_of_pairs, rest)"
    ours, theirs = "F.linear(x, left, layer.bias)", "F.linear(x, right)"
    lines = [split]
    if not all(row.gathered for row in rows):
        lines.append(
            f"scores = {ours}[:, :, None] + {theirs}[:, None]{rest}    # not layer(torch.cat(…, -1))"
        )
    if any(row.gathered for row in rows):
        lines.append(f"scores = {ours}[source] + {theirs}[target]{rest}    # for the edges of a graph")
    return fix_of(*lines)
