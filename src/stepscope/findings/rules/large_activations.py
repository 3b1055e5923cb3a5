"""Activations take most of the memory at the peak."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.allocator_peaks import PeakHolder
from stepscope.analyses.allocators import Allocator
from stepscope.analyses.phases import Phase
from stepscope.findings import Advice, Category, Saving, locations_of, rule
from stepscope.findings._snapshots import GiB, sites_of, with_history
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.facts import Facts
from stepscope.findings.fixes import Change, fix_of, line
from stepscope.tables import Table

__all__ = ["large_activations"]

ROOMY_SHARE = 0.50
"""Where less of the GPU's memory is reserved, nobody needs to save any."""
_FIX = fix_of(
    line(
        Change.RECOMPUTE,
        "x = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)   # computes activations again",
    ),
)


@rule(category=Category.MEMORY)
def large_activations(
    facts: Facts,
    allocators: Table[Allocator],
    allocator_peaks: Table[PeakHolder],
    phases: Table[Phase],
    *,
    least_share: float = 0.40,
    least_bytes: int = GiB,
) -> Advice | None:
    """Activations take most of the memory at the peak: recomputing them would make room.

    Gain: none in time. Recomputation costs up to a forward pass for each step; the finding says how long that
    is if a trace stands beside the snapshot.
    """
    found = with_history(allocators)
    if found is None:
        return None
    held, peak = found
    total, sites = sites_of(allocator_peaks, held.device, "activations")
    device = facts.device(str(held.device))
    roomy = (
        device and device.memory_bytes and (held.reserved_peak_bytes or 0) < ROOMY_SHARE * device.memory_bytes
    )
    if roomy or total < max(least_bytes, least_share * peak):
        return None
    forward = _forward_ns(phases)
    costs = (
        f"That costs up to {units.duration(forward)} of GPU time in a step, the time of its forward pass."
        if forward
        else "What that costs in time, a snapshot does not say: up to one more forward pass in a step."
    )
    return Advice(
        title="Activations take most of the memory",
        because=f"{units.size(total)} of {units.size(peak)} in use at the peak are activations "
        f"({units.share(total / peak)}). Recomputing them in backward frees up to that much. {costs} It is "
        "worth it only where memory is what limits you.",
        saving=Saving(),
        certainty="possible",
        fix=_FIX,
        check="stepscope show allocator_peaks: fewer bytes of activations.",
        evidence={
            "activations_bytes": total,
            "peak_bytes": peak,
            "activations_share": total / peak,
            "forward_device_ns": forward,
        },
        claims=frozenset({Claim(Time.MEMORY, Part.RECOMPUTATION)}),
        locations=locations_of((site, units.size(size)) for site, size in sites.most_common(3)),
    )


def _forward_ns(phases: Table[Phase]) -> int | None:
    steps = {row.step for row in phases}
    total = sum(row.device_ns for row in phases if row.phase == "forward")
    return round(total / len(steps)) if steps and total else None
