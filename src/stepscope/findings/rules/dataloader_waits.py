"""The step waits for its batch."""

from __future__ import annotations

import math
from collections.abc import Iterable

from stepscope import units
from stepscope.analyses.annotations import Annotation
from stepscope.analyses.changed_steps import ChangedStep
from stepscope.analyses.host_functions import HostFunction
from stepscope.analyses.loader_starts import WITH_WORKERS
from stepscope.analyses.step_ops import StepOp
from stepscope.analyses.steps import Step
from stepscope.findings import Advice, Category, Figure, Location, Saving, locations_of, rule
from stepscope.findings._copying import MANY_COPIES
from stepscope.findings._host_work import FAST_PROCESSOR, HostWork, host_works
from stepscope.findings._waits import of_shares
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.fixes import Change, Fix, FixLine, fix_of, line
from stepscope.findings.mean_step import MeanStep
from stepscope.patterns import late_pattern
from stepscope.records import dataclass
from stepscope.tables import Table

__all__ = ["dataloader_waits"]

# torch.utils.data names the range after the class of its iterator; that tells whether there are workers.
_LOADER = late_pattern(r"enumerate\((DataLoader|DataPipe)\)")
_LOADING = """\
loader = DataLoader(dataset, ..., num_workers={workers}, prefetch_factor=4,
                    persistent_workers=True, pin_memory=True)"""
_WHOLE_BATCHES = """\
batches = BatchSampler(RandomSampler(dataset), batch_size, drop_last=True)
loader = DataLoader(dataset, sampler=batches, batch_size=None)    # dataset[indices]: one index for a batch"""
_ON_HOST = """\
return torch.as_tensor(wave), label    # in __getitem__: no .to("cuda"), which a worker cannot do either"""
_SENDS = ("aten::to", "aten::_to_copy", "aten::copy_")
_TAKES = ("aten::select", "aten::index", "aten::slice", "aten::narrow", "aten::unbind")
_MANY_TAKEN = 64
"""Operators of a step that each take one sample from a tensor."""
_FEW_WORKERS = 4
_MANY_WORKERS = 16
_QUEUE_NS = 200_000
"""Taking a ready batch from the workers' queue takes about this long; more workers do not help."""
_BURST_SHARE = 0.8
_LEFT = 0.8
"""At least this part of what a simulation leaves of a step remains."""


@dataclass(frozen=True, slots=True)
class _Loading:
    """What loading costs a step, without the first recorded one, in which workers start."""

    wait_ns: float
    """The host loaded or waited for data, and the GPU was idle."""
    host_ns: float
    """The same, whether or not the GPU was idle."""
    worst_share: float
    """The largest part of the wait that is in one step."""
    worst_step: int
    steps: int
    only: bool
    """Whether only one step was recorded, so that the first could not be left out."""


@dataclass(frozen=True, slots=True)
class _Samples:
    """Samples that the loader takes from tensors one by one."""

    taken: float
    """In a step."""
    on_device: bool
    """Whether the tensors are on a GPU: then no worker can load them."""
    sent: float
    """Tensors of a step that the loader copies to the GPU or from there."""

    @classmethod
    def of(cls, step_ops: Iterable[StepOp]) -> _Samples:
        ops = [op for op in step_ops if op.phase == "dataloader" and op.within is None]
        taken = sum(op.per_step for op in ops if op.name in _TAKES)
        sent = sum(op.calls and op.launches * op.per_step / op.calls for op in ops if op.name in _SENDS)
        return cls(taken, any(op.launches for op in ops) and sent < MANY_COPIES, sent)

    @property
    def many(self) -> bool:
        return self.taken >= _MANY_TAKEN

    @property
    def sends(self) -> bool:
        return self.sent >= MANY_COPIES

    @property
    def story(self) -> str:
        """A sentence about them, with a space before it; nothing where they are few."""
        if self.sends:
            sent = units.count(round(self.sent))
            return (
                f" It copies {sent} tensors a step to the GPU, one by one, which worker processes cannot do."
            )
        if not self.many:
            return ""
        where = "tensors on the GPU" if self.on_device else "tensors"
        taken = units.count(round(self.taken))
        return f" It takes samples one by one from {where}: {taken} operators a step."


