"""A step under a change, in lines: as it was, simulated, without the profiler, and changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from stepscope import units

if TYPE_CHECKING:
    from stepscope.runs.changed_run import ChangedRun
    from stepscope.runs.simulation import Pace
    from stepscope.simulation.changed_step import ChangedStep

__all__ = ["lines", "lines_of_run"]


def lines(step: ChangedStep, measured: str = "") -> Iterator[tuple[str, str]]:
    """The label and the text of each line about a trace; `measured` says what the run measured."""
    recorded = step.recorded_ns
    yield "recorded", f"{units.duration(recorded)} per step, {_which(step)}"
    error = f"{units.share(abs(step.simulated_ns - recorded) / recorded)} off"
    unexplained = units.share(max(0, step.simulated_ns - step.explained_ns) / recorded)
    simulated = units.duration(step.simulated_ns)
    yield "simulated", f"{simulated} unchanged: {error}, {unexplained} of it unexplained delays"
    if measured:
        yield "measured", f"{measured}, without the profiler"
    yield "unprofiled", f"{units.between(*step.unprofiled_ns)}, without the cost of recording"
    yield "changed", f"{units.between(*step.changed_ns)}, {_gained(*step.gains)}"


def lines_of_run(run: ChangedRun) -> Iterator[tuple[str, str]]:
    """The same about all ranks of a run, and who sets the pace."""
    recorded = f"{units.counted(run.ranks, 'rank')}, mean of {units.counted(run.steps, 'step')}"
    yield "recorded", f"{units.duration(run.step_ns)} per step of the run, {recorded}"
    yield "simulated", f"{units.duration(run.simulated_ns)} unchanged: {_off(run.error)}"
    if run.measured_ns:
        yield "measured", f"{units.between(*run.measured_ns)}, without the profiler"
    if run.is_longer:
        longer = (run.changed_ns - run.simulated_ns) / run.step_ns
        yield "changed", f"{units.duration(run.changed_ns)}, {units.share(longer)} longer"
    else:
        low, high = run.saved_ns
        left = units.between(run.step_ns - high, run.step_ns - low)
        yield "changed", f"{left}, {units.percents(low / run.step_ns, high / run.step_ns)} shorter"
    yield "pace", _paces(run.pace, run.changed_pace)
    for note in run.notes:
        yield "note", note


def _which(step: ChangedStep) -> str:
    """Which steps were simulated."""
    without = ", without the first (warm-up)" if step.without_first else ""
    return f"mean of {units.counted(step.steps, 'step')}{without}"


def _gained(low: float, high: float) -> str:
    """How much shorter a step is, or longer."""
    if high <= 0:
        low, high, word = -high, -low, "longer"
    else:
        word = "shorter"
    if low < 0:
        return f"from {units.share(-low)} longer to {units.share(high)} shorter"
    return f"{units.percents(low, high)} {word}"


def _paces(now: Pace | None, then: Pace | None) -> str:
    if now is None:
        return "no rank is waited for to speak of" if then is None else f"nobody now; then {_pace(then)}"
    if then is None:
        return f"{_pace(now)}; then no rank to speak of"
    return f"{_pace(now)}; then {_pace(then)}"


def _pace(pace: Pace) -> str:
    return f"rank {pace.rank} (the others together wait {units.duration(pace.wait_ns)} a step for it)"


def _off(error: float) -> str:
    return "as recorded" if error < 0.0005 else f"{units.share(error)} off"
