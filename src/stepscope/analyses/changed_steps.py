"""What a change would leave of a step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal

from stepscope.analyses import analysis
from stepscope.analyses._replay import (
    ANY_OPERATOR,
    NOTHING_TO_PLAY,
    REPLAY_READS,
    UNCHANGED,
    Change,
    player_of,
)
from stepscope.analyses._windows import how_steps_were_found
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["ChangedStep", "changed_steps"]

_DRIVER_MEMORY = tuple(
    f"{driver}*{call}*" for driver in ("cu", "hip") for call in ("Malloc", "Alloc", "Free")
)
# .item(), float(t), int(t) and `if t:` on a device.
_READS = ("aten::item", "aten::_local_scalar_dense")
_CHANGES = {
    "no_sync": Change(no_sync=ANY_OPERATOR),
    "no_explicit_sync": Change(no_sync=("",)),
    "no_reads": Change(no_sync=_READS, ranges=tuple((pattern, 0.0) for pattern in _READS)),
    "graph": Change(graph=True),
    "no_loader": Change(no_loader=True),
    "overlap_copies": Change(overlap_copies=True),
    "no_driver_memory": Change(
        no_sync=_DRIVER_MEMORY, ranges=tuple((pattern, 0.0) for pattern in _DRIVER_MEMORY)
    ),
}


@dataclass(frozen=True, slots=True)
class ChangedStep:
    """The mean step, as it was and under a change."""

    rank: Annotated[int, "Rank that recorded the profile."]
    steps: Annotated[int, "How many steps were played again; a first one that was cold is left out."]
    recorded_ns: Annotated[int, "Mean length of a step, as recorded."]
    replayed_ns: Annotated[int, "The same, played again without a change."]
    unexplained_ns: Annotated[int, "How much of that is delays that nothing in the trace explains."]
    unprofiled_low_ns: Annotated[int, "Played again without what recording costs, at the least."]
    unprofiled_high_ns: Annotated[int, "The same, at the most."]
    changed_low_ns: Annotated[int, "The same as the low one, under the change."]
    changed_high_ns: Annotated[int, "The same as the high one, under the change."]
    gain_low_share: Annotated[float, "What the change takes off a step without the profiler, at the least."]
    gain_high_share: Annotated[float, "The same, at the most."]


@analysis(reads=REPLAY_READS)
def changed_steps(
    trace: Trace,
    *,
    by: Annotated[
        Literal[
            "no_sync",
            "no_explicit_sync",
            "no_reads",
            "graph",
            "no_loader",
            "overlap_copies",
            "no_driver_memory",
        ],
        "the change: no call waits for the device, or none outside of operators; no scalar is read; the host "
        "launches a graph; no loader is waited for; copies run beside compute; no memory is asked of the "
        "driver",
    ] = "no_sync",
) -> Table[ChangedStep]:
    """Plays steps again under a change, without what recording costs.

    Host work, kernels and copies take as long as they took, but for the change; when they start follows from
    what waits for what. `stepscope whatif` has more changes.
    """
    player = player_of(trace)
    if not player.steady:
        return Table.of(ChangedStep, [], [NOTHING_TO_PLAY])
    plain = player.play(UNCHANGED)
    change = _CHANGES[by]
    high, low = (player.mean_ns(Change(spared=spared)) for spared in player.spared)
    changed_high, changed_low = (player.mean_ns(replace(change, spared=spared)) for spared in player.spared)
    pairs = ((low, changed_low), (high, changed_high))
    gains = sorted(1 - after / before if before else 0.0 for before, after in pairs)
    row = ChangedStep(
        rank=trace.rank,
        steps=len(player.steady),
        recorded_ns=player.mean_of(player.recorded_ns),
        replayed_ns=player.mean_of(plain.dur_ns),
        unexplained_ns=player.mean_of(plain.dur_ns) - player.mean_of(plain.explained_ns),
        unprofiled_low_ns=low,
        unprofiled_high_ns=high,
        changed_low_ns=changed_low,
        changed_high_ns=changed_high,
        gain_low_share=gains[0],
        gain_high_share=gains[1],
    )
    return Table.of(ChangedStep, [row], how_steps_were_found(trace))
