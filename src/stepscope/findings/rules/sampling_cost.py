"""Sampling a token takes long compared to computing it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from stepscope import units
from stepscope.analyses.iterations import Iteration
from stepscope.analyses.step_classes import StepClass
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice, Category, Saving, locations_of, rule
from stepscope.findings._inference import engine_of, infers
from stepscope.findings._phrases import often
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.fixes import Change, fix_of, line
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["sampling_cost"]

# Each draw ends in one of these: torch.multinomial, or a division by exponential noise and an argmax.
_DRAWS = ("aten::multinomial", "aten::exponential_")
_SORTS = ("aten::sort", "aten::argsort")
# A sampler should begin with the best few, so topk and what it calls stay.
_BEST = "aten::topk"
_STEPS = (
    *_DRAWS,
    *_SORTS,
    "aten::softmax",
    "aten::log_softmax",
    "aten::cumsum",
    "aten::argmax",
    "aten::masked_fill",
    "aten::masked_fill_",
    "aten::gather",
    "aten::scatter",
)
_TIMES = 2
"""How often a sampler calls the same operator for a draw at most; layers call theirs more often."""
_ANY = """\
best, indices = torch.topk(logits, 64)    # first, in the model's data type; then top-p and draw on 64
token = indices.gather(-1, torch.multinomial(best.float().softmax(-1), 1))
token = flashinfer.sampling.top_k_top_p_sampling_from_logits(logits, 64, 0.9)    # or one kernel, no sort
token = logits.argmax(-1)    # or greedy, if that is enough"""


@rule(category=Category.INFERENCE)
def sampling_cost(
    mean_step: MeanStep,
    iterations: Table[Iteration],
    step_classes: Table[StepClass],
    step_ops: Table[StepOp],
    *,
    least_share: float = 0.10,
) -> Advice | None:
    """Sampling takes a large part of the time for a token.

    Gain:

    - at most: all of the sampler's time.
    - at least: half of the sort and all that follows it. Finding the best few reads the logits once or
      twice, a sort reads and writes all of them for every eight bits, and what follows then works on those
      few. Nothing if nothing is sorted. The step gets no shorter than its operators take on the host.
    """
    if not infers(step_classes):
        return None
    draws = sum(row.calls for row in step_ops if row.name in _DRAWS and row.within not in _DRAWS)
    sampler = _sampler(step_ops, draws)
    whole = mean_step.per_step(sum(row.device_ns for row in sampler))
    if mean_step.share(whole) < least_share:
        return None
    sorting = mean_step.per_step(sum(row.device_ns for row in sampler if row.name in _SORTS))
    low = whole - 0.5 * sorting if sorting else 0.0
    return Advice(
        title="Sampling takes a large part of a step",
        because=f"Sampling ({often(mean_step.per_step(draws), 'draw')}) takes {units.duration(whole)} of GPU "
        f"time, {units.share(mean_step.share(whole))} of the step"
        + (f"; {units.duration(sorting)} of that is sorting." if sorting else "."),
        saving=Saving(device_ns=(min(low, mean_step.busy_ns), min(whole, mean_step.busy_ns))),
        certainty="likely",
        fix=fix_of(line(Change.SAMPLER, _ANY)),
        check="stepscope show ops: no aten::sort, and the sampler's operators take a few µs.",
        evidence={
            "engine": engine_of(iterations),
            "draws_per_step": mean_step.per_step(draws),
            "sampling_ns": round(whole),
            "sampling_share": mean_step.share(whole),
            "sorting_ns": round(sorting),
        },
        claims=frozenset({Claim(Time.DEVICE, Part.INDEXING)}),
        locations=locations_of(
            (row.user_frame, f"{row.name}, {often(row.per_step, 'call')}", (row.name,)) for row in sampler
        ),
    )


def _sampler(step_ops: Iterable[StepOp], draws: int) -> list[StepOp]:
    """The operators that a sampler calls, most expensive first, without those that layers call, too."""
    by_name: defaultdict[str | None, list[StepOp]] = defaultdict(list)
    for row in step_ops:
        if row.name in _STEPS and row.within not in (*_STEPS, _BEST):
            by_name[row.name].append(row)
    few = [rows for rows in by_name.values() if sum(row.calls for row in rows) <= _TIMES * draws]
    return sorted((row for rows in few for row in rows), key=lambda row: -row.device_ns)
