"""What counters measured of kernels: bytes, FLOPs, how near the peaks; and which kernels these are."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import fields, replace
from typing import Annotated, Any

from stepscope import units
from stepscope.analyses import analysis
from stepscope.records import dataclass
from stepscope.schema.kernel_names import function_of
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["MeasuredKernel", "measured_kernels"]


@dataclass(frozen=True, slots=True)
class MeasuredKernel:
    """Launches of one kernel with one shape that were measured; figures are means of a launch."""

    kernel: Annotated[str, "Name of the kernel, as Nsight Compute has it."]
    grid: Annotated[str | None, "Blocks in x, y, z."]
    block: Annotated[str | None, "Threads of a block in x, y, z."]
    launches: Annotated[int, "How many launches were measured."]
    duration_ns: Annotated[float | None, "How long one takes, alone and at the clock of the measurement."]
    bytes: Annotated[float | None, "Bytes that one moves to and from the device's memory, measured."]
    flops: Annotated[float | None, "FLOPs that one does, measured: on all units, fused ones as two."]
    gb_per_s: Annotated[float | None, "Bytes over its duration."]
    tflops_per_s: Annotated[float | None, "FLOPs over its duration."]
    flops_per_byte: Annotated[float | None, "Arithmetic intensity, measured."]
    memory_share: Annotated[float | None, "Throughput of the memory as a part of its peak, measured."]
    compute_share: Annotated[
        float | None, "Throughput of the multiprocessors as a part of their peak, measured."
    ]
    occupancy_share: Annotated[float | None, "Warps that were active, as a part of those that fit, measured."]
    bound: Annotated[
        str,
        "compute or memory, caches included: the nearer peak, if it is above 60 %; else latency; or unknown.",
    ]
    trace_kernel: Annotated[
        str | None, "The kernel of the trace that it is; NULL if none, or several may be."
    ]
    joined_by: Annotated[str, "name, or function and shape; ambiguous: several kernels fit; or nothing."]
    trace_calls: Annotated[int, "How often that ran in the trace."]
    trace_ns: Annotated[int, "Its device time in the trace."]
    trace_mean_ns: Annotated[float | None, "How long it takes in the trace, on average."]


Figures = dict[str, dict[str, float]]
"""Figures of a kernel by metric and unit: pages as text give one name to a rate and to its share."""
_TIMES = {
    "ns": 1.0,
    "nsecond": 1.0,
    "us": 1e3,
    "usecond": 1e3,
    "ms": 1e6,
    "msecond": 1e6,
    "s": 1e9,
    "second": 1e9,
}
_SIZES = {"byte": 1.0, "kbyte": 1e3, "mbyte": 1e6, "gbyte": 1e9, "tbyte": 1e12}
# Nsight's own names and those of its pages as text; more exact ones first.
_PERCENTS = {
    "memory_share": (
        "dram__throughput.avg.pct_of_peak_sustained_elapsed",
        "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
        "DRAM Throughput",
    ),
    "compute_share": (
        "sm__throughput.avg.pct_of_peak_sustained_elapsed",
        "Compute (SM) Throughput",
        "Compute (SM) [%]",
    ),
    "occupancy_share": ("sm__warps_active.avg.pct_of_peak_sustained_active", "Achieved Occupancy"),
}
_MEMORY_SYSTEM = (
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    "Memory Throughput",
    "Memory [%]",
)
"""The busiest part of the memory system, caches included."""
_DURATIONS = ("gpu__time_duration.sum", "gpu__time_duration.avg", "Duration")
_DRAM = ("dram__bytes.sum", "dram__bytes_read.sum", "dram__bytes_write.sum")
_RATES = ("dram__bytes.sum.per_second", "Memory Throughput")
_CYCLES = ("smsp__cycles_elapsed.avg.per_second", "smsp__cycles_elapsed.max.per_second")
_INSTRUCTIONS = {
    **dict.fromkeys(("fadd", "fmul", "dadd", "dmul", "hadd", "hmul"), 1),
    **dict.fromkeys(("ffma", "dfma", "hfma"), 2),
}
_SQL = """
    SELECT kernel, function, grid, block, metric, coalesce(lower(unit), '') AS unit,
           sum(value * launches) / sum(launches) AS value
    FROM kernel_counters
    WHERE metric IN (SELECT unnest($metrics)) OR metric LIKE 'sm__ops_path_tensor_src_%.sum'
       OR regexp_matches(
            metric, '^(sm|smsp)__sass_thread_inst_executed_op_[a-z]+_pred_on\\.sum(\\.per_cycle_elapsed)?$')
    GROUP BY ALL
