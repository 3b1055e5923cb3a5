"""Simulated steps, as they were and under a change."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

from stepscope.analyses import analysis
from stepscope.analyses._windows import how_steps_were_found
from stepscope.records import dataclass
from stepscope.simulation.changes import CHANGES, UNCHANGED, Change, ChangeName
from stepscope.simulation.simulator import NO_STEPS, SIMULATION_READS, Simulator
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["SimulatedStep", "simulated_steps"]


@dataclass(frozen=True, slots=True)
class SimulatedStep:
    """One step: as it was recorded, simulated, and simulated under a change."""

    rank: Annotated[int, "Rank that recorded the profile."]
    step: Annotated[int, "Number of the step."]
    measured_ns: Annotated[int, "Length of the step as it was recorded."]
    simulated_ns: Annotated[int, "Length of the step when it is simulated without a change."]
    residual_share: Annotated[
        float, "How much longer the simulation is than the step, as a share of the step."
    ]
    unexplained_ns: Annotated[
        int, "How much of the simulation is delays longer than usual that nothing in the trace explains."
    ]
    unprofiled_low_ns: Annotated[int, "Length without the cost of recording, at least."]
    unprofiled_high_ns: Annotated[int, "The same, at most."]
    changed_low_ns: Annotated[int | None, "Length without that under the change, at least; NULL if none."]
    changed_high_ns: Annotated[int | None, "The same, at most."]


@analysis(reads=SIMULATION_READS)
def simulated_steps(
    trace: Trace,
    *,
    by: Annotated[
        Literal["nothing", ChangeName],
        "the change: as the flags of `stepscope whatif`",
    ] = "nothing",
) -> Table[SimulatedStep]:
    """Simulates every step: durations are as recorded, starts follow from what waits for what.

    Without a change the simulation should be as long as the recorded step. The difference is also the error
    to expect under a change. Without the cost of recording it is as long as the unprofiled step. `stepscope
    whatif` has more changes.
    """
    simulator = Simulator(trace, whole=True)
    plain = simulator.run(UNCHANGED)
    change = UNCHANGED if by == "nothing" else CHANGES[by].change
    unprofiled = [simulator.lengths_ns(Change(spared=spared)) for spared in simulator.spared]
    changed = [simulator.lengths_ns(replace(change, spared=spared)) for spared in simulator.spared]
    rows = []
    for place, step in enumerate(simulator.steps.to_pylist()):
        measured, simulated = step["end_ns"] - step["start_ns"], plain.dur_ns[place]
        rows.append(
            SimulatedStep(
                rank=trace.rank,
                step=step["step"],
                measured_ns=measured,
                simulated_ns=simulated,
                residual_share=simulated / measured - 1,
                unexplained_ns=plain.unexplained_ns(place),
                unprofiled_low_ns=unprofiled[1][place],
                unprofiled_high_ns=unprofiled[0][place],
                changed_low_ns=None if change == UNCHANGED else changed[1][place],
                changed_high_ns=None if change == UNCHANGED else changed[0][place],
            )
        )
    return Table.of(SimulatedStep, rows, how_steps_were_found(trace) if rows else [NO_STEPS])
