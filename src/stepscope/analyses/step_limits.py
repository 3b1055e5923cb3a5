"""How far a faster device, host, input or communication would shorten a step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Annotated

from stepscope.analyses import analysis
from stepscope.analyses._windows import how_steps_were_found
from stepscope.records import dataclass
from stepscope.simulation.changes import PACE_SETTERS, Change
from stepscope.simulation.simulator import NO_STEPS, SIMULATION_READS, simulator_of
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["MOST_ERROR", "StepLimit", "error_of", "step_limits"]

MOST_ERROR = 0.05
"""A simulation that is further from the recorded steps, as a part of them, says nothing about changes."""
_DEVICE_TIMES = (1.0, 0.75, 0.5, 0.25, 0.0)


@dataclass(frozen=True, slots=True)
class StepLimit:
    """The mean step, where something takes a part of the time that it took, or none."""

    rank: Annotated[int, "Rank that recorded the profile."]
    faster: Annotated[
        str,
        "What is faster. all work: everything that runs on a device. device: kernels that compute, fills and "
        "copies on and from the device. host: what threads do themselves. input: data loading and copies to "
        "the device. communication: collectives. waits: calls that wait for the device do not.",
    ]
    times: Annotated[float, "How much of its time that takes; 1 is as it is."]
    steps: Annotated[int, "How many steps were simulated; a first warm-up step is left out."]
    measured_ns: Annotated[int, "Mean length of these steps, as recorded."]
    simulated_ns: Annotated[int, "Mean length of a step in the simulation, with the profiler."]
    unprofiled_low_ns: Annotated[int, "The same without the cost of recording, at least."]
    unprofiled_high_ns: Annotated[int, "The same, at most."]


def error_of(limits: Iterable[StepLimit]) -> float:
    """How far the simulation without a change is from the recorded steps, as a part of them."""
    plain = next((row for row in limits if row.times == 1 and row.measured_ns), None)
    return abs(plain.simulated_ns - plain.measured_ns) / plain.measured_ns if plain else 0.0


@analysis(reads=SIMULATION_READS)
def step_limits(trace: Trace) -> Table[StepLimit]:
    """Simulates steps with a faster device, host, input or communication, to show what each of them takes.

    The first row is the step as it is. What a step loses when one thing takes no time is how far that thing
    sets its pace. The losses do not add up: two that overlap can each take the whole time.
    """
    simulator = simulator_of(trace)
    changes: list[tuple[str, float, Change]] = [
        ("all work", times, Change(kernels=(("*", times),) if times != 1 else ())) for times in _DEVICE_TIMES
    ]
    changes += [(name, 0.0, change) for name, change in PACE_SETTERS.items()]
    rows = []
    for faster, times, change in changes if simulator.steady else ():
        lengths = [simulator.mean_ns(replace(change, spared=spared)) for spared in (0.0, *simulator.spared)]
        rows.append(
            StepLimit(
                rank=trace.rank,
                faster=faster,
                times=times,
                steps=len(simulator.steady),
                measured_ns=simulator.mean_of(simulator.recorded_ns),
                simulated_ns=lengths[0],
                unprofiled_low_ns=lengths[2],
                unprofiled_high_ns=lengths[1],
            )
        )
    return Table.of(StepLimit, rows, how_steps_were_found(trace) if rows else [NO_STEPS])
