"""A layer computes rows that were repeated right before, each of them several times."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.repeated_rows import RepeatedRows
from stepscope.findings import Advice, Bounds, Category, locations_of, rule
from stepscope.findings._phrases import often
from stepscope.findings._products import off_device
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.fixes import fix_of
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["repeated_rows"]

_INDEX = "messages = layer(x)[source]    # not layer(x[source]): a row for each node, then one for each edge"
_TABLE = "states = F.embedding(ids, layer(table.weight))    # the layer on the table, not on each look-up"
_EXPAND = """\
scores = layer(user)[:, None].expand(-1, candidates, -1)    # not layer(user[:, None].expand(…)): once each"""


@rule(category=Category.DEVICE)
def repeated_rows(
    mean_step: MeanStep, repeated_rows: Table[RepeatedRows], *, least_share: float = 0.03
) -> Advice | None:
    """A layer computes rows that were repeated right before: the same result several times.

    Gain, if the layer is applied before the rows are repeated:

    - at most: of the layers and their gradients all but one part in as many as a row is repeated; and of the
      copies that repeat the rows as much as the result is narrower.
    - at least: the same, but copies take as much longer as the result is wider, and gradients are still
      copied into another layout.
    """
    rows = list(repeated_rows)
    least, most = (sum(ends) for ends in zip((0.0, 0.0), *map(_saved_ns, rows), strict=True))
    saving = off_device((max(0.0, least), most), mean_step)
    if not rows or mean_step.gain(saving).high_share < least_share:
        return None
    main = rows[0]
    layers_ns = sum(row.layers_ns for row in rows)
    layers = units.counted(main.layers, "layer")
    return Advice(
        title="A layer computes rows that were repeated for it",
        because=f"`{main.repeated_by}` repeats each row {units.tally(main.times)} times on average, to "
        f"{main.shape}, and {layers} {'computes' if main.layers == 1 else 'compute'} each of them: "
        f"{units.duration(layers_ns)} of the GPU's time in a step with all gradients. A layer gives the same "
        "for the same row, so it can come before.",
        saving=saving,
        certainty="likely",
        fix=fix_of(*dict.fromkeys(_fix_line(row.repeated_by) for row in rows)),
        check="stepscope show repeated_rows: no rows.",
        evidence={
            "repeated_by": main.repeated_by,
            "shape": main.shape,
            "times": main.times,
            "layers_ns": layers_ns,
            "spread_ns": sum(row.spread_ns for row in rows),
        },
        claims=frozenset({Claim(Time.DEVICE, Part.MATMUL)}),
        locations=locations_of(
            (row.user_frame, f"{often(row.calls, 'call')}, {row.shape}", (row.repeated_by,)) for row in rows
        ),
    )


def _saved_ns(row: RepeatedRows) -> Bounds:
    """Each row goes through the layers once; to repeat what they give takes as long as it is wide."""
    least, most = ((row.layers_ns - stays) * (1 - 1 / row.times) for stays in (row.turned_ns, 0))
    wider = row.out_width / row.width
    return least - row.spread_ns * max(0.0, wider - 1), most + row.spread_ns * max(0.0, 1 - wider)


def _fix_line(repeated_by: str) -> str:
    if repeated_by == "aten::embedding":
        return _TABLE
    return _INDEX if "index" in repeated_by or "gather" in repeated_by else _EXPAND
