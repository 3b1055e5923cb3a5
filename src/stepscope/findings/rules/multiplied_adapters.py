"""Adapters are multiplied out to matrices as large as the weights, in every pass."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.multiplied_adapters import MultipliedAdapters
from stepscope.findings import Advice, Category, Saving, locations_of, rule
from stepscope.findings._phrases import often, times
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.fixes import fix_of
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["multiplied_adapters"]

_OF_WEIGHTS = 0.5
"""Of a layer's products in the backward pass: one is for its weights, one for its inputs."""
_BESIDE = (1.3, 0.5)
"""How many times what they are estimated to take adapters beside their layers take, at most and at least."""
_KEPT = (0.35, 0.85)
"""Of the time of adapters whose sizes are not known: what goes at least, and at most."""
_FIX = fix_of(
    "y = base(x) + functional.linear(functional.linear(x, a) * scale, b)    # two thin products",
    "weight += scale * (b @ a)    # in inference: once, after loading",
)


@rule(category=Category.DEVICE)
def multiplied_adapters(
    mean_step: MeanStep, multiplied_adapters: Table[MultipliedAdapters], *, least_share: float = 0.03
) -> Advice | None:
    """An adapter of low rank (LoRA) is multiplied out and added to the weights before each use of a layer.

    Its gradient is then as large as the weights, too: the backward pass computes a product for each frozen
    weight, and the adapter gets its gradient through that.

    Gain, if the input goes through the two thin matrices instead:

    - at most: the product, the scale, the sum and their gradients, and half of the products of the layer's
      backward pass, less half of what the adapters are estimated to take beside their layers.
    - at least: the same, less 1.3 times that estimate.
    - without shapes: 35 to 85 % of all that, because the sizes of inputs are not known.
    """
    calls = mean_step.per_step(sum(row.calls for row in multiplied_adapters))
    device_ns, beside_ns = _goes(mean_step, multiplied_adapters), _beside(mean_step, multiplied_adapters)
    if beside_ns is None:
        bounds = _KEPT[0] * device_ns, _KEPT[1] * device_ns
    else:
        bounds = _less(device_ns, _BESIDE[0] * beside_ns), _less(device_ns, _BESIDE[1] * beside_ns)
    saving = Saving(device_ns=bounds)
    if not calls or mean_step.gain(saving).high_share < least_share:
        return None
    rank = next(row.rank for row in multiplied_adapters)
    back = any(row.layer_backward_ns for row in multiplied_adapters)
    return Advice(
        title="Adapters are multiplied out in every pass",
        because=f"Adapters of low rank{f' ({rank})' if rank else ''} become matrices as large as the weights "
        f"that they are added to, {times(calls, 'time')} a step"
        f"{'; their gradients become as large' if back else ''}. That takes {units.duration(device_ns)} of "
        f"the GPU{_compared(beside_ns)}.",
        saving=saving,
        certainty="likely",
        fix=_FIX,
        check="stepscope show multiplied_adapters: no rows.",
        evidence={
            "adapters_per_step": calls,
            "rank": rank,
            "device_ns": round(device_ns),
            "beside_ns": None if beside_ns is None else round(beside_ns),
        },
        claims=frozenset({Claim(Time.DEVICE, Part.MATMUL)}),
        locations=locations_of(
            (row.user_frame, often(mean_step.per_step(row.calls), "adapter"), ("aten::matmul", "aten::mm"))
            for row in multiplied_adapters
        ),
    )


def _goes(mean_step: MeanStep, rows: Table[MultipliedAdapters]) -> float:
    """Device time of the adapters in a step, and of what their backward pass computes for whole weights."""
    layers = _OF_WEIGHTS * sum(row.layer_backward_ns for row in rows)
    return mean_step.per_step(sum(row.device_ns + row.backward_ns for row in rows) + layers)


def _beside(mean_step: MeanStep, rows: Table[MultipliedAdapters]) -> float | None:
    """Device time of the adapters beside their layers; None where sizes are not known."""
    known = [row.beside_ns for row in rows if row.beside_ns is not None]
    return mean_step.per_step(sum(known)) if len(known) == len(rows) else None


def _less(device_ns: float, left_ns: float) -> float:
    return max(0.0, device_ns - left_ns)


def _compared(beside_ns: float | None) -> str:
    return "" if beside_ns is None else f"; beside their layers they would take {units.duration(beside_ns)}"
