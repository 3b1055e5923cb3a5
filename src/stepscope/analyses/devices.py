"""How busy each device was, and with what."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from stepscope import _native
from stepscope.analyses import analysis
from stepscope.analyses._device_time import NUMBERED, Windows
from stepscope.costs.occupancy import LaunchShape, Multiprocessor, occupancy_share
from stepscope.records import dataclass
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
    window: Annotated[
        str, "span: from the first start to the last end of its work; steps: inside the marked steps."
    ]
    window_ns: Annotated[int, "Length of the window."]
    busy_ns: Annotated[int, "Time in which anything ran on it."]
    idle_ns: Annotated[int, "The rest of the window."]
    kernel_ns: Annotated[int, "Time in which a kernel ran."]
    compute_ns: Annotated[int, "Time in which a kernel ran that does not communicate."]
    communication_ns: Annotated[int, "Time in which a communication kernel ran."]
    exposed_communication_ns: Annotated[
        int, "Communication with no compute beside it; includes waiting for peers."
    ]
    overlap_share: Annotated[float | None, "Share of communication with compute beside it; NULL without any."]
    memcpy_ns: Annotated[int, "Time in which a copy ran."]
    memset_ns: Annotated[int, "Time in which a fill ran."]
    unlinked_ns: Annotated[int, "Summed time of work in the file whose launch is not in the profile."]
    utilization_share: Annotated[float | None, "Share of the window in which a kernel ran."]
    sm_efficiency_share: Annotated[
        float | None, "Share of the multiprocessors that had a block, over the window."
    ]
    occupancy_share: Annotated[
        float | None, "Estimated: part of the threads that it could hold, mean over the summed kernel time."
    ]
    occupancy_known_share: Annotated[
        float | None, "Share of the summed kernel time whose occupancy is known and in that mean."
    ]


_SPANS = """
    SELECT device_name, min(start_ns) AS low, max(start_ns + coalesce(dur_ns, 0)) AS high,
           coalesce(sum(dur_ns) FILTER (launch IS NULL), 0)::BIGINT AS unlinked,
           count(*) FILTER (kind = 'kernel' AND blocks_per_sm > 0 AND isfinite(blocks_per_sm)) > 0 AS known
    FROM device_work WHERE start_ns IS NOT NULL GROUP BY device_name ORDER BY device_name
"""
_MARKED = "SELECT start_ns, end_ns FROM steps WHERE source = 'mark' ORDER BY start_ns, end_ns"
_NO_ESTIMATE = (
    "(occupancy_percent = 0 AND warps_per_sm >= 1 OR occupancy_percent IS NULL AND registers IS NOT NULL)"
)
# The profiler's estimate of occupancy, or all that is needed for one where it wrote 0 or nothing.
_ESTIMATED = f"""
    SELECT *, CASE WHEN kind <> 'kernel' THEN NULL
                   WHEN {_NO_ESTIMATE} THEN concat_ws(' ', grid, block, registers, shared_bytes)
                   ELSE occupancy_percent::VARCHAR END AS grouped
    FROM device_work WHERE start_ns IS NOT NULL AND device_name = $device
"""
_ESTIMATES = f"""
    SELECT grouped, bool_or({_NO_ESTIMATE}) AS missing, any_value(occupancy_percent) AS percent,
           any_value(grid) AS grid, any_value(block) AS block, any_value(registers) AS registers,
           any_value(shared_bytes) AS shared
    FROM ({_ESTIMATED}) WHERE grouped IS NOT NULL GROUP BY grouped ORDER BY grouped
"""
# Weights are parts of 1e12, a filled device: whole numbers add up without drift.
_WORK = f"""
    SELECT start_ns, coalesce(dur_ns, 0) AS dur_ns,
           (CASE kind WHEN 'memcpy' THEN 2 WHEN 'memset' THEN 3 ELSE communicates::INT END)::BIGINT AS kind,
           (CASE WHEN kind = 'kernel' AND blocks_per_sm > 0 AND isfinite(blocks_per_sm)
                 THEN round(least(blocks_per_sm, 1) * 1e12) ELSE 0 END)::BIGINT AS weight,
           (CASE WHEN kind <> 'kernel' THEN -1 ELSE coalesce(number, $unknown) END)::BIGINT AS occupancy
    FROM ({_ESTIMATED}) LEFT JOIN {NUMBERED} USING (grouped) ORDER BY start_ns
