"""Which segments are held by a few blocks."""

from __future__ import annotations

from typing import Annotated

from stepscope.analyses import analysis
from stepscope.analyses._allocators import FRAMES, PINNED, SITES, STACKS, missing
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["FragmentedSegment", "fragmented_segments"]


@dataclass(frozen=True, slots=True)
class FragmentedSegment:
    """A segment at the end of a snapshot that is partly free, and cannot be given back."""

    device: Annotated[int, "Index of the device."]
    address: Annotated[int | None, "Where it begins."]
    kind: Annotated[str | None, "large, or small for requests up to 1 MiB."]
    bytes: Annotated[int, "Its size."]
    active_bytes: Annotated[int, "Of it in use."]
    free_bytes: Annotated[int, "Of it free."]
    free_share: Annotated[float, "The same as a share of its size."]
    largest_free_bytes: Annotated[int, "Its largest free block."]
    blocks: Annotated[int, "Blocks in use that hold it."]
    site: Annotated[str | None, "Line of code that allocated the largest of these; NULL: no stack."]


_SQL = f"""
    WITH {PINNED.replace("{stack}", "b.stack")}, {SITES}
    SELECT device, address, kind, bytes, active_bytes, free_bytes, free_bytes / bytes::DOUBLE AS free_share,
           largest_free_bytes, blocks, site
    FROM pinned LEFT JOIN sites ON sites.stack = pinned.stack
    WHERE active_bytes > 0 AND free_bytes > 0
    ORDER BY device, free_bytes DESC, address
"""


@analysis(
    reads={
        "allocator_blocks": ("segment", "address", "bytes", "state", "stack"),
        "allocator_segments": ("segment", "device", "address", "bytes", "kind", "pool", "expandable"),
        "allocator_stacks": STACKS,
        "allocator_frames": FRAMES,
    }
)
def fragmented_segments(trace: Trace) -> Table[FragmentedSegment]:
    """Lists the segments that a few blocks hold, with the line of code that allocated the largest one."""
    if notes := missing(trace):
        return Table.of(FragmentedSegment, (), notes)
    return trace.query(FragmentedSegment, _SQL)
