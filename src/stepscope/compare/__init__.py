"""Compares traces: how the step changed, what the change is made of, and whether it is more than noise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from typing import Literal

from stepscope.findings import Finding
from stepscope.findings.report import Report
from stepscope.records import dataclass
from stepscope.showing import InNotebook
from stepscope.store.measured import MeasuredStep

__all__ = [
    "SCHEMA",
    "Comparison",
    "Interval",
    "RankOfSide",
    "RanksOfSide",
    "Run",
    "Side",
    "State",
    "StepChange",
    "StepPart",
    "Word",
    "walked",
]

SCHEMA = "stepscope.diff/1"

State = Literal["both", "new", "gone", "renamed", "replaced"]
"""Whether a part is on both sides. Renamed: its name differs in numbers or in that of a chip alone. Replaced:
other kernels of the same family were launched by the same operator."""
Word = Literal["faster", "slower", "noise", "unknown"]


@dataclass(frozen=True, slots=True)
class Run:
    """One recording of a side."""

    report: Report
    lengths_ns: tuple[int, ...]
    """How long each step took."""
    measured: MeasuredStep | None = None
    """The step without the profiler, where the run was timed."""

    @property
    def mean_ns(self) -> float:
        """Of its steps; 0 without any."""
        return sum(self.lengths_ns) / len(self.lengths_ns) if self.lengths_ns else 0.0


@dataclass(frozen=True, slots=True)
class RankOfSide:
    """The mean step of one rank of a side."""

    rank: int
    host: str | None
    step_ns: int
    own_ns: int
    """All of it but exposed communication."""
    wait_ns: int
    transfer_ns: int


@dataclass(frozen=True, slots=True)
class RanksOfSide:
    """What all ranks of a side show together, in the mean step; one of them is compared in depth."""

    ranks: int
    step_ns: int
    """From the first start of a rank to the last end."""
    wait_ns: int
    """Exposed waiting for other ranks, on average over the ranks."""
    transfer_ns: int
    """Exposed transfer, on average over the ranks."""
    late_rank: int | None
    """The rank that the others wait for; None if no one is late."""
    late_ns: int
    cause: str
    """What makes it late, most of it."""
    each: tuple[RankOfSide, ...] = ()
    """Every rank by itself."""


@dataclass(frozen=True, slots=True)
class Side:
    """What was recorded once or several times, to be compared with another side."""

    name: str
    runs: tuple[Run, ...]
    step_ns: int
    """The mean step as recorded: the mean of the means of its runs."""
    unprofiled_step_ns: tuple[int, int]
    rates: dict[str, float]
    """How many steps, samples, tokens a second, as recorded; those that all runs tell."""
    per_step: dict[str, float]
    """How many samples and tokens a step handles; those that all runs tell."""
    measured_ns: int | None = None
    """The mean step without the profiler; None unless all runs of all sides measured it."""
    ranks: RanksOfSide | None = None
    """Of a side with many ranks, what they show together; None for a side that is one rank."""

    @property
    def true_ns(self) -> int:
        """The step that is compared: the measured one, or else the recorded one."""
        return self.step_ns if self.measured_ns is None else self.measured_ns

    @property
    def true_lengths_ns(self) -> list[tuple[int, ...]]:
        """The lengths of the same steps, for each run."""
        if self.measured_ns is None:
            return [run.lengths_ns for run in self.runs]
        known = [run.measured for run in self.runs if run.measured]
        return [one.lengths_ns or (one.mean_ns,) for one in known]

    @property
    def report(self) -> Report:
        """That of its first run."""
        return self.runs[0].report

    @property
    def steps(self) -> int:
        """How many steps all runs have."""
        return sum(len(run.lengths_ns) for run in self.runs)


@dataclass(frozen=True, slots=True)
class Interval:
    """Where the change of the mean step lies, with 95 % confidence."""

    low_ns: int
    high_ns: int
    basis: str
    """What it was worked out from, as a sentence."""
    assumed_share: float | None
    """What was assumed of the difference between runs, as a part of the step; None where runs tell it."""


@dataclass(frozen=True, slots=True)
class StepPart:
    """A part of the mean step on both sides; those inside it sum to it exactly."""

    name: str
    before_ns: int
    after_ns: int
    state: State = "both"
    calls: tuple[float, float] | None = None
    """How often in a step, before and after."""
    more_often_ns: int | None = None
    """Of a kernel on both sides: the part of the change that comes from running more or less often."""
    names: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    """What it is called before and after, where that is not its name."""
    op: str | None = None
    """The operator that launches most of it."""
    exposed: bool = False
    """Whether only time counts in which nothing computed beside it: copies, fills, collectives."""
    parts: tuple[StepPart, ...] = ()

    @property
    def change_ns(self) -> int:
        """What it adds to the step, or takes off."""
        return self.after_ns - self.before_ns

    @property
    def slower_ns(self) -> int | None:
        """Of a kernel on both sides: the part of the change that comes from longer or shorter runs."""
        return None if self.more_often_ns is None else self.change_ns - self.more_often_ns


@dataclass(frozen=True, slots=True)
class StepChange:
    """From one side to the next."""

    before: Side
    after: Side
    interval: Interval | None
    """None where a side has no steps."""
    parts: tuple[StepPart, ...]
    """By what ran and what was waited for; they sum to the change, and so do the next two."""
    phases: tuple[StepPart, ...]
    ops: tuple[StepPart, ...]
    resolved: tuple[Finding, ...]
    appeared: tuple[Finding, ...]
    kept: tuple[tuple[Finding, Finding], ...]
    caveats: tuple[str, ...]
    """What differs between the recordings and bends the comparison, as sentences."""
    measured: Interval | None = None
    """The interval of the steps that were measured without the profiler, where both sides have them."""

    @property
    def truth(self) -> Interval | None:
        """The interval by which the change is judged: of measured steps, or else of recorded ones."""
        return self.measured or self.interval

    @property
    def change_ns(self) -> int:
        """Of the mean step: measured without the profiler, or else as recorded."""
        return self.after.true_ns - self.before.true_ns

    @property
    def recorded_change_ns(self) -> int:
        """Of the mean step as recorded, which is what the parts sum to."""
        return self.after.step_ns - self.before.step_ns

    @property
    def share(self) -> float | None:
        """The change as a part of the step before."""
        return self.change_ns / self.before.true_ns if self.before.true_ns else None

    @property
    def word(self) -> Word:
        """Whether it is more than noise."""
        if self.truth is None:
            return "unknown"
        if self.truth.low_ns <= 0 <= self.truth.high_ns:
            return "noise"
        return "slower" if self.truth.low_ns > 0 else "faster"

    @property
    def causes(self) -> tuple[tuple[StepPart, StepPart], ...]:
        """Families of kernels and reasons to wait, each behind its part; what changed most comes first."""
        pairs = [(part, inner) for part in self.parts for inner in part.parts or (part,)]
        return tuple(sorted(pairs, key=lambda pair: -abs(pair[1].change_ns)))


@dataclass(frozen=True, slots=True)
class Comparison(InNotebook):
    """Two sides or more, one change at a time."""

    sides: tuple[Side, ...]
    changes: tuple[StepChange, ...]
    """From each side to the next."""
    overall: StepChange | None = field(default=None)
    """From the first side to the last, where there are more than two."""

    @property
    def whole(self) -> StepChange:
        """From the first side to the last."""
        return self.overall or self.changes[0]


def walked(parts: tuple[StepPart, ...]) -> Iterator[StepPart]:
    """The parts that hold no others, of all these."""
    for part in parts:
        if part.parts:
            yield from walked(part.parts)
        else:
            yield part
