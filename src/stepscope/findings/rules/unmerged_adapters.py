"""Adapters are computed beside their layers, where they could be part of the weights."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.adapters import Adapters
from stepscope.findings import Advice, Category, locations_of, rule
from stepscope.findings._dropped import saved_by_dropping_stretches
from stepscope.findings._phrases import often
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.fixes import fix_of
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["unmerged_adapters"]

_FIX = fix_of(
    "model = model.merge_and_unload()    # peft: adds the adapters to the weights, once, before serving",
    "weight += scale * (b @ a)           # the same by hand",
)


@rule(category=Category.INFERENCE)
def unmerged_adapters(
    mean_step: MeanStep, adapters: Table[Adapters], *, least_share: float = 0.03, least_calls: float = 8.0
) -> Advice | None:
    """Adapters of low rank (LoRA) are computed by themselves in inference: four operators for each layer.

    Gain: two products, a multiplication and a sum go for each layer that has an adapter.

    - at most: 1.3 times their part of the step, with the Python between and around them, and all of their
      time on the GPU.
    - at least: 85 % of that part, and all of their time on the GPU.
    """
    calls = mean_step.per_step(sum(row.calls for row in adapters))
    host_ns = mean_step.per_step(sum(row.host_ns for row in adapters))
    device_ns = mean_step.per_step(sum(row.device_ns for row in adapters))
    saving = saved_by_dropping_stretches(mean_step, host_ns, device_ns)
    if calls < least_calls or mean_step.gain(saving).high_share < least_share:
        return None
    rank = next(row.rank for row in adapters)
    return Advice(
        title="Adapters are not merged into the weights",
        because=f"{often(calls, 'linear layer')} are followed by two small products, a scale and a sum, as "
        f"adapters of low rank (LoRA) are{f' (rank {rank})' if rank else ''}. They take "
        f"{units.duration(host_ns)} of the host's time and {units.duration(device_ns)} of the GPU's. Added "
        "to the weights once, they cost nothing.",
        saving=saving,
        certainty="likely",
        fix=_FIX,
        check="stepscope show adapters: no rows.",
        evidence={
            "adapters_per_step": calls,
            "rank": rank,
            "host_ns": round(host_ns),
            "device_ns": round(device_ns),
        },
        claims=frozenset({Claim(Time.STARVED), Claim(Time.DEVICE, Part.MATMUL)}),
        locations=locations_of(
            (row.user_frame, often(calls, "adapter"), ("aten::linear",)) for row in adapters
        ),
    )