@rule(category=Category.INPUT, yields_to=("scarce_cpus", "loader_restarts"))
def dataloader_waits(  # noqa: PLR0913  # one parameter for each table
    mean_step: MeanStep,
    steps_by_any: Table[Step],
    annotations: Table[Annotation],
    step_ops: Table[StepOp],
    changed_steps_by_no_loader: Table[ChangedStep],
    host_functions: Table[HostFunction],
    *,
    finding_share: float = 0.10,
    note_share: float = 0.05,
) -> Advice | None:
    """The step waits for the data loader while the GPU is idle.

    Gain:

    - at most: all of the wait, because workers that keep up hide it. Without workers, loading while the GPU
      was busy becomes a head start for the host as well, and recording is taken not to have stretched it. In
      any case four fifths of what a simulation without loading leaves of the step remain.
    - at least, with workers: half of the wait, with twice as many workers.
    - at least, without workers: the wait, less what four workers as fast as this process cannot load in the
      rest of the step, or less what they slow the host down because they take cores from it. If all four
      have to work all the time, the host's part of the step may take half as long again.
    - at least nothing: if the wait is below `finding_share`, or nearly all of it is in a single step.

    Waits in the first recorded step do not count: workers start in it.
    """
    loaders = [row for row in annotations if row.name and _LOADER.match(row.name)]
    loading = _loading_of(steps_by_any, mean_step, sum(row.host_ns for row in loaders))
    if not loaders or loading is None or mean_step.share(loading.wait_ns) < note_share:
        return None
    workers = WITH_WORKERS in (max(loaders, key=lambda row: row.host_ns).name or "")
    batches = mean_step.per_step(sum(row.calls for row in loaders))
    if workers and loading.wait_ns < batches * _QUEUE_NS:
        return None
    burst = loading.worst_share > _BURST_SHARE and (loading.steps >= 3 or (workers and loading.only))
    vague = burst or mean_step.share(loading.wait_ns) < finding_share
    saving = _shared_out(loading) if workers else _moved_out(mean_step, loading)
    if vague:
        saving = Saving(starved_ns=(0.0, saving.starved_ns[1]), waited_ns=(0.0, saving.waited_ns[1]))
    if not burst:
        saving = _within_simulation(mean_step, saving, changed_steps_by_no_loader)
    needed = _needed(loading, mean_step)
    work = None if workers else _work(host_functions, mean_step, loading)
    samples = _Samples.of(step_ops)
    story = (f" {work.story(mean_step)}" if work else "") + samples.story
    return Advice(
        title="The step waits for the DataLoader" + ("" if workers else " (num_workers=0)"),
        because=_because(mean_step, loading, workers=workers, burst=burst) + story,
        saving=saving,
        certainty="possible" if burst else "likely" if vague or workers else "certain",
        fix=_fix(needed, work, samples, workers=workers),
        check="stepscope show steps: the column dataloader is near 0 from the second step on.",
        evidence=_evidence(mean_step, loading, batches, None if workers else needed),
        claims=frozenset({Claim(Time.WAITED, Part.DATALOADER), Claim(Time.STARVED, Part.DATALOADER)}),
        locations=work.locations(mean_step) if work else () if workers else _locations(step_ops, mean_step),
    )


def _evidence(
    mean_step: MeanStep, loading: _Loading, batches: float, workers_needed: int | None
) -> dict[str, Figure]:
    """The figures; a loader that has workers needs none."""
    return {
        "wait_ns": round(loading.wait_ns),
        "wait_share": mean_step.share(loading.wait_ns),
        "loading_host_ns": round(loading.host_ns),
        "has_workers": workers_needed is None,
        "workers_needed": workers_needed,
        "batches_per_step": batches,
    }


def _work(rows: Iterable[HostFunction], mean_step: MeanStep, loading: _Loading) -> HostWork | None:
    """The function that most of the loading goes to, if stacks name one."""
    works = [work for work in host_works(rows) if work.row.phase == "dataloader"]
    large = [work for work in works if mean_step.per_step(work.row.outer_idle_ns) > loading.wait_ns / 2]
    return large[0] if large else None


def _loading_of(steps_by_any: Iterable[Step], mean_step: MeanStep, host_ns: int) -> _Loading | None:
    """What loading costs, as parts of the mean step: the first one may be longer for other reasons."""
    rows = list(steps_by_any)
    steady = rows[1:] or rows
    waits = [row.dataloader_ns for row in steady]
    if not sum(waits):
        return None
    worst = max(steady, key=lambda row: row.dataloader_ns)
    wait_ns = mean_step.step_ns * sum(waits) / sum(row.dur_ns for row in steady)
    return _Loading(
        wait_ns=wait_ns,
        host_ns=max(mean_step.per_step(host_ns), wait_ns),
        worst_share=worst.dataloader_ns / sum(waits),
        worst_step=worst.step,
        steps=len(steady),
        only=len(rows) == 1,
    )


