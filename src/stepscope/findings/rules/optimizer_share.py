"""The optimizer takes a large part of the step."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.annotations import Annotation
from stepscope.analyses.late_phases import LatePhase
from stepscope.analyses.phases import Phase
from stepscope.analyses.step_classes import StepClass
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice, Saving, rule
from stepscope.findings._op_costs import places_of
from stepscope.findings._optimizers import (
    FINDING_SHARE,
    Update,
    accumulates,
    can_be_fused,
    cost_of_phase,
    fused_line,
    fusing_saves,
    optimizer_time,
    update_of,
)
from stepscope.findings.pace import Pace
from stepscope.tables import Table

__all__ = ["optimizer_share"]

LEAST_GAIN = 0.01


@rule
def optimizer_share(  # noqa: PLR0913  # each is a table or a threshold
    pace: Pace,
    late_phases: Table[LatePhase],
    phases: Table[Phase],
    step_classes: Table[StepClass],
    step_ops: Table[StepOp],
    annotations: Table[Annotation],
    *,
    finding_share: float = FINDING_SHARE,
    accumulating_share: float = 0.10,
) -> Advice | None:
    """The optimizer takes a large part of the step, though it does not update tensors one by one.

    Gain: where lists of tensors are updated (foreach), a fused kernel saves all calls but one and the passes
    over memory beyond one. Where the kernel is fused already, one update for twice as many samples halves
    what each pays for it: so half of the optimizer's time at the most. At the least nothing, since the
    profile does not tell whether the training allows it.
    """
    update = update_of(step_ops, annotations)
    if update is None or update.kind == "per tensor":
        return None
    spent_ns = optimizer_time(pace, phases, late_phases)
    several = accumulates(step_classes)
    if pace.share(spent_ns) <= (accumulating_share if several else finding_share):
        return None
    saving = fusing_saves(update, pace, late_phases) if can_be_fused(update) else _half(pace, late_phases)
    if pace.gain(saving).high_share < LEAST_GAIN:
        return None
    return _advice(update, saving, spent_ns, pace, several=several)


def _half(pace: Pace, late_phases: Table[LatePhase]) -> Saving:
    phase = cost_of_phase(pace, late_phases)
    late_ns = min(pace.late_ns, pace.with_latency(phase.late_ns))
    return Saving(late_ns=(0.0, late_ns / 2), device_ns=(0.0, min(pace.busy_ns, phase.device_ns) / 2))


def _advice(update: Update, saving: Saving, spent_ns: float, pace: Pace, *, several: bool) -> Advice:
    fusable = can_be_fused(update)
    how = {"foreach": "an operator for every list of tensors", "fused": "a fused kernel"}[update.kind]
    every = "though gradients are accumulated" if several else "after every backward pass"
    lines = [
        "for part in batch.chunk(n): loss_of(part).backward()    # several passes for one optimizer.step()",
        "loader = DataLoader(dataset, batch_size=2 * batch_size)    # or a larger batch at once",
    ]
    if fusable:
        lines = [fused_line(update.name), lines[0]]
    elif (update.name or "").startswith("Adam"):
        lines.append("optimizer = bitsandbytes.optim.AdamW8bit(parameters, lr=lr)    # or smaller states")
    return Advice(
        title="The optimizer takes a large part of the step",
        because=f"{update.name or 'The optimizer'} takes {units.duration(spent_ns)} of a step, "
        f"{units.share(pace.share(spent_ns))} of it, {every}; it updates with {how}.",
        saving=saving,
        certainty="likely" if fusable else "possible",
        fix="\n".join(lines),
        check="stepscope show phases: stretch_share and device_share of the optimizer.",
        evidence={
            "optimizer": update.name,
            "kind": update.kind,
            "optimizer_ns": spent_ns,
            "optimizer_share": pace.share(spent_ns),
            "accumulating": several,
        },
        claims=frozenset({"late:optimizer", "device:optimizer"}),
        locations=places_of(update.ops, "operators"),
    )
