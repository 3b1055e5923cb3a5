"""What of the reserved memory is free, and what of that can be given back."""

from __future__ import annotations

from typing import Annotated

from stepscope.analyses import analysis
from stepscope.analyses._allocators import PINNED, missing
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["AllocatorPool", "allocator_pools"]


@dataclass(frozen=True, slots=True)
class AllocatorPool:
    """The segments of one pool at the end of a snapshot."""

    device: Annotated[int, "Index of the device."]
    kind: Annotated[str | None, "large, or small for requests up to 1 MiB."]
    pool: Annotated[str | None, "Private pool, such as that of a CUDA graph; 0, 0 is the common one."]
    expandable: Annotated[int | None, "1: expandable segments; NULL: unknown."]
    segments: Annotated[int, "How many segments."]
    reserved_bytes: Annotated[int, "Their size."]
    active_bytes: Annotated[int, "Of it in use."]
    returnable_bytes: Annotated[int, "In segments that are all free: torch.cuda.empty_cache() gives it back."]
    pinned_segments: Annotated[int, "Segments with both free and used blocks."]
    pinned_bytes: Annotated[
        int, "Free blocks in segments that are partly in use: reserved, and cannot be given back."
    ]
    pinned_page_bytes: Annotated[
        int,
        "Of that, whole pages of 20 MiB (small pool: 2 MiB): what expandable segments could give back with "
        "the same blocks in the same places.",
    ]
    largest_free_bytes: Annotated[int, "The largest free block: larger requests need a new segment."]


_SQL = f"""
    WITH {PINNED.replace("{stack}", "NULL::BIGINT")}
    SELECT device, kind, pool, expandable, count(*) AS segments, sum(bytes)::BIGINT AS reserved_bytes,
           sum(active_bytes)::BIGINT AS active_bytes,
           coalesce(sum(bytes) FILTER (active_bytes = 0), 0)::BIGINT AS returnable_bytes,
           count(*) FILTER (active_bytes > 0 AND free_bytes > 0) AS pinned_segments,
           coalesce(sum(free_bytes) FILTER (active_bytes > 0), 0)::BIGINT AS pinned_bytes,
           coalesce(sum(page_bytes) FILTER (active_bytes > 0), 0)::BIGINT AS pinned_page_bytes,
           max(largest_free_bytes) AS largest_free_bytes
    FROM pinned GROUP BY device, kind, pool, expandable ORDER BY device, reserved_bytes DESC, kind, pool
"""


@analysis(
    reads={
        "allocator_blocks": ("segment", "address", "bytes", "state"),
        "allocator_segments": ("segment", "device", "address", "bytes", "kind", "pool", "expandable"),
    }
)
def allocator_pools(trace: Trace) -> Table[AllocatorPool]:
    """Says how much reserved memory is free at the end of a snapshot, and what of it cannot be given back."""
    if notes := missing(trace):
        return Table.of(AllocatorPool, (), notes)
    return trace.query(AllocatorPool, _SQL)