def _shared_out(loading: _Loading) -> Saving:
    """More workers."""
    return Saving(waited_ns=(loading.wait_ns / 2, loading.wait_ns))


def _moved_out(mean_step: MeanStep, loading: _Loading) -> Saving:
    """Workers instead of the training process."""
    wait, rest = loading.wait_ns, max(1.0, mean_step.step_ns - loading.wait_ns)
    behind = loading.host_ns / _FEW_WORKERS - rest
    slowed = max(0.0, rest - mean_step.busy_ns) / 2 * min(1.0, loading.host_ns / rest / _FEW_WORKERS)
    ahead = max(0.0, min(loading.host_ns - wait, mean_step.starved_ns - wait))
    low = max(0.0, wait - max(0.0, behind, slowed))
    steady = (
        wait * (1 - mean_step.unprofiled_starved_ns[1] / mean_step.starved_ns)
        if mean_step.starved_ns
        else 0.0
    )
    starved = min(wait + ahead, mean_step.starved_ns) if mean_step.device else wait
    return Saving(starved_ns=(min(low, starved), starved), waited_ns=(0.0, steady))


def _within_simulation(mean_step: MeanStep, saving: Saving, changed_steps: Table[ChangedStep]) -> Saving:
    """A saving that leaves most of what a simulation without loading leaves."""
    gain = mean_step.gain(saving)
    left = [_LEFT * (1 - row.gain_high_share) for row in changed_steps]
    most = max(gain.low_share, 1 - min(left, default=0.0))
    return saving if most >= gain.high_share else of_shares(mean_step, gain.low_share, most)


def _needed(loading: _Loading, mean_step: MeanStep) -> int:
    """Workers that load a batch in the time that the rest of a step takes, and one to spare."""
    rest = mean_step.step_ns - loading.wait_ns
    asked = math.ceil(loading.host_ns / rest) + 1 if rest > 0 else _MANY_WORKERS
    return max(2, min(asked, _MANY_WORKERS))


def _because(mean_step: MeanStep, loading: _Loading, *, workers: bool, burst: bool) -> str:
    meanwhile = " while the GPU is idle" if mean_step.device else ""
    text = (
        f"The loop waits {units.duration(loading.wait_ns)} of a step "
        f"({units.share(mean_step.share(loading.wait_ns))}) for its next batch{meanwhile}. "
    )
    if burst:
        why = "workers started for a new epoch, or one batch was slow"
        return f"{text}Nearly all of that is in step {loading.worst_step}: {why}."
    if workers:
        return f"{text}The loader has worker processes, but they do not keep up."
    made = units.duration(loading.host_ns)
    return f"{text}The process loads the batches itself (num_workers=0), which takes {made} a step."


def _fix(needed: int, work: HostWork | None, samples: _Samples, *, workers: bool) -> Fix:
    if samples.many and samples.on_device:
        return fix_of(_WHOLE_BATCHES)
    if workers:
        return fix_of(
            line(Change.WORKERS, _LOADING.format(workers="2 * num_workers"), workers="2 * workers"),
            "# if all cores are busy: make items cheaper (decode and resize beforehand, augment on the GPU)",
        )
    lines: list[str | FixLine] = [
        *([_ON_HOST] if samples.sends else []),
        *([_WHOLE_BATCHES] if samples.many else []),
        line(Change.WORKERS, _LOADING.format(workers=needed), workers=needed),
        line(Change.PINNED, "batch = batch.to(device, non_blocking=True)"),
    ]
    prepares = work and work.within("transformers/pipelines")
    return fix_of(*lines, FAST_PROCESSOR) if prepares else fix_of(*lines)


def _locations(step_ops: Iterable[StepOp], mean_step: MeanStep) -> tuple[Location, ...]:
    """The user's functions that load the items."""
    frames: dict[str | None, int] = {}
    for row in step_ops:
        if row.phase == "dataloader" and row.within is None:
            frames[row.user_frame] = frames.get(row.user_frame, 0) + row.host_ns
    ordered = sorted(frames.items(), key=lambda one: -one[1])
    return locations_of((frame, f"{units.duration(mean_step.per_step(ns))} a step") for frame, ns in ordered)
