"""A network that does not learn runs at the start of every training step."""

from __future__ import annotations

from collections import Counter

from stepscope import units
from stepscope.analyses.before_training import BeforeTraining
from stepscope.analyses.copies import Copy
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice, Category, locations_of, rule
from stepscope.findings._dropped import saved_by_dropping_stretches
from stepscope.findings._phrases import often
from stepscope.findings._waits import of_shares
from stepscope.findings.claims import Claim, Time
from stepscope.findings.fixes import fix_of
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["frozen_networks"]

_FIX = fix_of(
    "with torch.no_grad(): states = encoder(prompt)    # once, before the loop, if the input stays the same",
    "torch.save(encoder(images), path)    # or once for each sample, if it comes again and is not augmented",
    'encoder = torch.compile(encoder, mode="reduce-overhead")    # or else: it needs no backward pass',
)


_LISTS = ({"aten::_foreach_lerp_"}, {"aten::_foreach_mul_", "aten::_foreach_add_"})
_ONE_BY_ONE = ({"aten::lerp_"}, {"aten::mul_", "aten::add_"})
_MANY = 8
"""Fewer tensors are no weights of a network: an average of losses has one."""


@rule(category=Category.HOST)
def frozen_networks(
    mean_step: MeanStep,
    before_training: Table[BeforeTraining],
    copies: Table[Copy],
    step_ops: Table[StepOp],
    *,
    least_share: float = 0.05,
) -> Advice | None:
    """Each training step first runs a network that does not learn, as a text encoder, a VAE or a teacher.

    Gain, if its results are kept:

    - at most: all of its time on the GPU, and 1.3 times its part of the step on the host.
    - at least: nothing, because a profile does not tell whether its inputs come again.

    Where a step averages weights, the network may be that average, as a teacher or a critic's target is.
    """
    if _averages(mean_step, step_ops):
        return None
    rows = [row for row in before_training if row.steps >= mean_step.steps - 1 and row.products]
    host_ns = mean_step.per_step(sum(row.host_ns for row in rows))
    device_ns = mean_step.per_step(sum(row.device_ns for row in rows))
    most = mean_step.gain(saved_by_dropping_stretches(mean_step, host_ns, device_ns)).high_share
    if not rows or most < least_share:
        return None
    ops = mean_step.per_step(sum(row.ops for row in rows))
    moved = any(row.direction == "HtoD" for row in copies)
    return Advice(
        title="A network that does not learn runs in every step",
        because=f"Each step begins with {units.count(rows[0].products)} matrix products or convolutions that "
        "no gradient goes through, as of a text encoder, a VAE or a teacher. With what is between them, they "
        f"take {units.duration(host_ns)} of the host's time in a step and {units.duration(device_ns)} of the "
        "GPU's. "
        + ("What comes again" if moved else "Nothing is copied to the GPU in a step: what comes again")
        + " needs to be computed only once.",
        saving=of_shares(mean_step, 0.0, most),
        certainty="possible",
        fix=_FIX,
        check="stepscope show before_training: no row with products.",
        evidence={
            "products_per_step": rows[0].products,
            "ops_per_step": ops,
            "host_ns": round(host_ns),
            "device_ns": round(device_ns),
        },
        claims=frozenset({Claim(Time.DEVICE), Claim(Time.STARVED)}),
        locations=locations_of(
            (row.user_frame, often(mean_step.per_step(row.ops), "operator"), row.longest.split(", "))
            for row in rows
        ),
    )


def _averages(mean_step: MeanStep, step_ops: Table[StepOp]) -> bool:
    """Whether a step changes many tensors, or a list of them, outside of the optimizer as averages are."""
    own = [row for row in step_ops if row.within is None and row.phase in ("forward", "other")]
    calls = Counter[str | None]()
    for row in own:
        calls[row.name] += row.calls
    often = {name for name, number in calls.items() if mean_step.per_step(number) >= _MANY}
    return any(some <= calls.keys() for some in _LISTS) or any(some <= often for some in _ONE_BY_ONE)
