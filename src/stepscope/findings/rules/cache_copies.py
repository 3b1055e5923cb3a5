"""A KV cache that is copied for every token."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.attention import Attention
from stepscope.analyses.iterations import Iteration
from stepscope.analyses.loops import Loop
from stepscope.analyses.step_classes import StepClass
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice, Category, Saving, locations_of, rule
from stepscope.findings._inference import cache_joins, decodes, joined_ns
from stepscope.findings._phrases import often, times
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.fixes import Change, fix_of, line
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["cache_copies"]

WRITE_NS = 5_000
"""A short kernel that writes one position in place takes at most this long."""
_FIX = """\
keys = torch.empty(batch, heads, longest, size, device="cuda", dtype=model.dtype)    # once; also for values
keys[:, :, place : place + 1] = new_key    # no torch.cat; then use keys[:, :, : place + 1]
model.generation_config.cache_implementation = "static"    # or, with transformers, a StaticCache"""


@rule(category=Category.INFERENCE)
def cache_copies(  # noqa: PLR0913  # one parameter for each table
    mean_step: MeanStep,
    iterations: Table[Iteration],
    step_classes: Table[StepClass],
    attention: Table[Attention],
    step_ops: Table[StepOp],
    loops: Table[Loop],
    *,
    least_share: float = 0.05,
) -> Advice | None:
    """The whole KV cache is copied for every token (torch.cat).

    Gain:

    - at most: the GPU time of the copies.
    - at least: the same less 5 µs for each, which a kernel takes that writes one position in place.

    The step gets no shorter than the host needs for its operators.
    """
    if not decodes(iterations, step_classes, attention, step_ops, loops):
        return None
    joins = mean_step.per_step(cache_joins(step_ops))
    calls = mean_step.per_step(sum(row.forward_calls for row in attention))
    copied = min(mean_step.per_step(joined_ns(step_ops)), mean_step.busy_ns)
    if joins < 1.9 * calls or mean_step.share(copied) < least_share:
        return None
    low = max(0.0, copied - joins * WRITE_NS)
    rows = sorted((row for row in step_ops if row.name == "aten::cat"), key=lambda row: -row.device_ns)
    return Advice(
        title="The KV cache is copied for every token",
        because=f"torch.cat runs {often(joins, 'time')}"
        + (f", for {times(calls, 'call')} of attention," if calls else "")
        + f" and takes {units.duration(copied)}, {units.share(mean_step.share(copied))} of the step. It "
        "copies the whole cache, so it takes longer with every token.",
        saving=Saving(device_ns=(low, copied)),
        certainty="likely",
        fix=fix_of(line(Change.STATIC_CACHE, _FIX)),
        check="stepscope show kernels: CatArrayBatchedCopy takes almost no time.",
        evidence={
            "joins_per_step": joins,
            "attention_calls_per_step": calls,
            "copied_ns": round(copied),
            "copied_share": mean_step.share(copied),
        },
        claims=frozenset({Claim(Time.DEVICE, Part.COPY)}),
        locations=locations_of(
            (row.user_frame, often(row.per_step, "torch.cat call"), (row.name,)) for row in rows
        ),
    )
