"""Who holds the memory at the end of a snapshot."""

from __future__ import annotations

from typing import Annotated

from stepscope.analyses import analysis
from stepscope.analyses._allocators import LIFE_READS, lives_sql, missing
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["AllocatorHolder", "allocator_holders"]


@dataclass(frozen=True, slots=True)
class AllocatorHolder:
    """Blocks that one line of code allocated and that are in use at the end."""

    device: Annotated[int, "Index of the device."]
    site: Annotated[
        str | None, "Innermost frame of the user's own code, or what there is instead; NULL: no stack."
    ]
    module: Annotated[str | None, "Innermost module of torch.nn around the allocation."]
    category: Annotated[str, "What it seems to be, as in allocator_peaks."]
    op: Annotated[str | None, "Operator that allocated, where C++ frames were recorded."]
    blocks: Annotated[int, "How many blocks."]
    bytes: Annotated[int, "Their size."]
    share: Annotated[float | None, "Share of what is in use on the device."]
    largest_bytes: Annotated[int, "The largest of them."]
    first_nth: Annotated[int | None, "The first event of the history that made one; NULL: before it."]
    last_nth: Annotated[int | None, "The last event that made one."]
    awaiting_blocks: Annotated[int, "Of the blocks, those that are freed, but that a stream still uses."]


_SQL = """
    SELECT device, site, module, category, op, count(*) AS blocks, sum(bytes)::BIGINT AS bytes,
           sum(bytes) / nullif(any_value(active_bytes), 0)::DOUBLE AS share, max(bytes) AS largest_bytes,
           min(made_nth) AS first_nth, max(made_nth) AS last_nth, count(awaits) AS awaiting_blocks
    FROM kinds JOIN ends USING (device)
    LEFT JOIN (SELECT DISTINCT device, address, true AS awaits FROM state WHERE active AND NOT allocated)
        USING (device, address)
    WHERE freed_nth IS NULL
    GROUP BY device, site, module, category, op ORDER BY device, bytes DESC, site, module, category, op
"""


@analysis(reads=LIFE_READS)
def allocator_holders(trace: Trace) -> Table[AllocatorHolder]:
    """Says which lines of code hold the memory that is in use at the end of a snapshot."""
    if notes := missing(trace):
        return Table.of(AllocatorHolder, (), notes)
    parts = lives_sql(trace)
    return trace.query(AllocatorHolder, f"{parts}, {_SQL}")
