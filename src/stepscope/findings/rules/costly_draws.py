"""Samples are drawn by going over all candidates for each row."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice, Category, locations_of, rule
from stepscope.findings._phrases import often
from stepscope.findings._products import off_device
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.fixes import fix_of
from stepscope.findings.mean_step import MeanStep
from stepscope.patterns import late_pattern
from stepscope.tables import Table

__all__ = ["costly_draws"]

_DRAWING = "aten::multinomial"
# What torch.multinomial does only if candidates are not put back: noise for each, divided, and the largest.
_WITHOUT_REPLACEMENT = late_pattern(r"aten::(exponential_|div_?|topk|argmax)")
_FIX = fix_of(
    "cumulative = weights.cumsum(0)    # once, if all rows have the same weights",
    "drawn = torch.searchsorted(cumulative, torch.rand(rows, n, device='cuda') * cumulative[-1])",
    "drawn = torch.multinomial(weights, rows * n, replacement=True).view(rows, n)    # or this",
)


@rule(category=Category.DEVICE)
def costly_draws(mean_step: MeanStep, step_ops: Table[StepOp], *, least_share: float = 0.05) -> Advice | None:
    """Samples are drawn with torch.multinomial, which goes over every candidate of every row many times.

    Gain:

    - at most: all its GPU time. Where all rows have the same weights, their cumulative sum is made once, and
      a sample is a random number and a search in it.
    - at least: what goes if candidates are put back: a random number for each of them, the division and the
      selection of the largest. Its checks of all weights stay.
    """
    calls = [op for op in step_ops if op.name == _DRAWING and op.device_ns]
    ns = mean_step.per_step(sum(op.device_ns for op in calls))
    noise_ns = mean_step.per_step(
        sum(
            op.device_ns
            for op in step_ops
            if op.within == _DRAWING and _WITHOUT_REPLACEMENT.fullmatch(op.name or "")
        )
    )
    saving = off_device((min(noise_ns, ns), ns), mean_step)
    if not calls or mean_step.gain(saving).high_share < least_share:
        return None
    number = sum(op.per_step for op in calls)
    parts = "It checks all weights first."
    if noise_ns:
        parts = (
            "Candidates are not put back, so it makes a random number for each candidate of each row and "
            f"selects the largest: {units.duration(noise_ns)}. The rest checks all weights."
        )
    return Advice(
        title="Samples are drawn by going over all candidates",
        because=f"torch.multinomial takes {units.duration(ns)} of a step, "
        f"{units.share(ns / mean_step.busy_ns)} of the GPU's work, {often(number, 'call')}. {parts}",
        saving=saving,
        certainty="likely",
        fix=_FIX,
        check="stepscope show step_ops: device_ns of aten::multinomial falls.",
        evidence={
            "drawing_ns": round(ns),
            "busy_share": ns / mean_step.busy_ns,
            "noise_ns": round(noise_ns),
            "calls_per_step": number,
        },
        claims=frozenset({Claim(Time.DEVICE, Part.INDEXING), Claim(Time.DEVICE, Part.ELEMENTWISE)}),
        locations=locations_of(
            (op.user_frame, f"{op.name}, {often(op.per_step, 'call')}", (op.name,))
            for op in sorted(calls, key=lambda op: -op.device_ns)
        ),
    )
