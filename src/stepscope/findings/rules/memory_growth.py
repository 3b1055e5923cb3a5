"""Memory grows with every step."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from stepscope import units
from stepscope.analyses.allocations import Allocation
from stepscope.analyses.memory import DeviceMemory
from stepscope.analyses.memory_peaks import PeakMemory
from stepscope.analyses.memory_steps import MemoryStep
from stepscope.analyses.starving_phases import StarvingPhase
from stepscope.findings import Advice, Category, Location, Saving, locations_of, rule
from stepscope.findings._device_memory import no_memory
from stepscope.findings.claims import Claim, Time
from stepscope.findings.facts import Facts
from stepscope.tables import Table

__all__ = ["memory_growth"]

LEAST_STEPS = 3
_FIX = """\
losses.append(loss.detach())     # a loss with its graph keeps all activations of its step
total += loss.item()             # or read a number, once in many steps
history = history[-100:]         # limit lists, dicts and hooks that collect tensors"""


@rule(category=Category.MEMORY, yields_to=("retained_graph",))
def memory_growth(  # noqa: PLR0913  # one parameter for each table
    facts: Facts,
    memory: Table[DeviceMemory],
    memory_steps: Table[MemoryStep],
    memory_peaks: Table[PeakMemory],
    allocations: Table[Allocation],
    starving_phases: Table[StarvingPhase],
    *,
    least_bytes: int = 65_536,
) -> Advice | None:
    """Every step ends with more memory allocated than it began with: something keeps tensors.

    Gain: none in time. The run fails when the GPU's memory is full; the growth in a step tells after how many
    steps.
    """
    if not facts.device_work:
        return None
    if not facts.memory:
        raise no_memory(facts)
    # What did not grow over all steps did not grow in each of them: most need no look at these.
    grows = any(row.steps >= LEAST_STEPS and (row.growth_bytes or 0) > 0 for row in memory)
    grown = _grown(memory_steps) if grows else None
    if grown is None or grown.per_step < least_bytes:
        return None
    device = facts.device(grown.device)
    left = max(0, device.memory_bytes - grown.last_bytes) if device and device.memory_bytes else None
    steps_left = int(left / grown.per_step) if left is not None else None
    trains = any(row.phase in ("backward", "optimizer") and row.launches for row in starving_phases)
    kept = _kept(memory_peaks, grown.device)
    return Advice(
        title="Memory grows with every step",
        because=f"In each of {units.count(grown.steps)} steps the allocated memory grew, by "
        f"{units.size(grown.per_step)} on average."
        + (f" At this rate it is full after {_more_steps(steps_left)}." if steps_left is not None else "")
        + (f" {kept[0]} allocated most of what is kept." if kept else "")
        + ("" if trains else " A cache that grows with its sequence does so by design."),
        saving=Saving(),
        certainty="likely" if trains else "possible",
        fix=_FIX,
        check="stepscope show memory_steps: growth_bytes is 0 after the first steps.",
        evidence={
            "growth_per_step_bytes": grown.per_step,
            "steps": grown.steps,
            "end_bytes": grown.last_bytes,
            "memory_bytes": device.memory_bytes if device else None,
            "steps_until_full": steps_left,
        },
        claims=frozenset({Claim(Time.MEMORY)}),
        locations=_locations(kept, allocations, grown),
        risk=trains,
    )


def _more_steps(count: int) -> str:
    return "1 more step" if count == 1 else f"about {units.count(count)} more steps"


class _Growth:
    """A device whose memory grew in every step."""

    def __init__(self, device: str, rows: list[MemoryStep]) -> None:
        self.device = device
        self.steps = len(rows)
        self.last_bytes = rows[-1].end_bytes
        self.per_step = (rows[-1].end_bytes - rows[0].start_bytes) / len(rows)


def _grown(memory_steps: Table[MemoryStep]) -> _Growth | None:
    """The device whose memory grew most, if it grew in every step and from step to step."""
    by_device: dict[str, list[MemoryStep]] = {}
    for row in memory_steps:
        if row.device != "cpu":
            by_device.setdefault(row.device, []).append(row)
    found = [
        _Growth(device, rows)
        for device, rows in by_device.items()
        if len(rows) >= LEAST_STEPS
        and all(row.growth_bytes > 0 for row in rows)
        and all(later.end_bytes > row.end_bytes for row, later in pairwise(rows))
    ]
    return max(found, key=lambda growth: growth.per_step, default=None)


def _kept(memory_peaks: Table[PeakMemory], device: str) -> list[str]:
    """Operators whose blocks were allocated in the profile and kept, most memory first."""
    sizes: Counter[str] = Counter()
    for row in memory_peaks:
        if row.device == device and row.freed_in == "kept" and row.phase != "before" and row.op:
            sizes[row.op] += row.bytes
    return [op for op, _ in sizes.most_common(2)]


def _locations(kept: list[str], allocations: Table[Allocation], grown: _Growth) -> tuple[Location, ...]:
    """Functions that allocate about as much with that operator as is kept; most first."""
    least = 0.5 * grown.per_step * (grown.steps - 1)  # the table leaves the first step out
    rows = [row for row in allocations if row.device == grown.device and row.op in kept[:1]]
    rows = [row for row in rows if (row.allocated_bytes or 0) >= least]
    rows.sort(key=lambda row: -(row.allocated_bytes or 0))
    return locations_of((row.user_frame, f"allocates with {row.op}") for row in rows)
