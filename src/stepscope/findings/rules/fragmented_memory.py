"""Reserved memory is free, and cannot be given back."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.allocator_pools import AllocatorPool
from stepscope.analyses.fragmented_segments import FragmentedSegment
from stepscope.findings import Advice, Category, Saving, locations_of, rule
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.fixes import Change, fix_of, line
from stepscope.tables import Table

__all__ = ["fragmented_memory"]

_FIX = fix_of(
    line(
        Change.ALLOCATOR,
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python train.py   # segments give pages back",
    ),
    "# allocate what stays (buffers, caches, states) before the first step, not in between",
)


@rule(category=Category.MEMORY)
def fragmented_memory(
    allocator_pools: Table[AllocatorPool],
    fragmented_segments: Table[FragmentedSegment],
    *,
    least_share: float = 0.10,
    least_bytes: int = 256 << 20,
) -> Advice | None:
    """Much of the reserved memory is free, but in segments that a few blocks hold.

    Gain: none in time. Expandable segments could give back the whole pages among it.
    """
    reserved = sum(row.reserved_bytes for row in allocator_pools)
    rows = [row for row in allocator_pools if not row.expandable]
    pinned = sum(row.pinned_bytes for row in rows)
    if pinned < max(least_bytes, least_share * reserved):
        return None
    pages, returnable = sum(row.pinned_page_bytes for row in rows), sum(row.returnable_bytes for row in rows)
    segments = sum(row.pinned_segments for row in rows)
    return Advice(
        title="Reserved memory is free and cannot be given back",
        because=f"{units.size(pinned)} of {units.size(reserved)} reserved is free, but lies in "
        f"{units.counted(segments, 'segment')} that other blocks hold. {units.size(pages)} of it are whole "
        "pages, which expandable segments could give back."
        + (
            f" Another {units.size(returnable)} is all free: empty_cache() gives it back."
            if returnable
            else ""
        ),
        saving=Saving(),
        certainty="likely",
        fix=_FIX,
        check="stepscope show allocator_pools: pinned_bytes is smaller.",
        evidence={
            "reserved_bytes": reserved,
            "pinned_bytes": pinned,
            "pinned_page_bytes": pages,
            "returnable_bytes": returnable,
            "pinned_segments": segments,
        },
        claims=frozenset({Claim(Time.MEMORY, Part.ALLOCATION)}),
        locations=locations_of(
            (row.site, f"holds a segment with {units.size(row.free_bytes)} free")
            for row in fragmented_segments
        ),
    )
