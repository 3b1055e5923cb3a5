"""Batches of texts may be padded to a fixed length."""

from __future__ import annotations

from collections.abc import Iterable

from stepscope import units
from stepscope.analyses.attention import WITH_MASK, Attention
from stepscope.analyses.copies import Copy
from stepscope.analyses.launch_patterns import LaunchPattern
from stepscope.analyses.starving_phases import StarvingPhase
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice, Category, Saving, rule
from stepscope.findings._optimizers import cost_of_phase
from stepscope.findings.claims import Claim, Time
from stepscope.findings.fixes import fix_of
from stepscope.findings.mean_step import MeanStep
from stepscope.patterns import late_pattern
from stepscope.tables import Table

__all__ = ["padded_batches"]

_MOST = 0.75
"""Of the GPU's work in forward and backward passes: three of four tokens are padding."""
_SHORT = 64
"""Shorter sequences have little to pad."""
_LEAST_STEPS = 2
_LOOK_UP = "aten::embedding"
_MAKES = late_pattern(r"aten::(ne|eq|lt|le|gt|ge|rsub|logical_not|bitwise_not|(__|logical_|bitwise_)and_*)")
_CAUSAL = late_pattern(r"aten::(le|lt|tril|triu)_?")
_WITH_MASK = 2
"""Copies of a step's inputs to the GPU: ids, and their mask; labels come beside them in training."""
_FIX = fix_of(
    'tokenizer(texts, padding="longest", pad_to_multiple_of=8)    # not "max_length"; truncation may stay',
    "texts.sort(key=len)    # like lengths in a batch, then batches in any order: less padding still",
)


@rule(category=Category.INPUT)
def padded_batches(  # noqa: PLR0913  # one parameter for each table
    mean_step: MeanStep,
    attention: Table[Attention],
    launch_patterns: Table[LaunchPattern],
    step_ops: Table[StepOp],
    starving_phases: Table[StarvingPhase],
    copies: Table[Copy],
    *,
    least_share: float = 0.10,
) -> Advice | None:
    """Texts in all recorded batches have one length, and attention gets a mask for each of them.

    A mask for each sequence that is as long in every step is usually there for padding to a fixed length. How
    much of a batch is padding is not in a profile.

    Gain, if batches are padded to their longest text alone:

    - at most: three quarters of the GPU's work in the forward and backward pass, as where a text fills a
      quarter of its row on average.
    - at least: nothing, where texts are as long as that.
    """
    if not any(op.name == _LOOK_UP and op.phase == "forward" for op in step_ops):
        return None
    causal = any(_CAUSAL.fullmatch(op.name or "") and op.phase == "forward" for op in step_ops)
    if (lengths := _lengths(attention, causal=causal)) is None:
        return None
    if not lengths and not _comes_with_ids(mean_step, step_ops, copies):
        return None
    steps = [row.steps for row in launch_patterns]
    if len(steps) != 1 or steps[0] < _LEAST_STEPS:
        return None
    of_tokens_ns = mean_step.busy_ns - cost_of_phase(mean_step, starving_phases).device_ns
    saving = Saving(device_ns=(0.0, max(0.0, _MOST * of_tokens_ns)))
    if mean_step.gain(saving).high_share < least_share:
        return None
    of_each = f" for each sequence of {units.count(max(lengths))} tokens" if lengths else ""
    return Advice(
        title="Texts may be padded to a fixed length",
        because=f"All {units.count(steps[0])} recorded steps have inputs of the same sizes, and "
        f"attention gets a mask{of_each}. If it hides padding, the GPU works on that, too: "
        "print(attention_mask.float().mean()) tells which part of a batch is text.",
        saving=saving,
        certainty="possible",
        fix=_FIX,
        check="stepscope show launch_patterns: steps differ; and the step is shorter.",
        evidence={
            "steps": steps[0],
            "length": max(lengths) if lengths else None,
            "device_ns": round(of_tokens_ns),
        },
        claims=frozenset({Claim(Time.DEVICE)}),
    )


def _comes_with_ids(mean_step: MeanStep, step_ops: Iterable[StepOp], copies: Iterable[Copy]) -> bool:
    """Whether a step makes a mask from its ids, or gets one beside them; one that is kept may be causal."""
    makes = any(
        _MAKES.fullmatch(op.name or "") and op.within is None and op.phase == "forward" for op in step_ops
    )
    sent = sum(row.calls for row in copies if row.direction == "HtoD")
    trains = any(op.phase == "backward" for op in step_ops)
    return makes or mean_step.per_step(sent) >= _WITH_MASK + trains


def _lengths(attention: Iterable[Attention], *, causal: bool) -> set[int] | None:
    """How long the sequences with a mask are, as far as that is known; None if there are none."""
    # Torch's fused ones know a causal mask by themselves; of others a mask without shapes may be causal, and
    # one that is made by comparing places may hide nothing else.
    masked = [
        row
        for row in attention
        if row.mask == "some" and (row.backend in WITH_MASK or (row.query_length and not causal))
    ]
    known = {row.query_length for row in masked if row.query_length and row.query_length == row.key_length}
    if not masked or (known and max(known) < _SHORT):
        return None
    return known
