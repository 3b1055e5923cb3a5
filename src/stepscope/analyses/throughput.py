"""How much the program gets done in a second."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean
from typing import Annotated

from stepscope.analyses import analysis
from stepscope.analyses._alike import ALIKE_READS, Member, like_steps
from stepscope.analyses._batches import Batch
from stepscope.analyses._windows import how_steps_were_found
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["Throughput", "throughput"]


@dataclass(frozen=True, slots=True)
class Throughput:
    """What one rank gets done in a second, in one unit."""

    rank: Annotated[int, "Rank that recorded the profile; others are not counted."]
    unit: Annotated[str, "steps, samples or tokens."]
    per_second: Annotated[float | None, "How many in a second of recorded time; NULL if unknown."]
    per_step: Annotated[float | None, "How many in a step."]
    step_ns: Annotated[float, "Mean time of the steps counted: those of the most frequent class."]
    steps: Annotated[int, "How many steps that class has."]
    basis: Annotated[str, "Where the number per step comes from, or why it is unknown."]


_NO_STEPS = "no steps are known in the profile"


@analysis(reads=ALIKE_READS)
def throughput(
    trace: Trace,
    *,
    samples_per_step: Annotated[int | None, "Samples that this rank handles in a step."] = None,
    tokens_per_step: Annotated[int | None, "Tokens that this rank handles in a step."] = None,
) -> Table[Throughput]:
    """Says how many steps, samples and tokens per second the program processes, and how that is known.

    It counts the steps of the most frequent class (as in `step_classes`, but with any batch) by their mean
    recorded time, which includes the cost of the profiler. Samples and tokens per step come from options,
    from the names of a serving engine's iterations, or from the shape of what enters the model if shapes
    were recorded.
    """
    classes = like_steps(trace, by_batch=False)
    if not classes:
        return Table.of(Throughput, [], ["The profile has no events."])
    members = classes[0].members
    step_ns = mean(member.step.dur_ns for member in members)
    counts = {
        "steps": (1.0, "counted") if members[0].step.source != "trace" else (None, _NO_STEPS),
        "samples": _count(members, "samples", samples_per_step),
        "tokens": _count(members, "tokens", tokens_per_step),
    }
    rows = [
        Throughput(
            rank=trace.rank,
            unit=unit,
            per_second=per_step * 1e9 / step_ns if per_step is not None and step_ns else None,
            per_step=per_step,
            step_ns=float(step_ns),
            steps=len(members),
            basis=basis,
        )
        for unit, (per_step, basis) in counts.items()
    ]
    whole = sum(len(one.members) for one in classes)
    counted = f"Counted: {len(members)} of {whole} steps, those of the most frequent class, as recorded."
    return Table.of(Throughput, rows, [*how_steps_were_found(trace), counted])


def _count(members: Sequence[Member], unit: str, given: int | None) -> tuple[float | None, str]:
    """How many samples or tokens a step handles, and how that is known or why not."""
    if given is not None:
        return float(given), "given"
    steps = [member.step for member in members]
    if steps[0].source == "trace":
        return None, f"{_NO_STEPS}: give --{unit}-per-step to take the whole for one"
    if all(step.kind_basis == "annotation" for step in steps):
        tokens = [step.tokens for step in steps if step.tokens is not None]
        if unit == "samples":
            return None, "a request takes many iterations"
        if len(tokens) == len(steps):
            return float(mean(tokens)), "names of the iterations"
    passes = [member.passes for member in members]
    if any(one is None for one in passes):
        return None, f"no operators in the profile: give --{unit}-per-step"
    entering = [(one.batches, max(1, one.backward)) for one in passes if one is not None]
    if not any(batches for batches, _ in entering):
        return (
            None,
            f"nothing tells what enters the model (record_shapes=True may): give --{unit}-per-step",
        )
    if any(len(batches) != forwards for batches, forwards in entering):
        return None, f"not every forward pass tells what enters it: give --{unit}-per-step"
    return _entered([batches for batches, _ in entering], unit)


def _entered(steps: Sequence[Sequence[Batch]], unit: str) -> tuple[float | None, str]:
    """What entered the model, if all forward passes tell it in the same way."""
    first = steps[0][0]
    if any(batch.op != first.op for batches in steps for batch in batches):
        return None, f"forward passes begin in different ways: give --{unit}-per-step"
    counts = [
        [batch.samples if unit == "samples" else batch.tokens for batch in batches] for batches in steps
    ]
    if any(count is None for step in counts for count in step):
        what = "packed tokens" if unit == "samples" else "no token numbers"
        return None, f"{what} enter the model (first {first.op}): give --{unit}-per-step"
    per_step = mean(sum(count for count in step if count is not None) for step in counts)
    passes = f", {len(steps[0])} passes a step" if len(steps[0]) > 1 else ""
    others = " and others" if any(batch != first for batches in steps for batch in batches) else ""
    return float(per_step), f"inferred from {first}{others} into the first {first.op}{passes}"
