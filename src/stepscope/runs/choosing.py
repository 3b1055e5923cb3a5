"""Which rank and which pass of a run a command is about."""

from __future__ import annotations

from stepscope.errors import StepscopeError
from stepscope.records import dataclass
from stepscope.runs import Pass, PassName, RankRecord, Run

__all__ = ["ChosenRank", "choose_pass", "choose_rank"]


@dataclass(frozen=True, slots=True)
class ChosenRank:
    """A rank of a run."""

    run: Run
    record: RankRecord

    @property
    def light(self) -> Pass | None:
        """Its profile for times."""
        return self.record.named("light")

    @property
    def full(self) -> Pass | None:
        """Its profile for places."""
        return self.record.named("full")

    @property
    def ranks(self) -> tuple[int, ...]:
        """All ranks that could have been chosen."""
        return tuple(one.rank for one in self.run.profiled)


def choose_rank(run: Run, rank: int | None = None) -> ChosenRank:
    """The rank that was asked for, or the lowest with a profile."""
    known = ", ".join(str(one.rank) for one in run.ranks)
    if rank is not None:
        record = next((one for one in run.ranks if one.rank == rank), None)
        if record is None:
            raise StepscopeError(f"{run.called} has no rank {rank}", hint=f"it has: {known}", exit_code=2)
    else:
        record = next(iter(run.profiled), run.ranks[0])
    if not record.passes:
        raise _no_profile(run, record)
    return ChosenRank(run, record)


def choose_pass(chosen: ChosenRank, name: PassName | None = None, needed: str = "") -> Pass:
    """The pass that was asked for; else the light one, or the full one if only that has what is needed."""
    if name is not None:
        found = chosen.record.named(name)
        if found is None:
            there = chosen.record.passes[0].name
            raise StepscopeError(
                f"rank {chosen.record.rank} of {chosen.run.called} has no {name} pass",
                hint=f"--pass {there}",
                exit_code=2,
            )
        return found
    first, second = (chosen.full, chosen.light) if needed else (chosen.light, chosen.full)
    return first or second or chosen.record.passes[0]


def _no_profile(run: Run, record: RankRecord) -> StepscopeError:
    others = [one.rank for one in run.profiled]
    said = f"rank {record.rank} of {run.called} has no profile"
    if record.measured:
        said += f", only times: a step takes {record.measured.said} without the profiler"
    said += "".join(f". {note.rstrip('.')}" for note in record.notes[:3])
    if others:
        return StepscopeError(said, hint=f"another rank has one: --rank {others[0]}")
    return StepscopeError(said, hint=f"record again: {run.again}")
