"""How busy each device was, and with what."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from stepscope import _native
from stepscope.analyses import analysis
from stepscope.store.columns import view
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["Device", "devices"]


@dataclass(frozen=True, slots=True)
class Device:
    """One device in one window of time."""

    rank: Annotated[int, "Rank that recorded the profile."]
    device: Annotated[str, "The device, by its index."]
    name: Annotated[str | None, "Its product name, where the profile has it."]
    window: Annotated[str, "span: from the first start to the last end of its work."]
    window_ns: Annotated[int, "Length of the window."]
    busy_ns: Annotated[int, "Time in which anything ran on it."]
    idle_ns: Annotated[int, "The rest of the window."]
    kernel_ns: Annotated[int, "Time in which a kernel ran."]
    compute_ns: Annotated[int, "Time in which a kernel ran that does not communicate."]
    communication_ns: Annotated[int, "Time in which a communication kernel ran."]
    exposed_communication_ns: Annotated[
        int, "Communication with no compute beside it; includes waiting for peers."
    ]
    overlap_share: Annotated[float | None, "Part of communication with compute beside it; NULL without any."]
    memcpy_ns: Annotated[int, "Time in which a copy ran."]
    memset_ns: Annotated[int, "Time in which a fill ran."]
    unlinked_ns: Annotated[int, "Summed time of work in the file whose launch is not in the profile."]
    utilization_share: Annotated[float | None, "Part of the window in which a kernel ran."]
    sm_efficiency_share: Annotated[
        float | None, "Part of the multiprocessors that had a block, over the window."
    ]
    occupancy_share: Annotated[float | None, "Mean occupancy over kernel time; NULL: not worked out yet."]
    occupancy_known_share: Annotated[float | None, "Part of kernel time whose occupancy is known."]


_SPANS = """
    SELECT device_name, min(start_ns) AS low, max(start_ns + coalesce(dur_ns, 0)) AS high,
           coalesce(sum(dur_ns) FILTER (launch IS NULL), 0)::BIGINT AS unlinked,
           count(*) FILTER (kind = 'kernel' AND blocks_per_sm > 0 AND isfinite(blocks_per_sm)) > 0 AS known
    FROM device_work WHERE start_ns IS NOT NULL GROUP BY device_name ORDER BY device_name
"""
# Weights are parts of 1e12, a filled device: whole numbers add up without drift.
_WORK = """
    SELECT start_ns, coalesce(dur_ns, 0) AS dur_ns,
           (CASE kind WHEN 'memcpy' THEN 2 WHEN 'memset' THEN 3 ELSE communicates::INT END)::BIGINT AS kind,
           (CASE WHEN kind = 'kernel' AND blocks_per_sm > 0 AND isfinite(blocks_per_sm)
                 THEN round(least(blocks_per_sm, 1) * 1e12) ELSE 0 END)::BIGINT AS weight
    FROM device_work WHERE start_ns IS NOT NULL AND device_name = $device ORDER BY start_ns
"""


@analysis(
    reads={
        "device_work": (
            "device_name",
            "start_ns",
            "dur_ns",
            "kind",
            "communicates",
            "blocks_per_sm",
            "launch",
        )
    }
)
def devices(trace: Trace) -> Table[Device]:
    """Says how busy each device was: compute, communication, copies, idle."""
    return Table.of(Device, _rows(trace))


def _rows(trace: Trace) -> Iterator[Device]:
    names = _product_names(trace.meta["metadata"].get("deviceProperties"))
    for span in trace.arrow(_SPANS).to_pylist():
        sweep = _native.DeviceSweep([span["low"]], [span["high"]])
        for batch in trace.batches(_WORK, device=span["device_name"]):
            sweep.push(*(view(batch[column]) for column in ("start_ns", "dur_ns", "kind", "weight")))
        sweep.finish()
        window = sweep.window_ns
        compute, communication, memcpy, memset = sweep.by_kind_ns
        yield Device(
            rank=trace.rank,
            device=span["device_name"],
            name=names.get(span["device_name"]),
            window="span",
            window_ns=window,
            busy_ns=sweep.busy_ns,
            idle_ns=window - sweep.busy_ns,
            kernel_ns=sweep.kernel_ns,
            compute_ns=compute,
            communication_ns=communication,
            exposed_communication_ns=communication - sweep.overlap_ns,
            overlap_share=sweep.overlap_ns / communication if communication else None,
            memcpy_ns=memcpy,
            memset_ns=memset,
            unlinked_ns=span["unlinked"],
            utilization_share=sweep.kernel_ns / window if window else None,
            sm_efficiency_share=sweep.filled_ns / window if window and span["known"] else None,
            occupancy_share=None,
            occupancy_known_share=None,
        )


def _product_names(properties: Any) -> dict[str, str]:
    if not isinstance(properties, list):
        return {}
    return {
        str(one["id"]): str(one["name"])
        for one in properties
        if isinstance(one, dict) and "id" in one and "name" in one
    }
