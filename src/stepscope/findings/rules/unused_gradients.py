"""The backward pass computes gradients that no optimizer uses."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from stepscope import units
from stepscope.analyses.step_classes import StepClass
from stepscope.analyses.summed_gradients import SummedGradients
from stepscope.findings import Advice, Bounds, Category, Saving, rule
from stepscope.findings._fewer_calls import fewer_calls
from stepscope.findings.claims import Claim, Time
from stepscope.findings.fixes import Fix, fix_of
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["unused_gradients"]

_SURE = 0.9
"""Part of the backward pass that goes at least, if nothing behind it needs a gradient."""
_WEIGHTS = 0.5
"""Most that the gradients of weights are of a backward pass: those of inputs take as many products."""
_FIX = fix_of(
    "backbone.requires_grad_(False)    # once, before training: all that the optimizer does not update",
    "with torch.no_grad(): features = backbone(x)    # or so, if nothing before it is trained",
)
_REFERENCE = fix_of(
    "reference.requires_grad_(False)    # once, before training",
    "with torch.no_grad(): known = reference(x)    # a reference or a teacher; keeps no activations either",
)
_SHARED = fix_of(
    "features.requires_grad_(False)    # once, before training; gradients still pass through it",
    "with torch.no_grad(): wanted = features(target)    # or so, if nothing before it is trained",
)
_DETACH = fix_of(
    "loss = criterion(discriminator(fake.detach()))    # cut the graph where nothing behind it is updated",
    "generator.requires_grad_(False)    # or so, around this loss",
)


@rule(category=Category.DEVICE)
def unused_gradients(
    mean_step: MeanStep,
    step_classes: Table[StepClass],
    summed_gradients: Table[SummedGradients],
    *,
    least_share: float = 0.03,
) -> Advice | None:
    """Gradients of some weights are never cleared, or cleared before an optimizer uses them.

    `zero_grad()` of an optimizer clears the gradients of its weights, and autograd keeps new ones as they
    are. In a step with one backward pass and one update, it adds only to gradients that nobody clears. In a
    step with several, gradients that are added in one pass and fresh in the next were cleared in between.

    Gain, if the gradients that are used come first in the backward pass, or the others belong to a copy of
    the model, such as a reference or a teacher: the part with the others goes.

    - at most: all of its work on the host and on the GPU.
    - at least: nine tenths of that.

    Gain, if the gradients that are not used come first: others may have to pass through these layers.

    - at most: all of that work.
    - at least: nothing.

    Gain, if the same weights are used several times in a pass, as those of a perceptual loss for a prediction
    and for its target, and some of these uses compute no gradient of their input: those go.

    - at most: all of their work, half of that of the other uses, and of what comes before in the pass, such
      as the loss, their share of the uses: it computes gradients for all of them.
    - at least: nine tenths of theirs.

    Gain, if they are mixed: gradients must still pass through these layers.

    - at most: half of that work, because only the gradients of the weights go.
    - at least: nothing.
    """
    usual = next((row for row in step_classes if row.step_class == 0), None)
    if usual is None or not usual.optimizer:
        return None
    several = (usual.backward_passes or 0) > 1
    added = _cleared(summed_gradients) if several else _kept(summed_gradients)
    if added is None or not added.fresh or added.steps < mean_step.steps - 1:
        return None
    (least_host, most_host), (least_device, most_device) = _going(added)
    parts = [min(1.0, mean_step.share(mean_step.per_step(host))) for host in (least_host, most_host)]
    goes = [min(mean_step.per_step(device), mean_step.busy_ns) for device in (least_device, most_device)]
    saving = fewer_calls(mean_step, (parts[0], parts[1]), (goes[0], goes[1]))
    if mean_step.gain(saving).high_share < least_share:
        return None
    return _advice(mean_step, added, saving, several=several)


def _advice(mean_step: MeanStep, added: SummedGradients, saving: Saving, *, several: bool) -> Advice:
    device_ns = min(mean_step.per_step(added.device_ns), mean_step.busy_ns)
    return Advice(
        title="Gradients are computed that no optimizer uses",
        because=f"{_why(mean_step, added, several=several)} The part of the backward pass with them takes "
        f"{units.duration(device_ns)} of GPU time.",
        saving=saving,
        certainty="likely",
        fix=_DETACH if several else _fix(added),
        check="stepscope show summed_gradients: nothing is added.",
        evidence={
            "added_per_step": mean_step.per_step(added.added),
            "fresh_per_step": mean_step.per_step(added.fresh),
            "fresh_first": added.fresh_first,
            "of_a_copy": added.of_a_copy,
            "uses": added.uses,
            "uses_that_end": added.ended,
            "device_ns": round(device_ns),
        },
        claims=frozenset({Claim(Time.STARVED), Claim(Time.DEVICE)}),
    )


def _going(added: SummedGradients) -> tuple[Bounds, Bounds]:
    """The time on the host that goes, at least and at most, and that of the GPU."""
    through = 1.0 if added.added_first and not added.ended else _WEIGHTS
    before = added.ended / added.uses if _shared(added) else 0.0
    host, device = (
        (_SURE * ended, ended + through * (whole - ended) + before * earlier)
        for whole, ended, earlier in (
            (added.host_ns, added.ended_host_ns, added.before_host_ns),
            (added.device_ns, added.ended_device_ns, added.before_device_ns),
        )
    )
    return host, device


def _shared(added: SummedGradients) -> bool:
    """Whether gradients must pass through some uses of the weights, but through others none need to."""
    return 0 < added.ended < added.uses


def _fix(added: SummedGradients) -> Fix:
    return _SHARED if _shared(added) else _REFERENCE if added.of_a_copy else _FIX


def _why(mean_step: MeanStep, added: SummedGradients, *, several: bool) -> str:
    kept = units.count(round(mean_step.per_step(added.added)))
    if several:
        return (
            f"Backward pass {added.backward_pass} of each step adds to {kept} gradients, and they are "
            "cleared before the next pass: no optimizer uses what it computes for these weights."
        )
    of_them = units.count(round(mean_step.per_step(added.added + added.fresh)))
    used = (
        f" They are used {added.uses} times in the pass, and nothing else needs a gradient "
        f"behind {added.ended} of these uses."
        if _shared(added)
        else ""
    )
    return (
        f"In each step {kept} of {of_them} gradients are added to those of earlier steps: no optimizer "
        f"clears them, so none updates these weights.{used}"
    )


def _kept(rows: Iterable[SummedGradients]) -> SummedGradients | None:
    """What adds to gradients that nobody clears, if each step has one backward pass."""
    return max(rows, key=lambda row: row.added, default=None)


def _cleared(rows: Iterable[SummedGradients]) -> SummedGradients | None:
    """The pass that adds to gradients that are fresh in the next one, as where a generator is not detached.

    The weights that an optimizer updates in between are fresh before; so these are others. The next pass may
    add to those, as that of a generator does to a critic's, where the numbers of both tell which are which.
    """
    for row, after in pairwise(rows):
        follows = after.backward_pass == row.backward_pass + 1
        others = not after.added and after.fresh >= row.added
        swapped = after.fresh == row.added != row.fresh == after.added
        if follows and row.added and row.fresh_first and (others or swapped):
            return row
    return None