"""


@analysis(
    reads={
        "steps": ("start_ns", "end_ns", "source"),
        "device_work": (
            "device_name",
            "start_ns",
            "dur_ns",
            "kind",
            "communicates",
            "blocks_per_sm",
            "warps_per_sm",
            "occupancy_percent",
            "grid",
            "block",
            "registers",
            "shared_bytes",
            "launch",
        ),
    }
)
def devices(trace: Trace) -> Table[Device]:
    """Says how busy each device was: compute, communication, copies, idle.

    Each device has a row for the span of its work and, where the profiler marked steps, one for the union of
    the steps.
    """
    rows = list(_rows(trace))
    notes = [] if rows else ["No device work: record with ProfilerActivity.CUDA among the activities."]
    if any((row.occupancy_known_share or 0) < 1 for row in rows if row.kernel_ns):
        notes.append(
            "Occupancy is unknown where the profile has neither an estimate nor both launch shape and device "
            "properties; profiles of AMD devices have none of these."
        )
    return Table.of(Device, rows, notes)


def _rows(trace: Trace) -> Iterator[Device]:
    properties = _properties(trace.meta.metadata.get("deviceProperties"))
    marked = trace.rows(_MARKED)
    steps = Windows([row["start_ns"] for row in marked], [row["end_ns"] for row in marked])
    for span in trace.rows(_SPANS):
        device = properties.get(span["device_name"], {})
        windows = {"span": Windows([span["low"]], [span["high"]])} | ({"steps": steps} if marked else {})
        estimates = _estimates(trace, span["device_name"], Multiprocessor.of(device))
        sweeps = {
            name: (
                _native.DeviceSweep(window.starts, window.ends),
                _native.ExclusiveSweep(window.starts, window.ends, len(estimates) + 1),
            )
            for name, window in windows.items()
        }
        params: dict[str, Any] = {"groups": list(estimates), "numbers": list(range(len(estimates)))}
        params |= {"device": span["device_name"], "unknown": len(estimates)}
        for batch in trace.batches(_WORK, **params):
            start, dur, kind, weight, occupancy = (view(batch[column]) for column in _COLUMNS)
            for busy, held in sweeps.values():
                busy.push(start, dur, kind, weight)
                held.push(start, dur, occupancy)
        for name, (busy, held) in sweeps.items():
            busy.finish()
            held.finish()
            mean, known = _mean_occupancy(held.total_ns, list(estimates.values()))
            yield Device(
                rank=trace.rank,
                device=span["device_name"],
                name=str(device.get("name") or "") or None,
                window=name,
                **_figures(busy, known_blocks=span["known"]),
                unlinked_ns=span["unlinked"],
                occupancy_share=mean,
                occupancy_known_share=known,
            )


_COLUMNS = ("start_ns", "dur_ns", "kind", "weight", "occupancy")


def _figures(sweep: _native.DeviceSweep, *, known_blocks: bool) -> dict[str, Any]:
    window = sweep.window_ns
    compute, communication, memcpy, memset = sweep.by_kind_ns
    return {
        "window_ns": window,
        "busy_ns": sweep.busy_ns,
        "idle_ns": window - sweep.busy_ns,
        "kernel_ns": sweep.kernel_ns,
        "compute_ns": compute,
        "communication_ns": communication,
        "exposed_communication_ns": communication - sweep.overlap_ns,
        "overlap_share": sweep.overlap_ns / communication if communication else None,
        "memcpy_ns": memcpy,
        "memset_ns": memset,
        "utilization_share": sweep.kernel_ns / window if window else None,
        "sm_efficiency_share": sweep.filled_ns / window if window and known_blocks else None,
    }


def _estimates(trace: Trace, device: str, on: Multiprocessor | None) -> dict[str, float | None]:
    """The occupancy that each distinct text of an estimate stands for."""
    found: dict[str, float | None] = {}
    for row in trace.rows(_ESTIMATES, device=device):
        if row["missing"]:
            shape = LaunchShape.of(row["grid"], row["block"], row["registers"], row["shared"])
            found[row["grouped"]] = occupancy_share(shape, on) if shape and on else None
        else:
            # What is no share of anything (-99, inf) is what the profiler writes when it does not know.
            found[row["grouped"]] = row["percent"] / 100 if 0 <= row["percent"] <= 100 else None
    return found


def _mean_occupancy(times: list[int], estimates: list[float | None]) -> tuple[float | None, float | None]:
    """The mean over kernel time where it is known, and the part of kernel time where it is."""
    total = sum(times)
    if not total:
        return None, None
    known = [(time, share) for time, share in zip(times, estimates, strict=False) if share is not None]
    known_ns = sum(time for time, _ in known)
    mean = sum(time * share for time, share in known) / known_ns if known_ns else None
    return mean, known_ns / total


def _properties(written: Any) -> dict[str, Mapping[str, Any]]:
    """Device properties by the index of the device."""
    if not isinstance(written, list):
        return {}
    return {str(one["id"]): one for one in written if isinstance(one, dict) and "id" in one}
