"""Every step keeps what its forward pass made."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.allocator_steps import AllocatorStep
from stepscope.analyses.allocators import Allocator
from stepscope.findings import Advice, Category, Saving, locations_of, rule
from stepscope.findings._snapshots import with_history
from stepscope.findings.claims import Claim, Part, Time
from stepscope.tables import Table

__all__ = ["retained_graph"]

LEAST_STEPS = 3
_FIX = """\
losses.append(loss.detach())     # a loss with its graph keeps all activations of its step
total += loss.item()             # or read a number, once in many steps
loss.backward()                  # without retain_graph=True, which keeps the graph as long as the loss"""


@rule(category=Category.MEMORY)
def retained_graph(
    allocators: Table[Allocator], allocator_steps: Table[AllocatorStep], *, least_bytes: int = 1 << 20
) -> Advice | None:
    """Every step keeps memory that the same line of its forward pass allocated: the graph is kept.

    Gain: none in time. The run fails when the GPU's memory is full.
    """
    if with_history(allocators) is None:
        return None
    for device in sorted({row.device for row in allocator_steps}):
        rows = [row for row in allocator_steps if row.device == device][1:]  # the first one fills caches
        if len(rows) < LEAST_STEPS or any(row.growth_bytes <= 0 for row in rows):
            continue
        sites = {(row.kept_site, row.kept_phase) for row in rows[:-1]}  # the last one may not be over
        kept = min(row.kept_site_bytes or 0 for row in rows[:-1])
        growth = sum(row.growth_bytes for row in rows) / len(rows)
        site, phase = next(iter(sites))
        if len(sites) > 1 or site is None or phase != "forward" or min(kept, growth) < least_bytes:
            continue
        return _advice(rows, site, kept, growth)
    return None


def _advice(rows: list[AllocatorStep], site: str, kept: int, growth: float) -> Advice:
    return Advice(
        title="Every step keeps what its forward pass made",
        because=f"In each of {units.count(len(rows))} steps memory grew, by {units.size(growth)} on average. "
        f"Each step keeps at least {units.size(kept)} that the same line of the forward pass allocated, so "
        "something holds its graph.",
        saving=Saving(),
        certainty="likely",
        fix=_FIX,
        check="stepscope show allocator_steps: growth_bytes is 0 after the first steps.",
        evidence={
            "growth_per_step_bytes": growth,
            "kept_per_step_bytes": kept,
            "steps": len(rows),
            "end_bytes": rows[-1].end_bytes,
        },
        claims=frozenset({Claim(Time.MEMORY, Part.LOSS)}),
        locations=locations_of([(site, f"{units.size(kept)} kept in a step")]),
        risk=True,
    )
