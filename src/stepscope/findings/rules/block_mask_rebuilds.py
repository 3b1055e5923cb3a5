"""The block mask of flex attention is built again and again."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.attention import Attention
from stepscope.analyses.python_frames import PythonFrame
from stepscope.findings import Advice, Category, NotKnown, Saving, rule
from stepscope.findings._phrases import often
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.facts import Facts
from stepscope.findings.mean_step import MeanStep
from stepscope.patterns import late_pattern
from stepscope.tables import Table

__all__ = ["block_mask_rebuilds"]

_BUILDS = late_pattern(r"torch/nn/attention/flex_attention\.py\(\d+\): create_block_mask$")
KINDS_OF_MASK = 2
"""Models mix up to two masks, such as a sliding window and a full one, and may need both in each step."""
_FIX = """\
mask = create_block_mask(causal, None, None, length, length, device="cuda")    # once, before the loop
masks = {length: create_block_mask(causal, None, None, length, length) for length in lengths}
create_block_mask = torch.compile(create_block_mask)    # for packed documents: once a step, for all layers"""


@rule(category=Category.ATTENTION)
def block_mask_rebuilds(
    mean_step: MeanStep,
    facts: Facts,
    attention: Table[Attention],
    python_frames: Table[PythonFrame],
    *,
    least_share: float = 0.02,
) -> Advice | None:
    """Flex attention gets a new block mask in each step, or in each layer of each step.

    `create_block_mask` evaluates the mask for all pairs of queries and keys, and sorts the blocks. A mask
    that depends on positions alone can be built once for each length.

    Gain:

    - at most: all of its work on the GPU, and all of its host time in which the GPU waits.
    - at least: if there are more than two calls a step, the part of its work on the GPU beyond two. A batch
      of packed documents needs a new mask in each step, but all layers can share it.
    """
    if mean_step.device is None or not mean_step.steps:
        return None
    rows = [row for row in python_frames if row.name and _BUILDS.search(row.name)]
    if not facts.stacks and any(row.backend == "flex" for row in attention):
        raise NotKnown(
            "whether the masks of flex attention are built in each step is not in the profile",
            record="with_stack=True",
        )
    calls, host, device = (
        mean_step.per_step(sum(getattr(row, figure) for row in rows))
        for figure in ("calls", "total_ns", "device_ns")
    )
    device, waited = min(device, mean_step.busy_ns), min(host, mean_step.starved_ns)
    if calls < 1 or mean_step.share(device + waited) < least_share:
        return None
    spare = max(0.0, 1 - KINDS_OF_MASK / calls)
    return Advice(
        title="Block masks of flex attention are built in each step",
        because=f"create_block_mask runs {often(calls, 'time')}, for {units.duration(host)} on the host and "
        f"{units.duration(device)} on the GPU. It evaluates the mask for every pair of a query and a key. "
        + (
            "Layers with the same mask can share one."
            if spare
            else "If the mask depends on positions alone, and not on the batch, one is enough for all steps."
        ),
        saving=Saving(starved_ns=(0.0, waited), device_ns=(spare * device, device)),
        certainty="likely" if spare else "possible",
        fix=_FIX,
        check="stepscope show python_frames: create_block_mask is called less than once a step.",
        evidence={
            "masks_per_step": calls,
            "host_ns": round(host),
            "device_ns": round(device),
        },
        claims=frozenset({Claim(Time.DEVICE, Part.INDEXING), Claim(Time.STARVED, Part.PYTHON)}),
    )
