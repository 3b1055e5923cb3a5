"""Steps played again, as they were and under a change."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

from stepscope.analyses import analysis
from stepscope.analyses._replay import ANY_OPERATOR, NOTHING_TO_PLAY, REPLAY_READS, UNCHANGED, Change, Player
from stepscope.analyses._windows import how_steps_were_found
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["StepReplay", "step_replays"]


@dataclass(frozen=True, slots=True)
class StepReplay:
    """One step: as it was recorded, played again, and played again under a change."""

    rank: Annotated[int, "Rank that recorded the profile."]
    step: Annotated[int, "Number of the step."]
    measured_ns: Annotated[int, "Length of the step as it was recorded."]
    replayed_ns: Annotated[int, "Length of the step when it is played again without a change."]
    residual_share: Annotated[float, "How much longer the replay is than the step, as a part of the step."]
    unexplained_ns: Annotated[
        int, "How much of the replay is delays longer than usual that nothing in the trace explains."
    ]
    unprofiled_low_ns: Annotated[int, "Length without what recording costs, at the least."]
    unprofiled_high_ns: Annotated[int, "The same, at the most."]
    changed_low_ns: Annotated[int | None, "Length without that under the change, at the least; NULL if none."]
    changed_high_ns: Annotated[int | None, "The same, at the most."]


_CHANGES = {
    "nothing": UNCHANGED,
    "no_sync": Change(no_sync=ANY_OPERATOR),
    "graph": Change(graph=True),
    "no_loader": Change(no_loader=True),
    "overlap_copies": Change(overlap_copies=True),
}


@analysis(reads=REPLAY_READS)
def step_replays(
    trace: Trace,
    *,
    by: Annotated[
        Literal["nothing", "no_sync", "graph", "no_loader", "overlap_copies"],
        "the change: as the options of `stepscope whatif`",
    ] = "nothing",
) -> Table[StepReplay]:
    """Plays every step again: durations are as recorded, starts follow from what waits for what.

    Without a change the replay should be as long as the step was; how far it is not is the error of a replay
    under a change. Without what recording costs it is as long as the step is without the profiler.
    `stepscope whatif` has more changes.
    """
    player = Player(trace, whole=True)
    plain = player.play(UNCHANGED)
    change = _CHANGES[by]
    unprofiled = [player.play(Change(spared=spared)).dur_ns for spared in player.spared]
    changed = [player.play(replace(change, spared=spared)).dur_ns for spared in player.spared]
    rows = []
    for place, step in enumerate(player.steps.to_pylist()):
        measured, replayed = step["end_ns"] - step["start_ns"], plain.dur_ns[place]
        rows.append(
            StepReplay(
                rank=trace.rank,
                step=step["step"],
                measured_ns=measured,
                replayed_ns=replayed,
                residual_share=replayed / measured - 1,
                unexplained_ns=plain.unexplained_ns(place),
                unprofiled_low_ns=unprofiled[1][place],
                unprofiled_high_ns=unprofiled[0][place],
                changed_low_ns=None if change == UNCHANGED else changed[1][place],
                changed_high_ns=None if change == UNCHANGED else changed[0][place],
            )
        )
    return Table.of(StepReplay, rows, how_steps_were_found(trace) if rows else [NOTHING_TO_PLAY])
