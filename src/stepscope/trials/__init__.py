"""Tries a change: runs a program before and after it in pairs, and says what the step gains for sure.

Runs are not profiled. Both sides run in copies of the program's repository, so that its own files stay as
they are.
"""

from __future__ import annotations

from typing import Literal

from stepscope.records import dataclass

__all__ = ["SCHEMA", "Agreement", "Estimate", "Kept", "Likeness", "Measurement", "Promise", "Trial", "Word"]

SCHEMA = "stepscope.try/1"

Word = Literal["faster", "slower", "noise"]
Kept = Literal["inside", "within its error", "less", "more"]
"""Where the measured gain lies: inside the promise, beside it by no more than its error, or off it."""
Likeness = Literal["equal", "alike", "rounded", "different", "not comparable", "none"]


@dataclass(frozen=True, slots=True)
class Measurement:
    """One run of one side."""

    steps_ns: tuple[int, ...]
    """How long each of its steps took, without a profiler."""
    losses: tuple[float, ...] = ()
    """Of its first backward passes."""
    notes: tuple[str, ...] = ()

    @property
    def mean_ns(self) -> float:
        """Of its steps."""
        return sum(self.steps_ns) / len(self.steps_ns)


@dataclass(frozen=True, slots=True)
class Promise:
    """By how much the step was to get shorter, as a part of it."""

    low_share: float
    high_share: float
    finding: str = ""
    """The finding of a report that promised it."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """By how much the step got shorter, as a part of the step before; less than 0 if it got longer."""

    gain_share: float
    low_share: float
    high_share: float
    """From low to high: the 95 % interval."""
    pairs: int

    @property
    def half_width(self) -> float:
        """How far the ends of the interval are from its middle."""
        return (self.high_share - self.low_share) / 2

    @property
    def word(self) -> Word:
        """Whether it is more than noise."""
        if self.low_share <= 0 <= self.high_share:
            return "noise"
        return "faster" if self.gain_share > 0 else "slower"

    def against(self, promise: Promise) -> Kept:
        """Whether it is what was promised."""
        if promise.low_share <= self.gain_share <= promise.high_share:
            return "inside"
        if self.low_share <= promise.high_share and self.high_share >= promise.low_share:
            return "within its error"
        return "less" if self.gain_share < promise.low_share else "more"


@dataclass(frozen=True, slots=True)
class Agreement:
    """Whether the losses after a change are those before it."""

    word: Likeness
    sentence: str
    compared: int = 0
    """How many losses of each run."""
    most_share: float | None = None
    """By how much they differ at most, as a part of the loss."""
    own_share: float | None = None
    """By how much the runs before the change differ among themselves."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What was tried, and what came of it."""

    date: str
    command: tuple[str, ...]
    tried: str
    """What differs after the change, in a few words."""
    commit: str | None
    """The commit that was tried on, short; with a + where the working tree had other changes."""
    before: tuple[Measurement, ...]
    after: tuple[Measurement, ...]
    """One each of a pair, in their order."""
    estimate: Estimate
    losses: Agreement
    promise: Promise | None
    wanted_half_width: float
    took_s: float

    @property
    def before_ns(self) -> int:
        """The mean step of all runs before the change."""
        return _mean_ns(self.before)

    @property
    def after_ns(self) -> int:
        """The mean step of all runs after it."""
        return _mean_ns(self.after)

    @property
    def kept(self) -> Kept | None:
        """Whether the promise was kept; None without one."""
        return self.estimate.against(self.promise) if self.promise else None

    @property
    def is_narrow(self) -> bool:
        """Whether the change is known as well as was wanted."""
        return self.estimate.half_width <= self.wanted_half_width

    @property
    def notes(self) -> tuple[str, ...]:
        """What runs said of themselves, each once."""
        return tuple(dict.fromkeys(note for one in (*self.before, *self.after) for note in one.notes))


def _mean_ns(runs: tuple[Measurement, ...]) -> int:
    return round(sum(one.mean_ns for one in runs) / len(runs))
