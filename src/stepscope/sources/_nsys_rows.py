"""Rows of an Nsight Systems export as events: kernels, copies, calls, ranges, counters.

Tables and columns come and go from version to version. What is there is read, and nothing is asked of the
version. Names are numbers of `StringIds`; a process and thread are bits of one number.
"""

from __future__ import annotations

import json
import math
import re
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from stepscope.schema import WHOLE_GRAPH
from stepscope.sources._arrow_tables import shifted
from stepscope.sources._nsys_events import NsysEvents
from stepscope.sources._nsys_facts import gpus_of_processes
from stepscope.store.rows import constant_of, each_of_distinct, of_distinct, same

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["NsysRows"]

_PROCESS = (1 << 24) - 1
_NO_NUMBER = ((1 << 32) - 1, (1 << 64) - 1)
"""What stands for no stream and no event."""

# As CUPTI numbers them; a file has tables of its own with the same, for people.
_COPIES = {1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA", 8: "DtoD", 9: "HtoH"}
_COPIES |= {10: "PtoP", 11: "HtoD", 12: "DtoH", 13: "DtoD"}
_UNIFIED = (11, 12, 13)
_MEMORY = {0: "Pageable", 1: "Pinned", 2: "Device", 3: "Array", 4: "Managed", 5: "Device", 6: "Managed"}
_SYNCS = {
    "EVENT_SYNCHRONIZE": "Event Sync",
    "STREAM_WAIT_EVENT": "Stream Wait Event",
    "STREAM_SYNCHRONIZE": "Stream Sync",
    "CONTEXT_SYNCHRONIZE": "Context Sync",
}

_PLACED = {"start": "int64", "end": "int64", "deviceId": "int64", "contextId": "int64", "streamId": "int64"}
_WORK = {
    **_PLACED,
    "correlationId": "int64",
    "globalPid": "int64",
    "graphNodeId": "int64",
    "graphId": "int64",
}
_SHAPE = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
_SHARED = ("staticSharedMemory", "dynamicSharedMemory")
_KEPT_SHAPES = 1 << 14


class NsysRows:
    """Reads the tables of one export into a store."""

    def __init__(self, events: NsysEvents, multiprocessors: dict[int, int]) -> None:
        self._events = events
        self._tables = tables = events.tables
        self._texts = events.texts
        self._multiprocessors = multiprocessors
        self._processes: dict[int, int] = {}
        self._gpus = gpus_of_processes(tables)
        self._first_on: dict[int | None, int | None] = {}
        kinds = ("KERNEL", "MEMCPY", "MEMSET")
        work = [f"CUPTI_ACTIVITY_KIND_{kind}" for kind in kinds]
        # Correlations are counted by each process; without the process they can only be taken as they are.
        self._told_apart = all(not tables.has(one) or tables.has(one, "globalPid") for one in work)

    def read(self) -> None:
        """Reads all of it."""
        for step in (self._calls, self._kernels, self._graphs, self._copies, self._fills):
            step()
        for step in (self._waits, self._system_calls, self._overheads, self._counters):
            step()

    # ---------------------------------------------------------------- places and numbers

    def _correlation(self, batch: pa.RecordBatch, process: pa.Array) -> pa.Array:
        """Correlations, made unlike those of other processes; `process` has its number in the higher bits."""
        import pyarrow as pa
        import pyarrow.compute as pc

        given = batch.column("correlationId")
        if not self._told_apart:
            return given

        def place(number: int | None) -> int:
            return (
                0 if number is None else self._processes.setdefault(number >> 24, len(self._processes)) << 40
            )

        places = of_distinct([process], place, pa.int64())
        return given if constant_of(places) == (0,) else pc.add(given, places)

    def _on_device(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        """Times and place of something on a device."""
        import pyarrow as pa

        process, stream = batch.column("globalPid"), batch.column("streamId")

        def lane(number: int | None, process: int | None, stream: int | None) -> str:
            return self._lane(self._device(number, process), stream, process)

        def name(number: int | None, process: int | None, _: int | None) -> str:
            return _number_text(self._device(number, process))

        device, of_it, thread = each_of_distinct(
            [batch.column("deviceId"), process, stream],
            (lambda number, process, _: self._device(number, process), pa.int64()),
            (name, pa.string()),
            (lane, pa.string()),
        )
        return {
            "start_ns": batch.column("start"),
            "dur_ns": batch.column("dur"),
            "device": device,
            "stream": stream,
            "context": batch.column("contextId"),
            "correlation": self._correlation(batch, process),
            "process": of_it,
            "thread": thread,
        }

    def _device(self, number: int | None, process: int | None) -> int | None:
        """A device by its number in the machine: a process may see only some, and counts these from 0."""
        seen = None if process is None or number is None else (process >> 24 & _PROCESS, number)
        return self._gpus.get(seen, number) if seen else number

    def _lane(self, device: int | None, stream: int | None, process: int | None) -> str:
        """A stream; processes that share a device number their streams alike."""
        first = self._first_on.setdefault(device, process)
        told = _number_text(stream)
        return told if process == first or process is None else f"{told} of {process >> 24 & _PROCESS}"

    # ---------------------------------------------------------------- the device

    def _kernels(self) -> None:
        import pyarrow as pa

        whole = (*_SHAPE, *_SHARED, "registersPerThread", "demangledName", "shortName", "mangledName")
        told = lru_cache(maxsize=_KEPT_SHAPES)(self._shape)  # batches have the same ones again
        for kind in ("KERNEL", "CONCURRENT_KERNEL"):
            table = f"CUPTI_ACTIVITY_KIND_{kind}"
            for batch in self._events.timed(table, {**_WORK, **dict.fromkeys(whole, "int64")}):
                names = [batch.column(name) for name in ("demangledName", "shortName", "mangledName")]
                placed = self._on_device(batch)
                shape = [batch.column(name) for name in ("registersPerThread", *_SHARED, *_SHAPE)]
                columns = placed | {
                    "name": self._texts.first_of(names, "a kernel without a name"),
                    "graph_id": batch.column("graphId"),
                    "graph_node_id": batch.column("graphNodeId"),
                    "args": of_distinct([placed["device"], *shape], told, pa.string()),
                }
                self._events.add("device_work", "kernels", columns)

    def _shape(self, device: int, registers: int, *sizes: int | None) -> str:
        """How a kernel was launched, in Kineto's words."""
        static, dynamic, *dims = sizes
        told: dict[str, Any] = {}
        if registers is not None:
            told["registers per thread"] = registers
        if static is not None or dynamic is not None:
            told["shared memory"] = (static or 0) + (dynamic or 0)
        known = [one for one in dims if one is not None and 0 <= one < 1 << 32]
        if len(known) == len(_SHAPE):
            grid, block = known[:3], known[3:]
            if units := self._multiprocessors.get(device):
                blocks = math.prod(grid) / units
                told["blocks per SM"] = round(blocks, 6)
                told["warps per SM"] = round(blocks * math.prod(block) / 32, 6)
            told |= {"grid": grid, "block": block}
        return json.dumps(told)

    def _graphs(self) -> None:
        """Graphs that were recorded as a whole: one piece of work each, without their kernels."""
        import pyarrow as pa

        def name(graph: int | None) -> str:
            which = "" if graph is None else f" {graph}"
            return f"CUDA graph{which} {WHOLE_GRAPH}"

        for batch in self._events.timed("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", _WORK):
            columns = self._on_device(batch) | {
                "name": of_distinct([batch.column("graphId")], name, pa.string()),
                "graph_id": batch.column("graphId"),
            }
            self._events.add("device_work", "graphs", columns)

    def _copies(self) -> None:
        import pyarrow as pa

        wanted = {**_WORK, **dict.fromkeys(("bytes", "copyKind", "srcKind", "dstKind"), "int64")}
        for batch in self._events.timed("CUPTI_ACTIVITY_KIND_MEMCPY", wanted):
            kinds = [batch.column(name) for name in ("copyKind", "srcKind", "dstKind")]
            columns = self._on_device(batch) | {
                "name": of_distinct(kinds, _copy_name, pa.string()),
                "category": same("gpu_memcpy", batch.num_rows),
                "bytes": batch.column("bytes"),
                "bandwidth_gb_s": _bandwidth(batch),
                "graph_node_id": batch.column("graphNodeId"),
            }
            self._events.add("device_work", "copies", columns)

    def _fills(self) -> None:
        import pyarrow as pa

        for batch in self._events.timed(
            "CUPTI_ACTIVITY_KIND_MEMSET", {**_WORK, "bytes": "int64", "memKind": "int64"}
        ):

            def name(kind: int | None) -> str:
                return f"Memset ({_MEMORY.get(2 if kind is None else kind, 'Unknown')})"

            columns = self._on_device(batch) | {
                "name": of_distinct([batch.column("memKind")], name, pa.string()),
                "category": same("gpu_memset", batch.num_rows),
                "bytes": batch.column("bytes"),
                "bandwidth_gb_s": _bandwidth(batch),
                "graph_node_id": batch.column("graphNodeId"),
            }
            self._events.add("device_work", "fills", columns)

    # ---------------------------------------------------------------- the host

    def _calls(self) -> None:

        @cache
        def category(name: str | None) -> str:
            return "cuda_driver" if re.match(r"cu[A-Z]", name or "") else "cuda_runtime"

        wanted = dict.fromkeys(("start", "end", "globalTid", "correlationId", "nameId"), "int64")
        for kind in ("RUNTIME", "DRIVER"):
            for batch in self._events.timed(f"CUPTI_ACTIVITY_KIND_{kind}", wanted):
                number = batch.column("nameId")
                columns = self._events.host(batch) | {
                    "name": self._texts.of(number, _call_name),
                    "category": self._texts.of(number, category),
                    "correlation": self._correlation(batch, batch.column("globalTid")),
                }
                self._events.add("launches", "calls", columns)

    def _waits(self) -> None:
        """What was waited for, as CUPTI has it beside the calls."""
        import pyarrow as pa
        import pyarrow.compute as pc

        table = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"
        told = {
            row["id"]: next((word for key, word in _SYNCS.items() if str(row["name"]).endswith(key)), "Sync")
            for row in self._tables.rows("ENUM_CUPTI_SYNC_TYPE", {"id": "int64", "name": "string"})
        }

        def name(kind: int | None) -> str:
            return told.get(kind, "Sync")

        for batch in self._events.timed(table, {**_WORK, "syncType": "int64"}):
            stream = batch.column("streamId")
            stream = pc.if_else(pc.is_in(stream, pa.array(_NO_NUMBER[:1])), None, stream)
            placed = self._on_device(batch)
            columns = {key: placed[key] for key in ("start_ns", "dur_ns", "process", "correlation")} | {
                "thread": of_distinct([stream], _number_text, pa.string()),
                "stream": stream,
                "name": of_distinct([batch.column("syncType")], name, pa.string()),
                "category": same("cuda_sync", batch.num_rows),
                "phase": same("X", batch.num_rows),
            }
            self._events.add("other_events", "waits", columns)

    def _system_calls(self) -> None:
        wanted = dict.fromkeys(("start", "end", "globalTid", "nameId"), "int64")
        for table, category in (
            ("OSRT_API", "os_runtime"),
            ("MPI_P2P_EVENTS", "mpi"),
            ("MPI_COLLECTIVES_EVENTS", "mpi"),
        ):
            wanted = wanted | ({"textId": "int64"} if category == "mpi" else {})
            for batch in self._events.timed(table, wanted):
                named = batch.column("textId" if category == "mpi" else "nameId")
                self._events.add(
                    "other_events", category, self._events.other(batch, self._texts.of(named), category)
                )

    def _overheads(self) -> None:
        wanted = dict.fromkeys(("start", "end", "globalTid", "nameId"), "int64")
        for table in ("PROFILER_OVERHEAD", "CUPTI_ACTIVITY_KIND_OVERHEAD"):
            for batch in self._events.timed(table, wanted):
                names = self._texts.of(batch.column("nameId"))
                self._events.add("other_events", "overheads", self._events.other(batch, names, "overhead"))

    # ---------------------------------------------------------------- counters

    def _counters(self) -> None:
        """Readings of GPU counters; the sampler's number of the device is in the low bits of a type."""
        import pyarrow as pa
        import pyarrow.compute as pc

        wanted = {"typeId": "int64", "metricId": "int64", "metricName": "string"}
        names = {
            (row["typeId"], row["metricId"]): row["metricName"]
            for row in self._tables.rows("TARGET_INFO_GPU_METRICS", wanted)
        }
        read = {"timestamp": "int64", "typeId": "int64", "metricId": "int64", "value": "double"}
        for batch in self._tables.batches("GPU_METRICS", read):
            fits = pc.and_(pc.is_valid(batch.column("timestamp")), pc.is_valid(batch.column("value")))
            rows = batch.filter(fits)
            keys = [rows.column("typeId"), rows.column("metricId")]
            told = of_distinct(keys, lambda *key: names.get(key) or f"counter {key[1]}", pa.string())
            columns = {
                "device": shifted(keys[0], 0, 0xFF),
                "name": of_distinct([told], lambda name: re.sub(r"\s*\[.*\]$", "", name), pa.string()),
                "unit": of_distinct([told], _unit, pa.string()),
                "start_ns": rows.column("timestamp"),
                "value": rows.column("value"),
            }
            self._events.add("device_counters", "counters", columns)


def _number_text(number: int | None) -> str:
    return "unknown" if number is None else str(number)


def _copy_name(kind: int | None, source: int | None, target: int | None) -> str:
    """As Kineto calls it: the direction, and the kinds of memory where they are known."""
    direction = _COPIES.get(kind, "unknown") if kind is not None else "unknown"
    if kind in _UNIFIED:
        return f"Memcpy {direction} (Unified Memory)"
    if source is None and target is None:
        return f"Memcpy {direction}"
    ends = [_MEMORY.get(one, "Unknown") if one is not None else "Unknown" for one in (source, target)]
    return f"Memcpy {direction} ({ends[0]} -> {ends[1]})"


def _call_name(name: str | None) -> str | None:
    """Without the version of the interface: `cudaLaunchKernel_v7000`."""
    return None if name is None else re.sub(r"(_v\d{4,})?(_pts[zd]|_ptds)?(_v\d{4,})?$", "", name)


def _bandwidth(batch: pa.RecordBatch) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    ns = pc.if_else(pc.greater(batch.column("dur"), 0), batch.column("dur"), None).cast(pa.float64())
    return pc.divide(batch.column("bytes").cast(pa.float64(), safe=False), ns)


def _unit(name: str) -> str | None:
    found = re.search(r"\[([^\]]{1,40})\]$", name)
    return found[1] if found else None
