"""Which steps are alike: as many passes over batches of the same shape, launched alike."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from stepscope.analyses._batches import PASS_COLUMNS, Passes, passes_of
from stepscope.analyses._in_steps import STEP_COLUMNS, UPDATES, begun_in_steps
from stepscope.analyses.iterations import Iteration, iterations
from stepscope.records import dataclass
from stepscope.store.trace import Trace

__all__ = ["ALIKE_READS", "Like", "Member", "Traits", "like_steps"]

ALIKE_READS = {"steps": STEP_COLUMNS, **PASS_COLUMNS}
TOLERANCE = 0.05
"""By which part the kernels of like steps may differ in number: a step that also logs has a few more."""


@dataclass(frozen=True, slots=True)
class Traits:
    """What like steps have in common, besides nearly as many kernels."""

    kind: str | None
    backward_passes: int | None
    batch: str | None
    launched_by: str | None
    optimizer: bool


@dataclass(frozen=True, slots=True)
class Member:
    """A step and what is known of its passes."""

    step: Iteration
    passes: Passes | None


@dataclass(frozen=True, slots=True)
class Like:
    """A class of like steps, in order of time."""

    traits: Traits
    members: list[Member]


def like_steps(trace: Trace, tolerance: float = TOLERANCE, *, by_batch: bool = True) -> list[Like]:
    """All steps in classes, the class with the most steps first; on demand whatever their batches."""
    alike: defaultdict[Traits, list[Member]] = defaultdict(list)
    for traits, member in _all_steps(trace):
        alike[traits if by_batch else replace(traits, batch=None)].append(member)
    classes = [
        Like(traits, group) for traits, members in alike.items() for group in _by_kernels(members, tolerance)
    ]
    return sorted(classes, key=lambda one: (-len(one.members), one.members[0].step.start_ns))


def _all_steps(trace: Trace) -> list[tuple[Traits, Member]]:
    """Every step with its traits; worked out once for a trace."""

    def work_out() -> list[tuple[Traits, Member]]:
        steps = list(iterations(trace))
        has_any = trace.may_have_name(r"^Optimizer\.step#")
        updates = begun_in_steps(trace, UPDATES, "1 AS found") if has_any else []
        optimized = {row["place"] for row in updates}
        found: list[tuple[Traits, Member]] = []
        for place, (step, passes) in enumerate(zip(steps, passes_of(trace, steps), strict=True)):
            backward = passes.backward if passes else None
            traits = Traits(step.kind, backward, _batch(step, passes), step.launched_by, place in optimized)
            found.append((traits, Member(step, passes)))
        return found

    return cast("list[tuple[Traits, Member]]", trace.once(_all_steps, work_out))


def _batch(step: Iteration, passes: Passes | None) -> str | None:
    if step.kind in ("decode", "draft") and step.requests is not None:
        return f"{step.requests} requests"
    if step.kind in ("prefill", "mixed") and step.tokens:
        return f"up to {1 << (step.tokens - 1).bit_length()} tokens"
    if passes is None or not passes.batches:
        return None
    shapes = [str(batch) for batch in passes.batches]
    return shapes[0] if len(set(shapes)) == 1 else ", ".join(shapes)


def _by_kernels(members: Sequence[Member], tolerance: float) -> list[list[Member]]:
    """Groups of steps in which none has more kernels than the tolerance above the fewest."""
    groups: list[list[Member]] = []
    for member in sorted(members, key=lambda one: (one.step.kernels, one.step.start_ns)):
        if groups and member.step.kernels <= groups[-1][0].step.kernels * (1 + tolerance):
            groups[-1].append(member)
        else:
            groups.append([member])
    return [sorted(group, key=lambda one: one.step.start_ns) for group in groups]
