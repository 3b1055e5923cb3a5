"""How long the mean step of a trace would be under a change, beside what it was."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from stepscope.errors import StepscopeError
from stepscope.records import dataclass
from stepscope.simulation.changes import UNCHANGED, Change

if TYPE_CHECKING:
    from stepscope.simulation.simulator import Simulator

__all__ = ["ChangedStep", "changed_step", "factor"]


@dataclass(frozen=True, slots=True)
class ChangedStep:
    """The mean of the simulated steps: as it was, simulated, without the profiler, and under a change."""

    steps: int
    without_first: bool
    """Whether a first step that was the longest is left out of the mean."""
    recorded_ns: int
    simulated_ns: int
    """Unchanged: how far it is from the recorded one tells how good the simulation is."""
    explained_ns: int
    """The same without the delays that nothing explains."""
    unprofiled_ns: tuple[int, int]
    """Without the cost of recording: with the most and with the least of it left out."""
    changed_ns: tuple[int, int]
    """The same under the change, at least and at most."""
    gains: tuple[float, float]
    """Which part of the unprofiled step the change saves, at least and at most."""


def changed_step(simulator: Simulator, change: Change) -> ChangedStep:
    """What a change makes of the mean step."""
    if not simulator.steady:
        raise StepscopeError("the trace has no steps to simulate", hint="record some with torch.profiler")
    plain = simulator.run(UNCHANGED)
    recorded, simulated, explained = map(
        simulator.mean_of, (simulator.recorded_ns, plain.dur_ns, plain.explained_ns)
    )
    wanted = [replace(one, spared=spared) for one in (UNCHANGED, change) for spared in simulator.spared]
    simulator.simulate(*wanted)
    high, low, changed_high, changed_low = map(simulator.mean_ns, wanted)
    gains = sorted((1 - changed_low / max(1, low), 1 - changed_high / max(1, high)))
    least, most = sorted((changed_low, changed_high))
    count = len(simulator.steady)
    return ChangedStep(
        steps=count,
        without_first=count < len(simulator.recorded_ns),
        recorded_ns=recorded,
        simulated_ns=simulated,
        explained_ns=explained,
        unprofiled_ns=(low, high),
        changed_ns=(least, most),
        gains=(gains[0], gains[1]),
    )


def factor(text: str) -> float:
    """How much of its time something takes, as in `x0.4`."""
    try:
        times = float(text.removeprefix("x"))
    except ValueError:
        times = -1.0
    if not 0 <= times <= 1000:
        hint = "write the factor of its time, from x0 to x1000: '*sgemm*' x0.4"
        raise StepscopeError(f"{text} is not a factor", hint=hint, exit_code=2)
    return times
