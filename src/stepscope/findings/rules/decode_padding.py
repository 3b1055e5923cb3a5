"""CUDA graphs captured for more requests than there are."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.iterations import Iteration
from stepscope.findings import Advice, Category, NotKnown, Saving, rule
from stepscope.findings._inference import engine_of
from stepscope.findings._phrases import times
from stepscope.findings.claims import Claim, Time
from stepscope.findings.fixes import Change, fix_of, line
from stepscope.findings.mean_step import MeanStep
from stepscope.patterns import late_pattern
from stepscope.tables import Table

__all__ = ["decode_padding"]

# ATOM writes the requests and the size of the graph into the name: decode[bs=5/8 tok=5 …].
_PADDED = late_pattern(r"decode\[bs=(\d+)/(\d+)\b")
_FIX = "--cudagraph-capture-sizes {sizes}    # one just above each usual number of requests"


@rule(category=Category.INFERENCE)
def decode_padding(
    mean_step: MeanStep, iterations: Table[Iteration], *, least_padding: float = 0.25
) -> Advice | None:
    """Decoding replays CUDA graphs that were captured for many more requests than there are.

    Gain:

    - at most: the padding's part of the GPU's time in these steps.
    - at least: nothing, because reading the weights takes the same time for any batch size.
    """
    rows = [row for row in iterations if row.kind == "decode" and row.launched_by != "eager"]
    if not rows:
        return None
    sizes = [(int(found[1]), int(found[2])) for row in rows if (found := _PADDED.search(row.name or ""))]
    if len(sizes) < len(rows):
        if all(_usual_padding(row.requests) < least_padding for row in rows):
            return None
        graphs = " ".join(filter(None, ("the", engine_of(rows), "graphs")))
        raise NotKnown(f"the profile does not say for how many requests {graphs} were captured")
    real, padded = (sum(column) for column in zip(*sizes, strict=True))
    padding = 1 - real / padded if padded else 0.0
    whole = sum(row.dur_ns for row in iterations)
    device = padding * mean_step.busy_ns * sum(row.dur_ns for row in rows) / whole if whole else 0.0
    if padding < least_padding or not device:
        return None
    captured = " ".join(map(str, sorted({size for size, _ in sizes})[:8]))
    return Advice(
        title="Decoding replays graphs captured for more requests",
        because=f"In {times(len(rows), 'decoding step')} an average of {times(real / len(rows), 'request')} "
        f"ran in graphs captured for {units.tally(padded / len(rows))}: {units.share(padding)} of the rows "
        "were padding.",
        saving=Saving(device_ns=(0.0, device)),
        certainty="possible",
        fix=fix_of(line(Change.CAPTURE_SIZES, _FIX.format(sizes=captured), sizes=captured)),
        check="stepscope show iterations: the two numbers after bs= are closer to each other.",
        evidence={"padding_share": padding, "decode_steps": len(rows), "requests": real / len(rows)},
        claims=frozenset({Claim(Time.DEVICE)}),
    )


def _usual_padding(requests: int | None) -> float:
    """The padding with graphs for 1, 2, 4 and multiples of 8 requests, the engines' defaults."""
    if not requests:
        return 1.0
    size = next((size for size in (1, 2, 4) if size >= requests), -(-requests // 8) * 8)
    return 1 - requests / size
