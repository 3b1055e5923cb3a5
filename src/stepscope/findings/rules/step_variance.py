"""Some steps take much longer than others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from statistics import mean, median, stdev

from stepscope import units
from stepscope.analyses.breakdowns import Breakdown
from stepscope.analyses.classed_steps import ClassedStep
from stepscope.analyses.compilations import Compilation
from stepscope.analyses.step_classes import StepClass
from stepscope.findings import Advice, Category, Saving, rule
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["step_variance"]

_PARTS = tuple(one.name for one in fields(Breakdown) if one.name.endswith("_ns"))[2:]
_HOST = ("runtime_ns", "cpu_ns", "other_ns")
"""Parts that recording stretches."""
_CAUSES = {
    "kernel_ns": ("kernels", "# sort batches by length, or pad them to a few sizes"),
    "memcpy_ns": ("copies", "# pin_memory=True, non_blocking=True; keep large reads out of the loop"),
    "memset_ns": ("fills", "# allocate and clear large buffers once"),
    "communication_ns": ("collectives", "# give every rank as much work: sort or pad batches alike on all"),
    "runtime_ns": (
        "calls of the runtime",
        "# look at: stepscope show allocations; stepscope show host_syncs",
    ),
    "dataloader_ns": ("waiting for data", "DataLoader(..., num_workers=8, prefetch_factor=4)"),
    "cpu_ns": ("operators on the host", "# keep evaluation, logging and checkpoints out of most steps"),
    "other_ns": (
        "Python between operators",
        "gc.disable()    # and gc.collect() once in a while, if it is that",
    ),
}
_LEAST_STEPS = 3
_CLEAR = 1.25
"""Long steps are at least so many times as long as the median: a few steps always scatter."""
_LEAST_SHARE = 0.02
"""What long steps must cost the mean step to be worth a word."""
_FIX_MORE = """\
if step % 1000 == 0:          # evaluate, log and save more seldom, or in another process
    evaluate(model)"""


@dataclass(frozen=True, slots=True)
class _Spread:
    """Slow steps against usual ones."""

    slow: Sequence[Breakdown]
    usual: Sequence[Breakdown]
    excess_ns: float
    """What the slow ones cost the mean step."""

    def grown(self) -> dict[str, float]:
        """By how much each part of a slow step is longer than that of a usual one."""
        return {name: self._mean(self.slow, name) - self._mean(self.usual, name) for name in _PARTS}

    @staticmethod
    def _mean(steps: Iterable[Breakdown], name: str) -> float:
        return float(mean(getattr(step, name) for step in steps))


@rule(category=Category.HOST)
def step_variance(
    mean_step: MeanStep,
    step_classes: Table[StepClass],
    classed_steps: Table[ClassedStep],
    breakdowns: Table[Breakdown],
    compilations: Table[Compilation],
    *,
    variation_share: float = 0.10,
) -> Advice | None:
    """Steps that should be alike vary in length, or some of them do more than the others.

    Gain: what the long steps cost on average. For like steps that is the mean less the median at the most;
    at the least nothing, since the reason may be chance. For steps of training that launch more kernels than
    the usual ones it is how much longer they are, at the most, and at the least half of that: what they do
    besides may be needed, but more seldom. Steps at the beginning that get faster and faster, the first of a
    class, and those in which something was compiled do not count.
    """
    compiled = {row.step for row in compilations}
    classes = list(step_classes)
    if not classes or classes[0].steps < _LEAST_STEPS:
        return None
    usual = _settled(
        [row for row in _members(classes[0], classed_steps, breakdowns) if row.step not in compiled]
    )
    if len(usual) < _LEAST_STEPS:
        return None
    more = [
        row
        for one in classes[1:]
        if _does_more(one, classes[0], variation_share)
        for row in _members(one, classed_steps, breakdowns)
        if row.step not in compiled
    ]
    later = [row for row in more if row.start_ns > min(one.start_ns for one in breakdowns)]
    if later:
        # The first recorded step may be one of them, and counts, but with the length of the later ones.
        excess = mean(row.dur_ns for row in later) - mean(row.dur_ns for row in usual)
        spread = _Spread(later, usual, mean_step.per_step(excess * len(more)))
        return (
            _more_work(mean_step, spread, classes[0])
            if mean_step.share(spread.excess_ns) >= _LEAST_SHARE
            else None
        )
    times = [row.dur_ns for row in usual]
    if stdev(times) <= variation_share * mean(times):
        return None
    spread = _split(usual, mean_step)
    if mean(row.dur_ns for row in spread.slow) < _CLEAR * median(times):
        return None
    return _unlike(mean_step, spread, times) if mean_step.share(spread.excess_ns) >= _LEAST_SHARE else None


def _members(
    like: StepClass, classed_steps: Iterable[ClassedStep], breakdowns: Iterable[Breakdown]
) -> list[Breakdown]:
    """The steps of a class, in order of time."""
    numbers = {row.step for row in classed_steps if row.step_class == like.step_class}
    return sorted((row for row in breakdowns if row.step in numbers), key=lambda row: row.start_ns)


def _settled(steps: Sequence[Breakdown]) -> Sequence[Breakdown]:
    """The steps without the first, and without those after it that are longer than all that follow."""
    steps = steps[1:]
    while len(steps) > 1 and steps[0].dur_ns > 1.1 * max(step.dur_ns for step in steps[1:]):
        steps = steps[1:]
    return steps


def _does_more(one: StepClass, usual: StepClass, variation_share: float) -> bool:
    """Whether its steps train like the usual ones, and do something besides."""
    alike = (one.kind, one.backward_passes, one.optimizer) == (
        usual.kind, usual.backward_passes, usual.optimizer
    )  # fmt: skip
    trains = usual.optimizer or bool(usual.backward_passes)
    longer = one.mean_ns > (1 + variation_share) * usual.mean_ns
    return alike and trains and longer and one.kernels_min > usual.kernels_max


def _split(steps: Sequence[Breakdown], mean_step: MeanStep) -> _Spread:
    middle = median(step.dur_ns for step in steps)
    average = mean(step.dur_ns for step in steps)
    slow = [step for step in steps if step.dur_ns > average]
    usual = [step for step in steps if step.dur_ns <= middle]
    return _Spread(slow, usual, max(0.0, average - middle) * len(steps) / mean_step.steps)


def _saving(spread: _Spread, mean_step: MeanStep, least: float) -> Saving:
    """The excess by what grew: recording stretches the host's part of it."""
    grown = {name: max(0.0, ns) for name, ns in spread.grown().items()}
    whole = sum(grown.values())
    host = spread.excess_ns * sum(grown[name] for name in _HOST) / whole if whole else 0.0
    host = min(host, mean_step.starved_ns)
    rest = spread.excess_ns - host
    return Saving(starved_ns=(least * host, host), waited_ns=(least * rest, rest))


