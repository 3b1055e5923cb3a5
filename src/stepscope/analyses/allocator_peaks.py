"""What was in use when a snapshot's history held the most memory."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

from stepscope import units
from stepscope.analyses import analysis
from stepscope.analyses._allocators import LIFE_READS, history_notes, lives_sql, missing
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["PeakHolder", "allocator_peaks"]


@dataclass(frozen=True, slots=True)
class PeakHolder:
    """Blocks of one kind that were in use at the peak of a device; its rows sum to the peak."""

    device: Annotated[int, "Index of the device."]
    category: Annotated[
        str,
        "parameters: made where modules are built, moved or loaded. activations: made before backward, "
        "freed in it. gradients: made in backward, and outlive it. optimizer state: made by the optimizer, "
        "and outlives its step. temporaries: freed in the phase that made them. workspaces: of cuBLAS and "
        "cuDNN. unknown: none of these, or in use before the history began.",
    ]
    phase: Annotated[str, "Phase that allocated them; before: in use when the history began."]
    freed_in: Annotated[str, "Phase that freed them; kept: in use at the end."]
    site: Annotated[str | None, "Innermost frame of the user's own code, or what there is instead."]
    module: Annotated[str | None, "Innermost module of torch.nn around the allocation."]
    blocks: Annotated[int | None, "How many blocks; NULL for what the history does not list."]
    bytes: Annotated[int, "Their size."]
    share: Annotated[float | None, "Share of the peak."]


_SQL = """
    listed AS (
        SELECT device, category, phase, freed_in, site, module, count(*) AS blocks, sum(bytes) AS bytes
        FROM kinds JOIN peaks USING (device)
        WHERE coalesce(made_nth, -1) <= peak_nth AND (freed_nth IS NULL OR freed_nth > peak_nth)
        GROUP BY ALL),
    rows AS (
        SELECT * FROM listed
        UNION ALL
        SELECT device, 'unknown', 'before', 'kept', NULL, NULL, NULL, peak_bytes - coalesce(listed_bytes, 0)
        FROM peaks LEFT JOIN (SELECT device, sum(bytes) AS listed_bytes FROM listed GROUP BY device)
             USING (device))
    SELECT device, category, phase, freed_in, site, module, blocks, bytes::BIGINT AS bytes,
           bytes / nullif(peak_bytes, 0)::DOUBLE AS share
    FROM rows JOIN peaks USING (device) WHERE bytes <> 0
    ORDER BY device, rows.bytes DESC, category, phase, freed_in, site, module
"""


@analysis(reads=LIFE_READS)
def allocator_peaks(trace: Trace) -> Table[PeakHolder]:
    """Says what was in use at the peak of a snapshot's history, by kind, phase, line of code and module."""
    notes = missing(trace) or history_notes(trace)
    if notes:
        return Table.of(PeakHolder, (), notes)
    parts = lives_sql(trace)
    table = trace.query(PeakHolder, f"{parts}, {_SQL}")
    sums: Counter[int] = Counter()
    for row in table:
        sums[row.device] += row.bytes
    return table.with_notes(tuple(f"Device {device}: {units.size(size)}." for device, size in sums.items()))
