"""How long a step of a run would be if some of its ranks were different: all ranks played together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from stepscope import units
from stepscope.errors import StepscopeError
from stepscope.records import dataclass
from stepscope.runs.simulation import Bound, RankChange
from stepscope.simulation.changes import CHANGES, UNCHANGED, Change, ChangeName, combined

if TYPE_CHECKING:
    from stepscope.runs.many import ManyRanks
    from stepscope.runs.simulation import Pace
    from stepscope.store.trace import Trace

__all__ = ["AskedOfRun", "ChangedRun", "changed_run", "profiles_for"]

OWN_TIME: Mapping[ChangeName, str] = {
    "no_loader": "input",
    "no_driver_memory": "memory",
    "no_sync": "sync",
    "no_explicit_sync": "sync",
    "no_reads": "sync",
}
"""Changes that take away one kind of a rank's own time; others are simulated in the rank's own profile."""
PART_ONLY = ("no_explicit_sync", "no_reads")
"""Changes that take away only a part of that: at least nothing."""
MOST_PROFILES = 8


@dataclass(frozen=True, slots=True)
class AskedOfRun:
    """What is to be different in a run."""

    ranks: tuple[int, ...] | None
    """None for all."""
    named: tuple[ChangeName, ...] = ()
    scaled: Change = UNCHANGED
    transfers: float = 1.0
    like_median: bool = False

    @property
    def by_profile(self) -> Change:
        """What has to be simulated in the ranks' own profiles."""
        return combined([self.scaled, *(CHANGES[name].change for name in self.named if name not in OWN_TIME)])


@dataclass(frozen=True, slots=True)
class ChangedRun:
    """The run's mean step: as it was, simulated, and under a change; and who sets the pace."""

    ranks: int
    steps: int
    step_ns: float
    simulated_ns: float
    error: float
    """How far the simulation is from the recorded steps, as a part of them."""
    measured_ns: tuple[float, float] | None
    saved_ns: tuple[float, float]
    """At least and at most; below 0 if the change makes the step longer."""
    changed_ns: float
    """As it is played, counting only what every step shows."""
    pace: Pace | None
    changed_pace: Pace | None
    notes: tuple[str, ...]

    @property
    def is_longer(self) -> bool:
        """Whether the change makes the step longer."""
        return self.saved_ns[1] <= 0 < self.changed_ns - self.simulated_ns


def changed_run(run: ManyRanks, asked: AskedOfRun, traces: Mapping[int, Trace], again: str) -> ChangedRun:
    """What a change makes of the run's mean step; `again` is what to type where ranks cannot be played."""
    from stepscope.runs.mean_step import run_mean_step_of

    step = run_mean_step_of(run)
    simulator = step.simulator
    if not simulator.is_usable:
        raise StepscopeError(
            f"the ranks of {run.name} cannot be simulated together: {simulator.reason}",
            hint=f"one rank alone: {again}",
        )
    changes, notes = _changes(run, asked, traces)
    low, high = simulator.saving_ns(changes)
    if asked.named and set(asked.named) <= set(PART_ONLY):
        low = 0.0
    changed = simulator.played(changes, Bound.LOW)
    return ChangedRun(
        ranks=step.ranks,
        steps=step.steps,
        step_ns=step.step_ns,
        simulated_ns=simulator.unchanged.mean_ns,
        error=simulator.error,
        measured_ns=step.measured_ns,
        saved_ns=(low, high),
        changed_ns=changed.mean_ns,
        pace=simulator.unchanged.pace,
        changed_pace=changed.pace,
        notes=tuple(notes),
    )


def _changes(
    run: ManyRanks, asked: AskedOfRun, traces: Mapping[int, Trace]
) -> tuple[list[RankChange], list[str]]:
    """What is played for what was asked, and what has to be said of it."""
    causes = dict.fromkeys(OWN_TIME[one] for one in asked.named if one in OWN_TIME)
    changes = [RankChange(asked.ranks, cause) for cause in causes]
    notes = [
        f"{_flag(name)} takes away all time after calls that wait for the device: at least nothing is sure"
        for name in asked.named
        if name in PART_ONLY
    ]
    if asked.like_median:
        changes.append(RankChange(asked.ranks, like="median rank"))
    if asked.transfers != 1:
        changes.append(RankChange(asked.ranks, "transfer", asked.transfers))
    by_profile = asked.by_profile
    if by_profile == UNCHANGED:
        return changes, notes
    parts = {rank: _part(trace, by_profile, _own_ns(run, rank)) for rank, trace in traces.items()}
    if asked.ranks is None:
        (rank, part), *_ = parts.items()
        told = f"simulated in the profile of rank {rank} alone, and taken for all ranks"
        return [*changes, RankChange(None, times=part)], [*notes, _scaled(told, part)]
    told = "simulated in the rank's own profile"
    changes += [RankChange((rank,), times=part) for rank, part in parts.items()]
    return changes, [*notes, *(_scaled(f"rank {rank}: {told}", part) for rank, part in parts.items())]


def _scaled(told: str, part: float) -> str:
    return f"{told}: its own time takes {units.share(part)} of what it took"


def _part(trace: Trace, change: Change, own_ns: float) -> float:
    """What is left of a rank's own time, from a simulation of its profile alone."""
    from stepscope.simulation.simulator import simulator_of

    simulator = simulator_of(trace)
    if not simulator.steady or not own_ns:
        raise StepscopeError("the profile of the rank has no steps to simulate", hint="record some steps")
    saved = simulator.mean_ns(UNCHANGED) - simulator.mean_ns(change)
    return max(0.0, 1 - saved / own_ns)


def _own_ns(run: ManyRanks, rank: int) -> float:
    rows = run.table("rank_steps", by="rank")
    return next((row.own_ns for row in rows if row.rank == rank), 0)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def profiles_for(asked: AskedOfRun, ranks: Sequence[int]) -> tuple[int, ...]:
    """The ranks whose own profiles have to be opened."""
    if asked.by_profile == UNCHANGED:
        return ()
    wanted = asked.ranks if asked.ranks is not None else ranks[:1]
    if len(wanted) > MOST_PROFILES:
        raise StepscopeError(
            f"this change has to be simulated in the profile of each rank, and {len(wanted)} are too many",
            hint=f"name up to {MOST_PROFILES} ranks: --rank {wanted[0]}",
            exit_code=2,
        )
    return tuple(wanted)
