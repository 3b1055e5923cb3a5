"""Some steps take much longer than others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from statistics import mean, median, stdev

from stepscope import units
from stepscope.analyses.classed_steps import ClassedStep
from stepscope.analyses.compilations import Compilation
from stepscope.analyses.host_functions import HostFunction
from stepscope.analyses.loader_starts import LoaderStart
from stepscope.analyses.step_classes import StepClass
from stepscope.analyses.steps import Step
from stepscope.findings import Advice, Category, Saving, rule
from stepscope.findings._host_work import HostWork, host_works, saving_of
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.fixes import Change, fix_of, line
from stepscope.findings.mean_step import MeanStep
from stepscope.records import dataclass
from stepscope.tables import Table

__all__ = ["step_variance"]

_PARTS = tuple(one.name for one in fields(Step) if one.name.endswith("_ns"))[3:]
_HOST = ("runtime_ns", "cpu_ns", "other_ns")
"""Parts that recording slows down."""
_CAUSES = {
    "kernel_ns": ("kernels", "# sort batches by length, or pad them to a few sizes"),
    "memcpy_ns": ("copies", "# pin_memory=True, non_blocking=True; keep large reads out of the loop"),
    "memset_ns": ("fills", "# allocate and clear large buffers once"),
    "communication_ns": (
        "collectives",
        "# give all ranks the same work: sort or pad batches in the same way on each",
    ),
    "runtime_ns": (
        "runtime calls",
        "# look at: stepscope show allocations; stepscope show host_syncs",
    ),
    "dataloader_ns": (
        "waiting for data",
        fix_of(line(Change.WORKERS, "DataLoader(..., num_workers=8, prefetch_factor=4)")),
    ),
    "cpu_ns": ("operators on the host", "# keep evaluation, logging and checkpoints out of most steps"),
    "other_ns": (
        "Python between operators",
        """\
profile(..., with_stack=True)    # record once more: it names the functions that only the long steps call
torch._C._profiler._ExperimentalConfig(record_python_gc_info=True)    # and garbage collection""",
    ),
}
_LEAST_STEPS = 3
_CLEAR = 1.25
"""Long steps take at least this many times the median: a few steps always vary."""
_MOSTLY = 0.5
_LEAST_SHARE = 0.02
"""What long steps must add to the mean step to be worth a finding."""
_FIX_MORE = """\
if step % 1000 == 0:          # evaluate, log and save less often, or in another process
    evaluate(model)"""


@dataclass(frozen=True, slots=True)
class _Spread:
    """Slow steps against usual ones."""

    slow: Sequence[Step]
    usual: Sequence[Step]
    excess_ns: float
    """What the slow ones add to the mean step."""

    def grown(self) -> dict[str, float]:
        """By how much each part of a slow step is longer than in a usual one."""
        return {name: self._mean(self.slow, name) - self._mean(self.usual, name) for name in _PARTS}

    @staticmethod
    def _mean(steps: Iterable[Step], name: str) -> float:
        return float(mean(getattr(step, name) for step in steps))


@rule(category=Category.HOST)
def step_variance(  # noqa: PLR0913, PLR0917  # one parameter for each table
    mean_step: MeanStep,
    step_classes: Table[StepClass],
    classed_steps: Table[ClassedStep],
    steps_by_any: Table[Step],
    compilations: Table[Compilation],
    host_functions: Table[HostFunction],
    loader_starts: Table[LoaderStart],
    *,
    variation_share: float = 0.10,
) -> Advice | None:
    """Steps that do the same work vary in length, or some steps do extra work.

    Gain, where stacks name a function that some steps call and that makes them long, such as `torch.save`:

    - at most: what the GPU waits for it, over all steps.
    - at least: four fifths of that, because it may be needed, but less often or in a thread.

    Gain, for steps that do the same work:

    - at most: their mean less their median.
    - at least: nothing, because it may be chance.

    Gain, for training steps that launch more kernels than the usual ones:

    - at most: what they add to the mean step.
    - at least: half of that, because the extra work may be needed, but less often.

    Steps during warm-up, the first step of a class, and steps in which something was compiled do not count.
    Workers of a DataLoader that are started for each epoch belong to loader-restarts.
    """
    compiled = {row.step for row in compilations}
    if work := _occasional(mean_step, host_functions, steps_by_any, compiled, loader_starts):
        return _calling(mean_step, work)
    classes = list(step_classes)
    if not classes or classes[0].steps < _LEAST_STEPS:
        return None

    def members(one: StepClass) -> list[Step]:
        return [row for row in _members(one, classed_steps, steps_by_any) if row.step not in compiled]

    usual = _settled(members(classes[0]))
    if len(usual) < _LEAST_STEPS:
        return None
    unusual = [one for one in classes[1:] if _does_more(one, classes[0], variation_share)]
    more = [row for one in unusual for row in members(one)]
    later = [row for row in more if row.start_ns > min(one.start_ns for one in steps_by_any)]
    if later:
        # The first recorded step may be one of them, and counts, but with the length of the later ones.
        excess = mean(row.dur_ns for row in later) - mean(row.dur_ns for row in usual)
        spread = _Spread(later, usual, mean_step.per_step(excess * len(more)))
        enough = mean_step.share(spread.excess_ns) >= _LEAST_SHARE
        return _more_work(mean_step, spread, classes[0]) if enough else None
    times = [row.dur_ns for row in usual]
    if stdev(times) <= variation_share * mean(times):
        return None
    spread = _split(usual, mean_step)
    if mean(row.dur_ns for row in spread.slow) < _CLEAR * median(times):
        return None
    return _unlike(mean_step, spread, times) if mean_step.share(spread.excess_ns) >= _LEAST_SHARE else None


