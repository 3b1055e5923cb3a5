"""How far a faster device, or a faster host, would shorten a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from stepscope.analyses import analysis
from stepscope.analyses._windows import how_steps_were_found
from stepscope.simulation.changes import Change
from stepscope.simulation.simulator import NO_STEPS, SIMULATION_READS, simulator_of
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["StepLimit", "step_limits"]

_SPEEDS = ((1.0, 1.0), (1.0, 0.75), (1.0, 0.5), (1.0, 0.25), (1.0, 0.0), (0.0, 1.0))


@dataclass(frozen=True, slots=True)
class StepLimit:
    """The mean step, where the host and the device take a part of the time that they took."""

    rank: Annotated[int, "Rank that recorded the profile."]
    host_times: Annotated[float, "How much of its time host work takes."]
    device_times: Annotated[float, "How much of its time device work takes."]
    steps: Annotated[int, "How many steps were simulated; a first warm-up step is left out."]
    recorded_ns: Annotated[int, "Mean length of a step, with the profiler."]
    unprofiled_low_ns: Annotated[int, "The same without the cost of recording, at least."]
    unprofiled_high_ns: Annotated[int, "The same, at most."]


@analysis(reads=SIMULATION_READS)
def step_limits(trace: Trace) -> Table[StepLimit]:
    """Simulates steps with a faster device and with a faster host, to show what each of them takes.

    The first row is the step as it is. A device that takes no time leaves the host and the waiting between
    the two; a host that takes none leaves the device.
    """
    simulator = simulator_of(trace)
    rows = []
    for host, device in _SPEEDS if simulator.steady else ():
        lengths = [
            simulator.mean_ns(
                Change(host_times=host, kernels=(("*", device),) if device != 1 else (), spared=spared)
            )
            for spared in (0.0, *simulator.spared)
        ]
        rows.append(
            StepLimit(
                rank=trace.rank,
                host_times=host,
                device_times=device,
                steps=len(simulator.steady),
                recorded_ns=lengths[0],
                unprofiled_low_ns=lengths[2],
                unprofiled_high_ns=lengths[1],
            )
        )
    return Table.of(StepLimit, rows, how_steps_were_found(trace) if rows else [NO_STEPS])
