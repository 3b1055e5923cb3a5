"""The optimizer's state takes much of the memory."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.allocator_holders import AllocatorHolder
from stepscope.analyses.allocators import Allocator
from stepscope.findings import Advice, Category, Saving, locations_of, rule
from stepscope.findings._snapshots import GiB, fullest
from stepscope.findings.claims import Claim, Part, Time
from stepscope.tables import Table

__all__ = ["large_optimizer_state"]

_FIX = """\
optimizer = bitsandbytes.optim.AdamW8bit(model.parameters())       # a quarter of the state's size
optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=AdamW)   # a part on each rank
fully_shard(model, offload_policy=CPUOffloadPolicy())              # or in the host's memory; slower"""
KEPT_SHARE = 0.25
"""Of 32-bit states, what 8-bit ones still take."""


@rule(category=Category.MEMORY)
def large_optimizer_state(
    allocators: Table[Allocator],
    allocator_holders: Table[AllocatorHolder],
    *,
    least_share: float = 0.25,
    least_bytes: int = GiB,
) -> Advice | None:
    """The optimizer's state takes much of the memory: it can be smaller, shared or elsewhere.

    Gain: none in time. 8-bit states take a quarter of 32-bit ones.
    """
    held = fullest(allocators)
    if held is None:
        return None
    rows = [
        row for row in allocator_holders if row.device == held.device and row.category == "optimizer state"
    ]
    total, whole = sum(row.bytes for row in rows), held.peak_bytes or held.active_bytes
    if total < max(least_bytes, least_share * whole):
        return None
    saved = (1 - KEPT_SHARE) * total
    of = "at the peak" if held.peak_bytes else "at the end"
    return Advice(
        title="The optimizer's state takes much of the memory",
        because=f"{units.size(total)} of the optimizer's state stays on the GPU, "
        f"{units.share(total / whole)} of what is in use {of}. If it is 32-bit, an 8-bit state saves "
        f"{units.size(saved)}; offloading or sharding saves more. It is worth it only where memory is what "
        "limits you.",
        saving=Saving(),
        certainty="possible",
        fix=_FIX,
        check="stepscope show allocator_holders: fewer bytes of optimizer state.",
        evidence={"state_bytes": total, "in_use_bytes": whole, "saved_by_8_bits_bytes": round(saved)},
        claims=frozenset({Claim(Time.MEMORY, Part.OPTIMIZER)}),
        locations=locations_of((row.site, units.size(row.bytes)) for row in rows),
    )
