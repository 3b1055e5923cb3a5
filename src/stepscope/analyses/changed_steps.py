"""What a change would leave of a step."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from stepscope.analyses import analysis
from stepscope.analyses._windows import how_steps_were_found
from stepscope.records import dataclass
from stepscope.simulation.changes import CHANGES, UNCHANGED, Change, ChangeName
from stepscope.simulation.simulator import NO_STEPS, SIMULATION_READS, simulator_of
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["ChangedStep", "changed_steps"]


@dataclass(frozen=True, slots=True)
class ChangedStep:
    """The mean step, as it was and under a change."""

    rank: Annotated[int, "Rank that recorded the profile."]
    steps: Annotated[int, "How many steps were simulated; a first warm-up step is left out."]
    recorded_ns: Annotated[int, "Mean length of a step, as recorded."]
    simulated_ns: Annotated[int, "The same, simulated without a change."]
    unexplained_ns: Annotated[int, "How much of that is delays that nothing in the trace explains."]
    unprofiled_low_ns: Annotated[int, "Simulated without the cost of recording, at least."]
    unprofiled_high_ns: Annotated[int, "The same, at most."]
    changed_low_ns: Annotated[int, "The same as the low one, under the change."]
    changed_high_ns: Annotated[int, "The same as the high one, under the change."]
    gain_low_share: Annotated[float, "What the change takes off a step without the profiler, at least."]
    gain_high_share: Annotated[float, "The same, at most."]


@analysis(reads=SIMULATION_READS)
def changed_steps(
    trace: Trace,
    *,
    by: Annotated[
        ChangeName,
        "the change: as the flags of `stepscope whatif`",
    ] = "no_sync",
) -> Table[ChangedStep]:
    """Simulates steps under a change, without the cost of recording.

    Host work, kernels and copies take as long as they took, but for the change; when they start follows from
    what waits for what. `stepscope whatif` has more changes.
    """
    simulator = simulator_of(trace)
    if not simulator.steady:
        return Table.of(ChangedStep, [], [NO_STEPS])
    plain = simulator.run(UNCHANGED)
    change = CHANGES[by].change
    high, low = (simulator.mean_ns(Change(spared=spared)) for spared in simulator.spared)
    changed_high, changed_low = (
        simulator.mean_ns(replace(change, spared=spared)) for spared in simulator.spared
    )
    pairs = ((low, changed_low), (high, changed_high))
    gains = sorted(1 - after / before if before else 0.0 for before, after in pairs)
    row = ChangedStep(
        rank=trace.rank,
        steps=len(simulator.steady),
        recorded_ns=simulator.mean_of(simulator.recorded_ns),
        simulated_ns=simulator.mean_of(plain.dur_ns),
        unexplained_ns=simulator.mean_of(plain.dur_ns) - simulator.mean_of(plain.explained_ns),
        unprofiled_low_ns=low,
        unprofiled_high_ns=high,
        changed_low_ns=changed_low,
        changed_high_ns=changed_high,
        gain_low_share=gains[0],
        gain_high_share=gains[1],
    )
    return Table.of(ChangedStep, [row], how_steps_were_found(trace))