def _occasional(
    mean_step: MeanStep,
    rows: Iterable[HostFunction],
    steps: Iterable[Step],
    compiled: set[int | None],
    loader_starts: Iterable[LoaderStart],
) -> HostWork | None:
    """The most expensive function that only some steps call; what the first one calls may be start-up.

    One in which workers are started for most of its time belongs to loader-restarts.
    """
    first = min(((row.start_ns, row.step) for row in steps), default=(0, None))[1]
    starting_ns = sum(row.whole_ns + row.ending_ns for row in loader_starts if row.ends_workers)
    for work in host_works(rows):
        step = work.row.longest_step
        if starting_ns > _MOSTLY * work.row.outer_idle_ns:
            continue
        if work.occasional(mean_step) and step != first and step not in compiled:
            return work if work.row.share >= _LEAST_SHARE else None
    return None


def _calling(mean_step: MeanStep, work: HostWork) -> Advice:
    row = work.row
    longest = units.duration(row.longest_step_ns or 0)
    number = units.count(row.long_steps or 0)
    return Advice(
        title=f"Some steps are long: they call {work.title}",
        because=f"`{work.called}` runs in {number} of {units.count(mean_step.steps)} steps, in step "
        f"{row.longest_step} for {longest}. {work.story(mean_step)}",
        saving=saving_of(mean_step, [work]),
        certainty="likely",
        fix=fix_of(line(Change.SAVE_LESS, "if step % 1000 == 0: ...    # less often"), work.kind.fix),
        check="stepscope show host_functions: less time in its longest step.",
        evidence={
            "function": row.function,
            "steps_with_it": row.long_steps,
            "longest_step_ns": row.longest_step_ns,
            "excess_ns": round(mean_step.per_step(row.outer_idle_ns)),
        },
        claims=frozenset({Claim(Time.WAITED, Part.VARIANCE), Claim(Time.STARVED, Part.VARIANCE)}),
        locations=work.locations(mean_step),
    )


def _members(
    like: StepClass, classed_steps: Iterable[ClassedStep], steps_by_any: Iterable[Step]
) -> list[Step]:
    """The steps of a class, in order of time."""
    numbers = {row.step for row in classed_steps if row.step_class == like.step_class}
    return sorted((row for row in steps_by_any if row.step in numbers), key=lambda row: row.start_ns)


def _settled(steps: Sequence[Step]) -> Sequence[Step]:
    """The steps without the first, and without those after it that are longer than all that follow."""
    steps = steps[1:]
    while len(steps) > 1 and steps[0].dur_ns > 1.1 * max(step.dur_ns for step in steps[1:]):
        steps = steps[1:]
    return steps


def _does_more(one: StepClass, usual: StepClass, variation_share: float) -> bool:
    """Whether its steps train like the usual ones, and do extra work."""
    alike = (one.kind, one.backward_passes, one.optimizer) == (
        usual.kind, usual.backward_passes, usual.optimizer
    )  # fmt: skip
    trains = usual.optimizer or bool(usual.backward_passes)
    longer = one.mean_ns > (1 + variation_share) * usual.mean_ns
    return alike and trains and longer and one.kernels_min > usual.kernels_max


def _split(steps: Sequence[Step], mean_step: MeanStep) -> _Spread:
    middle = median(step.dur_ns for step in steps)
    average = mean(step.dur_ns for step in steps)
    slow = [step for step in steps if step.dur_ns > average]
    usual = [step for step in steps if step.dur_ns <= middle]
    return _Spread(slow, usual, max(0.0, average - middle) * len(steps) / mean_step.steps)


def _saving(spread: _Spread, mean_step: MeanStep, least: float) -> Saving:
    """The excess, divided by what grew: recording slows down the host's part of it."""
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
        title="Some steps do extra work",
        because=f"Of {mean_step.steps} steps, {len(spread.slow)} ({numbers}) launched more than the usual "
        f"{units.count(usual.kernels_max)} kernels and took {units.duration(longer)} longer, mostly for "
        f"{part}. That adds {units.duration(spread.excess_ns)} to the mean step.",
        saving=_saving(spread, mean_step, 0.5),
        certainty="likely",
        fix=fix_of(line(Change.SAVE_LESS, _FIX_MORE)),
        check="stepscope show step_classes: one class of steps, or far fewer steps in the second.",
        evidence=_evidence(spread, mean_step) | {"longer_ns": round(longer)},
        claims=frozenset({Claim(Time.WAITED, Part.VARIANCE), Claim(Time.STARVED, Part.VARIANCE)}),
    )


def _unlike(mean_step: MeanStep, spread: _Spread, times: Sequence[int]) -> Advice:
    part, fix = _CAUSES[max(spread.grown().items(), key=lambda one: one[1])[0]]
    return Advice(
        title="Steps that do the same work vary in length",
        because=f"{len(times)} steps with the same work take between {units.duration(min(times))} and "
        f"{units.duration(max(times))} (standard deviation {units.share(stdev(times) / mean(times))}). In "
        f"the long ones ({_numbers(spread.slow)}), most of the extra time is {part}.",
        saving=_saving(spread, mean_step, 0.0),
        certainty="possible",
        fix=fix,
        check="stepscope show step_classes: a variation below 10 %.",
        evidence=_evidence(spread, mean_step) | {"variation_share": stdev(times) / mean(times)},
        claims=frozenset({Claim(Time.WAITED, Part.VARIANCE), Claim(Time.STARVED, Part.VARIANCE)}),
    )


def _numbers(steps: Sequence[Step]) -> str:
    numbers = ", ".join(str(step.step) for step in steps[:5]) + (", …" if len(steps) > 5 else "")
    return f"step {numbers}" if len(steps) == 1 else f"steps {numbers}"


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