def _more_work(mean_step: MeanStep, spread: _Spread, usual: StepClass) -> Advice:
    longer = mean(step.dur_ns for step in spread.slow) - mean(step.dur_ns for step in spread.usual)
    part, _ = _CAUSES[max(spread.grown().items(), key=lambda one: one[1])[0]]
    numbers = _numbers(spread.slow)
    return Advice(
        title="Some steps do more than train",
        because=f"Some of {mean_step.steps} steps ({numbers}) launch more than the usual "
        f"{units.count(usual.kernels_max)} kernels and take {units.duration(longer)} longer, most of it "
        f"{part}: {units.duration(spread.excess_ns)} for each step on average.",
        saving=_saving(spread, mean_step, 0.5),
        certainty="likely",
        fix=_FIX_MORE,
        check="stepscope show step_classes: one class of steps, or far fewer in the second.",
        evidence=_evidence(spread, mean_step) | {"longer_ns": round(longer)},
        claims=frozenset({Claim(Time.WAITED, Part.VARIANCE), Claim(Time.STARVED, Part.VARIANCE)}),
    )


def _unlike(mean_step: MeanStep, spread: _Spread, times: Sequence[int]) -> Advice:
    part, fix = _CAUSES[max(spread.grown().items(), key=lambda one: one[1])[0]]
    return Advice(
        title="Like steps vary in length",
        because=f"{len(times)} steps that do the same take {units.duration(min(times))} to "
        f"{units.duration(max(times))} (they deviate by {units.share(stdev(times) / mean(times))}); what "
        f"grows most in the long ones ({_numbers(spread.slow)}) is {part}.",
        saving=_saving(spread, mean_step, 0.0),
        certainty="possible",
        fix=fix,
        check="stepscope show step_classes: variation is below 10 %.",
        evidence=_evidence(spread, mean_step) | {"variation_share": stdev(times) / mean(times)},
        claims=frozenset({Claim(Time.WAITED, Part.VARIANCE), Claim(Time.STARVED, Part.VARIANCE)}),
    )


def _numbers(steps: Sequence[Breakdown]) -> str:
    return ", ".join(str(step.step) for step in steps[:5]) + (", …" if len(steps) > 5 else "")


def _evidence(spread: _Spread, mean_step: MeanStep) -> dict[str, int | float | str | bool | None]:
    grown = max(spread.grown().items(), key=lambda one: one[1])
    return {
        "excess_ns": round(spread.excess_ns),
        "excess_share": mean_step.share(spread.excess_ns),
        "slow_steps": len(spread.slow),
        "usual_ns": round(mean(step.dur_ns for step in spread.usual)),
        "slow_ns": round(mean(step.dur_ns for step in spread.slow)),
        "grown_most": grown[0].removesuffix("_ns"),
        "grown_ns": round(grown[1]),
    }
