"""A loader has more workers than there are CPUs for them."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.data_loaders import DataLoader
from stepscope.findings import Advice, Category, Saving, rule
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.fixes import Change, fix_of, line
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["scarce_cpus"]

_FEWEST = 0.5
"""CPUs that are left to the workers where the program itself needs all there are."""


@rule(category=Category.INPUT)
def scarce_cpus(
    mean_step: MeanStep, data_loaders: Table[DataLoader], *, least_share: float = 0.02
) -> Advice | None:
    """The step waits for workers of the DataLoader that have fewer CPUs than they are.

    Gain: workers that share a CPU take turns, and more of them load nothing more.

    - at most: the wait for batches, measured without the profiler, as far as a CPU for each worker can
      shorten it: workers on so many more CPUs load in less time by the same factor. The host itself is taken
      to need one CPU.
    - at least: nothing, because workers may wait for the disk or the network, which no CPU helps.
    """
    loaders = [row for row in data_loaders if row.num_workers and row.batches_per_step]
    cpus = next((row.available_cpus for row in loaders if row.available_cpus), None)
    workers = sum(row.num_workers or 0 for row in loaders)
    if not loaders or cpus is None or workers + 1 <= cpus:
        return None
    waited = float(sum(row.waited_ns or 0 for row in loaders))
    most = min(waited, mean_step.step_ns)
    if mean_step.device:
        most = min(most, mean_step.starved_ns)
    left, fewer = max(_FEWEST, cpus - 1), max(1, int(cpus) - 1)
    saved = min(most, mean_step.step_ns * max(0.0, 1 - left / workers))
    if mean_step.share(saved) < least_share:
        return None
    return Advice(
        title="The DataLoader has more workers than CPUs",
        because=f"The loaders have {units.counted(workers, 'worker')}, and the program may use "
        f"{units.counted(cpus, 'CPU')} for them and itself. A step without the "
        f"profiler waits {units.duration(waited)} for its batch. More workers do not help: they take turns.",
        saving=Saving(waited_ns=(0.0, saved)),
        certainty="likely",
        fix=fix_of(
            line(
                Change.MACHINE,
                f"srun --cpus-per-task={workers + 1} ...    # docker run --cpus={workers + 1}; Kubernetes: "
                f"resources.limits.cpu: {workers + 1}",
            ),
            line(
                Change.WORKERS,
                f"loader = DataLoader(dataset, ..., num_workers={fewer})    # if there are no more CPUs",
                workers=fewer,
            ),
        ),
        check="stepscope show data_loaders: waited_ns is near 0.",
        evidence={
            "workers": workers,
            "available_cpus": cpus,
            "waited_ns": round(waited),
            "waited_share": mean_step.share(waited),
        },
        claims=frozenset({Claim(Time.WAITED, Part.DATALOADER), Claim(Time.STARVED, Part.DATALOADER)}),
    )