"""
_COUNTED = """
    SELECT kernel, grid, block, sum(launches)::BIGINT AS launches
    FROM (SELECT launch, kernel, grid, block, max(launches) AS launches FROM kernel_counters GROUP BY ALL)
    GROUP BY ALL
"""
_RAN = """
    SELECT name, grid, block, count(*) AS calls, sum(dur_ns)::BIGINT AS ns
    FROM device_work WHERE kind = 'kernel' AND name IS NOT NULL GROUP BY ALL
"""


@analysis(
    reads={
        "kernel_counters": (
            *("launch", "launches", "kernel", "function", "grid", "block", "metric", "unit", "value"),
        ),
        "device_work": ("name", "kind", "grid", "block", "dur_ns"),
    }
)
def measured_kernels(trace: Trace) -> Table[MeasuredKernel]:
    """Says what Nsight Compute measured of kernels, and joins it with the kernels of the trace."""
    if not trace.has("kernel_counters"):
        return Table.of(MeasuredKernel, (), (NO_COUNTERS,))
    names = [
        *_DURATIONS,
        *_DRAM,
        *_RATES,
        *_CYCLES,
        *_MEMORY_SYSTEM,
        *(one for group in _PERCENTS.values() for one in group),
    ]
    told: defaultdict[tuple[str, str | None, str | None], Figures] = defaultdict(dict)
    for row in trace.rows(_SQL, metrics=names):
        told[row["kernel"], row["grid"], row["block"]].setdefault(row["metric"], {})[row["unit"]] = row[
            "value"
        ]
    found = [_measured(row, told[row["kernel"], row["grid"], row["block"]]) for row in trace.rows(_COUNTED)]
    if trace.has("device_work"):
        found = _joined(found, trace.rows(_RAN))
    found.sort(
        key=lambda row: (-row.trace_ns, -(row.duration_ns or 0) * row.launches, row.kernel, row.grid or "")
    )
    return Table.of(MeasuredKernel, found, _notes(trace, found))


NO_COUNTERS = (
    "No counters of kernels: record them with ncu --set full --csv --page raw, and name the file beside the "
    "profile."
)


def _measured(row: dict[str, Any], told: Figures) -> MeasuredKernel:
    duration = _scaled(told, _DURATIONS, _TIMES)
    moved = _moved(told, duration)
    flops = _flops(told, duration)
    shares = {name: _percent(told, metrics) for name, metrics in _PERCENTS.items()}
    quiet: dict[str, Any] = dict.fromkeys(one.name for one in fields(MeasuredKernel))
    return MeasuredKernel(
        **{
            **quiet,
            **row,
            **shares,
            "duration_ns": duration,
            "bytes": moved,
            "flops": flops,
            "gb_per_s": moved / duration if moved is not None and duration else None,
            "tflops_per_s": flops / duration / 1e3 if flops is not None and duration else None,
            "flops_per_byte": flops / moved if flops is not None and moved else None,
            "bound": _bound(
                shares["compute_share"], _most(shares["memory_share"], _percent(told, _MEMORY_SYSTEM))
            ),
            "joined_by": "nothing",
            "trace_calls": 0,
            "trace_ns": 0,
        }
    )


def _scaled(told: Figures, metrics: tuple[str, ...], scale: dict[str, float]) -> float | None:
    """The first of some metrics that is there, in its smallest unit; one in a strange unit is not taken."""
    values = (
        value * scale[unit] for name in metrics for unit, value in told.get(name, {}).items() if unit in scale
    )
    return next(values, None)


def _moved(told: Figures, duration: float | None) -> float | None:
    whole = _scaled(told, _DRAM[:1], _SIZES)
    if whole is not None:
        return whole
    halves = [_scaled(told, (one,), _SIZES) for one in _DRAM[1:]]
    if None not in halves:
        return sum(one or 0.0 for one in halves)
    per = {f"{size}/{second}": factor for size, factor in _SIZES.items() for second in ("s", "second")}
    rate = _scaled(told, _RATES, per)
    return rate * duration / 1e9 if rate is not None and duration else None


def _flops(told: Figures, duration: float | None) -> float | None:
    """Additions and multiplications of all units; NULL if the file counts none of them."""
    total, known = 0.0, False
    plain = {name: next(iter(of.values())) for name, of in told.items()}
    per_second = next((plain[name] for name in _CYCLES if name in plain), None)
    for instruction, each in _INSTRUCTIONS.items():
        for unit in ("sm", "smsp"):
            name = f"{unit}__sass_thread_inst_executed_op_{instruction}_pred_on.sum"
            rate = f"{name}.per_cycle_elapsed"
            if name in plain:
                total, known = total + each * plain[name], True
                break
            if rate in plain and per_second and duration:
                total, known = total + each * plain[rate] * per_second * duration / 1e9, True
                break
    for name, value in plain.items():
        if name.startswith("sm__ops_path_tensor_src_") and "sparsity_on" not in name and "_int" not in name:
            total, known = total + value, True
    return total if known else None


def _percent(told: Figures, metrics: tuple[str, ...]) -> float | None:
    for name in metrics:
        for unit in ("%", ""):
            if unit in told.get(name, {}):
                return told[name][unit] / 100
    return None


def _most(*shares: float | None) -> float | None:
    return max((one for one in shares if one is not None), default=None)


_NEAR = 0.6
"""Nsight Compute calls a unit that is busier than this the one that limits a kernel."""


def _bound(compute: float | None, memory: float | None) -> str:
    if compute is None or memory is None:
        return "unknown"
    if max(compute, memory) < _NEAR:
        return "latency"
    return "compute" if compute >= memory else "memory"


def _joined(found: list[MeasuredKernel], ran: list[dict[str, Any]]) -> list[MeasuredKernel]:
    """Each with the kernel of the trace: of the same name, or the only one of its function and shape."""
    exact: defaultdict[tuple[str, str | None, str | None], list[dict[str, Any]]] = defaultdict(list)
    alike: defaultdict[tuple[str, str | None, str | None], list[dict[str, Any]]] = defaultdict(list)
    for row in ran:
        shape = (_sizes(row["grid"]), _sizes(row["block"]))
        exact[row["name"], *shape].append(row)
        alike[function_of(row["name"]), *shape].append(row)
    return [_with_trace(one, exact, alike) for one in found]


def _with_trace(one: MeasuredKernel, exact: Any, alike: Any) -> MeasuredKernel:
    shape = (_sizes(one.grid), _sizes(one.block))
    rows, how = exact.get((one.kernel, *shape), []), "name"
    if not rows:
        rows, how = alike.get((function_of(one.kernel), *shape), []), "function and shape"
    names = {row["name"] for row in rows}
    if len(names) != 1:
        return replace(one, joined_by="ambiguous" if names else "nothing")
    calls, ns = sum(row["calls"] for row in rows), sum(row["ns"] or 0 for row in rows)
    mean = ns / calls if calls else None
    return replace(
        one, trace_kernel=names.pop(), joined_by=how, trace_calls=calls, trace_ns=ns, trace_mean_ns=mean
    )


def _sizes(text: str | None) -> str | None:
    return text.replace(" ", "") if text else None


def _notes(trace: Trace, found: list[MeasuredKernel]) -> tuple[str, ...]:
    if not trace.has("device_work"):
        return ("There is no trace beside the counters: how much these kernels matter is not known.",)
    joined = [row for row in found if row.trace_kernel]
    (total,) = trace.rows("SELECT sum(dur_ns)::BIGINT AS ns FROM device_work WHERE kind = 'kernel'")
    ns = {(row.trace_kernel, row.grid, row.block): row.trace_ns for row in joined}
    part = units.percent(sum(ns.values()) / total["ns"]) if total["ns"] else ""
    said = f"{units.count(len(joined))} of {units.count(len(found))} measured kernels are in the trace"
    said += f", with {part} of its kernel time." if part else "."
    unclear = sum(row.joined_by == "ambiguous" for row in found)
    return (said + (f" {units.count(unclear)} fit several kernels of it." if unclear else ""),)
