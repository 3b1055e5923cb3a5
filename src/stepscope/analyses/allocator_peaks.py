"""What was in use when a snapshot's history held the most memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from stepscope import units
from stepscope.analyses import analysis
from stepscope.analyses._allocators import (
    BLOCKS,
    EVENTS,
    FRAMES,
    KINDS,
    LEVELS,
    LIVES,
    SEGMENTS,
    SITES,
    STACKS,
    STATE,
    history_notes,
    missing,
    sql,
)
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["PeakHolder", "allocator_peaks"]


@dataclass(frozen=True, slots=True)
class PeakHolder:
    """Blocks of one kind that were in use at the peak of a device; its rows sum to the peak."""

    device: Annotated[int, "Index of the device."]
    category: Annotated[
        str,
        "parameters: made where modules are built, moved or loaded. activations: made in forward, freed in "
        "backward. gradients: made in backward, and outlive it. optimizer state: made by the optimizer, and "
        "outlives its step. temporaries: freed in the phase that made them. unknown: none of these, or in "
        "use before the history began.",
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


@analysis(
    reads={
        "allocator_events": EVENTS,
        "allocator_blocks": BLOCKS,
        "allocator_segments": SEGMENTS,
        "allocator_stacks": STACKS,
        "allocator_frames": FRAMES,
    }
)
def allocator_peaks(trace: Trace) -> Table[PeakHolder]:
    """Says what was in use at the peak of a snapshot's history, by kind, phase, line of code and module."""
    notes = missing(trace) or history_notes(trace)
    if notes:
        return Table.of(PeakHolder, (), notes)
    parts = sql(trace, STATE, LEVELS, LIVES, SITES, KINDS)
    table = trace.query(PeakHolder, f"{parts}, {_SQL}")
    peaks = trace.rows(
        f"{sql(trace, STATE, LEVELS)} SELECT device, peak_bytes, peak_nth FROM peaks ORDER BY device"
    )
    return table.with_notes(
        tuple(
            f"Device {row['device']}: {units.size(row['peak_bytes'])} "
            + ("before the first event." if row["peak_nth"] < 0 else f"after event {row['peak_nth']:,}.")
            for row in peaks
        )
    )
