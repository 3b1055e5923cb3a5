"""The mean step of a run, what changes take off it, and what a run says about itself."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from stepscope.findings import Bounds, Gain, Saving
from stepscope.records import dataclass
from stepscope.runs.many import ManyRanks
from stepscope.runs.simulation import RankChange, RunSimulator, simulator_of

__all__ = ["RunFacts", "RunMeanStep", "run_facts_of", "run_mean_step_of"]


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What is known about a run beside its tables."""

    ranks: tuple[int, ...]
    world_size: int | None
    hosts: tuple[str, ...]
    """Those that are known, in order."""
    devices: tuple[str, ...]
    """Models of the accelerators, without repetition; empty without any."""
    missing: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RunMeanStep:
    """The mean of the run's steps: from the earliest start on any rank to the latest end."""

    step_ns: float
    steps: int
    ranks: int
    simulator: RunSimulator
    measured_ns: Bounds | None = None
    """The step that was timed without the profiler, at least and at most: the median of the ranks."""

    def share(self, ns: float) -> float:
        """A time of a step as a part of it."""
        return ns / self.step_ns if self.step_ns else 0.0

    def per_step(self, total_ns: float) -> float:
        """A sum over all steps as its mean."""
        return total_ns / self.steps if self.steps else 0.0

    def saving(self, changes: Sequence[RankChange], most_ns: float | None = None) -> Saving:
        """What changes save, by playing all ranks; if that cannot be used, from nothing to `most_ns`."""
        if self.simulator.is_usable:
            low, high = self.simulator.saving_ns(changes)
        else:
            low, high = 0.0, self.step_ns
        most = min(self.step_ns, high if most_ns is None else max(0.0, most_ns))
        return Saving(waited_ns=(min(low, high, most), min(high, most)))

    def gain(self, saving: Saving) -> Gain:
        """What a saving is worth in a step without the profiler: the same part of it."""
        if not self.step_ns:
            return Gain(0, 0, 0.0, 0.0)
        bounds = (saving.starved_ns, saving.device_ns, saving.waited_ns)
        low, high = (min(1.0, sum(one[place] for one in bounds) / self.step_ns) for place in (0, 1))
        short, long = self.measured_ns or (self.step_ns, self.step_ns)
        return Gain(round(low * short), round(high * long), low, high)


def run_mean_step_of(run: ManyRanks) -> RunMeanStep:
    """The mean step of a run."""
    simulator = simulator_of(run)
    lengths = simulator.recorded_ns
    measured = [one.facts.measured_ns for one in run.summaries if one.facts.measured_ns]
    low_high = (median(one[0] for one in measured), median(one[2] for one in measured)) if measured else None
    step_ns = sum(lengths) / len(lengths) if lengths else 0.0
    return RunMeanStep(step_ns, len(lengths), len(run.ranks), simulator, low_high)


def run_facts_of(run: ManyRanks) -> RunFacts:
    """What a run says about itself."""
    facts = [one.facts for one in run.summaries]
    return RunFacts(
        ranks=run.ranks,
        world_size=run.world_size,
        hosts=tuple(dict.fromkeys(one.host for one in facts if one.host)),
        devices=tuple(dict.fromkeys(one.device for one in facts if one.device)),
        missing=run.missing,
    )
