"""The step as it was timed without the profiler, in the run that a profile is of."""

from __future__ import annotations

from stepscope import units
from stepscope.records import dataclass

__all__ = ["MeasuredStep"]


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """How long a step takes without the profiler, from a clock."""

    mean_ns: int
    median_ns: int
    low_ns: int
    """The 95 % interval of the mean begins here."""
    high_ns: int
    """And ends here."""
    steps: int
    """How many steps were timed."""
    lengths_ns: tuple[int, ...] = ()
    """Each of them, where they were kept."""

    @property
    def doubt_share(self) -> float:
        """Half the width of the interval, as a part of the mean."""
        return (self.high_ns - self.low_ns) / 2 / self.mean_ns if self.mean_ns else 0.0

    @property
    def said(self) -> str:
        """As people read it: `6.11 ms ± 0.4 % (40 steps)`."""
        doubt = f" ± {units.share(self.doubt_share)}" if self.doubt_share else ""
        return f"{units.duration(self.mean_ns)}{doubt} ({units.counted(self.steps, 'step')})"
