"""Graphs captured for more requests than there are."""

from __future__ import annotations

import re

from stepscope import units
from stepscope.analyses.iterations import Iteration
from stepscope.findings import Advice, Category, NotKnown, Saving, rule
from stepscope.findings._inference import engine_of
from stepscope.findings.claims import Claim, Time
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["decode_padding"]

# ATOM writes the requests and the size of the graph into the name: decode[bs=5/8 tok=5 …].
_PADDED = re.compile(r"decode\[bs=(\d+)/(\d+)\b")
_FIX = "--cudagraph-capture-sizes {sizes}    # one of them close above each usual number of requests"


@rule(category=Category.INFERENCE)
def decode_padding(
    mean_step: MeanStep, iterations: Table[Iteration], *, least_padding: float = 0.25
) -> Advice | None:
    """Decoding replays graphs that were captured for many more requests than there are.

    Gain: rows that stand for no request cost their part of whatever grows with the batch: at the most that
    part of the device's time. At the least nothing: reading the weights takes the same time for any batch.
    """
    rows = [row for row in iterations if row.kind == "decode" and row.launched_by != "eager"]
    if not rows:
        return None
    sizes = [(int(found[1]), int(found[2])) for row in rows if (found := _PADDED.search(row.name or ""))]
    if len(sizes) < len(rows):
        if all(_usual_padding(row.requests) < least_padding for row in rows):
            return None
        raise NotKnown(
            f"The profile does not tell for how many requests {engine_of(rows) or 'the'} graphs were made."
        )
    real, padded = (sum(column) for column in zip(*sizes, strict=True))
    padding = 1 - real / padded if padded else 0.0
    whole = sum(row.dur_ns for row in iterations)
    device = padding * mean_step.busy_ns * sum(row.dur_ns for row in rows) / whole if whole else 0.0
    if padding < least_padding or not device:
        return None
    return Advice(
        title="Decoding runs graphs made for more requests",
        because=f"{units.share(padding)} of the rows in {units.count(len(rows))} decoding steps stand for no "
        f"request: {units.tally(real / len(rows))} requests in graphs for "
        f"{units.tally(padded / len(rows))}, on average.",
        saving=Saving(device_ns=(0.0, device)),
        certainty="possible",
        fix=_FIX.format(sizes=" ".join(map(str, sorted({size for size, _ in sizes})[:8]))),
        check="stepscope show iterations: the two numbers of bs= in the names are closer to one another.",
        evidence={"padding_share": padding, "decode_steps": len(rows), "requests": real / len(rows)},
        claims=frozenset({Claim(Time.DEVICE)}),
    )


def _usual_padding(requests: int | None) -> float:
    """Padding with graphs for 1, 2, 4 and multiples of 8 requests, as engines capture them by default."""
    if not requests:
        return 1.0
    size = next((size for size in (1, 2, 4) if size >= requests), -(-requests // 8) * 8)
    return 1 - requests / size
