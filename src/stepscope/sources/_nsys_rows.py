"""Rows of an Nsight Systems export as events: kernels, copies, calls, ranges, counters.

Tables and columns come and go from version to version. What is there is read, and nothing is asked of the
version. Names are numbers of `StringIds`; a process and thread are bits of one number.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

from stepscope.sources._arrow_tables import ProfileTables, Texts, Times, shifted
from stepscope.store.rows import of_distinct

if TYPE_CHECKING:
    import pyarrow as pa

    from stepscope.store.writer import StoreWriter

__all__ = ["NsysRows"]

_WHOLE = (1 << 24) - 1
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

_RANGES = (59, 60, 70, 71)
_MARKS = (34, 65)
_DOMAIN = 75

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

# What torch.autograd.profiler.emit_nvtx writes: the name of an operator, and what it appends.
_TOLD = (
    r"(?s)^(?P<name>.*?)(?:, seq = (?P<seq>-?\d{1,18}))?(?:, op_id = (?P<op>\d{1,18}))?"
    r"(?:, sizes = (?P<sizes>\[.*?\]))?(?:, input_op_ids = .*)?$"
)
_OPERATOR = re.compile(
    r"^(?!FSDP::|DDP::|nccl:)(?:[A-Za-z_]\w*(?:::\w+)+(?:\.\w+)?|\w+Backward\d*"
    r"|autograd::engine::evaluate_function: .*|detach_?|record_param_comms)$"
)
_NAMESPACE = (
    r"^(aten|prims?|c10d|_c10d_functional|torch|torchvision|quantized|inductor|flash_attn|xformers)::\w+$"
)


class NsysRows:
    """Reads the tables of one export into a store."""

    def __init__(self, tables: ProfileTables, writer: StoreWriter, multiprocessors: dict[int, int]) -> None:
        self._tables = tables
        self._writer = writer
        self._multiprocessors = multiprocessors
        self.times = Times()
        self.texts = Texts(tables, "StringIds")
        self.counted: dict[str, int] = {}
        """How many rows of each kind were read."""
        self.devices: set[int] = set()
        """The devices that did something."""
        self._processes: dict[int, int] = {}
        kinds = ("KERNEL", "MEMCPY", "MEMSET")
        work = [f"CUPTI_ACTIVITY_KIND_{kind}" for kind in kinds]
        # Correlations are counted by each process; without the process they can only be taken as they are.
        self._told_apart = all(not tables.has(one) or tables.has(one, "globalPid") for one in work)
        self._domains: dict[int | None, str | None] = {}

    def read(self) -> None:
        """Reads all of it."""
        for step in (self._calls, self._kernels, self._graphs, self._copies, self._fills):
            step()
        for step in (self._waits, self._ranges, self._system_calls, self._overheads, self._counters):
            step()

    # ---------------------------------------------------------------- places and numbers

    def _add(self, table: str, kind: str, columns: dict[str, pa.Array]) -> None:
        import pyarrow as pa

        rows = pa.RecordBatch.from_arrays(list(columns.values()), list(columns))
        if rows.num_rows:
            self._writer.add_rows(table, rows)
            self.counted[kind] = self.counted.get(kind, 0) + rows.num_rows

    def _timed(self, table: str, wanted: dict[str, str], **options: bool) -> Iterator[pa.RecordBatch]:
        for batch in self._tables.batches(table, wanted):
            timed = self.times.of(table, batch, **options)
            if timed.num_rows:
                yield timed

    def _host(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        """Times, process and thread of something on the host."""
        import pyarrow as pa

        thread = batch.column("globalTid")

        def process(number: int | None) -> str:
            return "unknown" if number is None else str(number >> 24 & _WHOLE)

        def of_it(number: int | None) -> str:
            return "unknown" if number is None else str(number & _WHOLE)

        return {
            "start_ns": batch.column("start"),
            "dur_ns": batch.column("dur"),
            "process": of_distinct([thread], process, pa.string()),
            "thread": of_distinct([thread], of_it, pa.string()),
        }

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

        return pc.add(given, of_distinct([process], place, pa.int64()))

    def _on_device(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        """Times and place of something on a device."""
        import pyarrow as pa
        import pyarrow.compute as pc

        device, stream = batch.column("deviceId"), batch.column("streamId")
        self.devices.update(one for one in pc.unique(device).to_pylist() if one is not None)
        named = {"process": device, "thread": stream}
        columns = {
            "start_ns": batch.column("start"),
            "dur_ns": batch.column("dur"),
            "device": device,
            "stream": stream,
            "context": batch.column("contextId"),
            "correlation": self._correlation(batch, batch.column("globalPid")),
        }
        for name, numbers in named.items():
            columns[name] = numbers.cast(pa.string()).fill_null("unknown")
        return columns

    # ---------------------------------------------------------------- the device

    def _kernels(self) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        whole = (*_SHAPE, *_SHARED, "registersPerThread", "demangledName", "shortName", "mangledName")
        for kind in ("KERNEL", "CONCURRENT_KERNEL"):
            table = f"CUPTI_ACTIVITY_KIND_{kind}"
            for batch in self._timed(table, {**_WORK, **dict.fromkeys(whole, "int64")}):
                names = [batch.column(name) for name in ("demangledName", "shortName", "mangledName")]
                shape = [batch.column(name) for name in ("deviceId", "registersPerThread", *_SHARED, *_SHAPE)]
                columns = self._on_device(batch) | {
                    "name": pc.coalesce(*(self.texts.of(one) for one in names)).fill_null(
                        "a kernel without a name"
                    ),
                    "graph_id": batch.column("graphId"),
                    "graph_node_id": batch.column("graphNodeId"),
                    "args": of_distinct(shape, self._shape, pa.string()),
                }
                self._add("device_work", "kernels", columns)

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
            return f"CUDA graph{which} (as a whole: its kernels were not recorded)"

        for batch in self._timed("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", _WORK):
            columns = self._on_device(batch) | {
                "name": of_distinct([batch.column("graphId")], name, pa.string()),
                "graph_id": batch.column("graphId"),
            }
            self._add("device_work", "graphs", columns)

    def _copies(self) -> None:
        import pyarrow as pa

        wanted = {**_WORK, **dict.fromkeys(("bytes", "copyKind", "srcKind", "dstKind"), "int64")}
        for batch in self._timed("CUPTI_ACTIVITY_KIND_MEMCPY", wanted):
            kinds = [batch.column(name) for name in ("copyKind", "srcKind", "dstKind")]
            columns = self._on_device(batch) | {
                "name": of_distinct(kinds, _copy_name, pa.string()),
                "category": pa.repeat(pa.scalar("gpu_memcpy"), batch.num_rows),
                "bytes": batch.column("bytes"),
                "bandwidth_gb_s": _bandwidth(batch),
                "graph_node_id": batch.column("graphNodeId"),
            }
            self._add("device_work", "copies", columns)

    def _fills(self) -> None:
        import pyarrow as pa

        for batch in self._timed(
            "CUPTI_ACTIVITY_KIND_MEMSET", {**_WORK, "bytes": "int64", "memKind": "int64"}
        ):

            def name(kind: int | None) -> str:
                return f"Memset ({_MEMORY.get(2 if kind is None else kind, 'Unknown')})"

            columns = self._on_device(batch) | {
                "name": of_distinct([batch.column("memKind")], name, pa.string()),
                "category": pa.repeat(pa.scalar("gpu_memset"), batch.num_rows),
                "bytes": batch.column("bytes"),
                "bandwidth_gb_s": _bandwidth(batch),
                "graph_node_id": batch.column("graphNodeId"),
            }
            self._add("device_work", "fills", columns)

    # ---------------------------------------------------------------- the host

    def _calls(self) -> None:

        @cache
        def category(name: str | None) -> str:
            return "cuda_driver" if re.match(r"cu[A-Z]", name or "") else "cuda_runtime"

        wanted = dict.fromkeys(("start", "end", "globalTid", "correlationId", "nameId"), "int64")
        for kind in ("RUNTIME", "DRIVER"):
            for batch in self._timed(f"CUPTI_ACTIVITY_KIND_{kind}", wanted):
                number = batch.column("nameId")
                columns = self._host(batch) | {
                    "name": self.texts.of(number, _call_name),
                    "category": self.texts.of(number, category),
                    "correlation": self._correlation(batch, batch.column("globalTid")),
                }
                self._add("launches", "calls", columns)

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

        for batch in self._timed(table, {**_WORK, "syncType": "int64"}):
            stream = batch.column("streamId")
            stream = pc.if_else(pc.is_in(stream, pa.array(_NO_NUMBER[:1])), None, stream)
            placed = self._on_device(batch)
            columns = {key: placed[key] for key in ("start_ns", "dur_ns", "process", "correlation")} | {
                "thread": stream.cast(pa.string()).fill_null("-1"),
                "stream": stream,
                "name": of_distinct([batch.column("syncType")], name, pa.string()),
                "category": pa.repeat(pa.scalar("cuda_sync"), batch.num_rows),
                "phase": pa.repeat(pa.scalar("X"), batch.num_rows),
            }
            self._add("other_events", "waits", columns)

    def _system_calls(self) -> None:
        wanted = dict.fromkeys(("start", "end", "globalTid", "nameId"), "int64")
        for table, category in (
            ("OSRT_API", "os_runtime"),
            ("MPI_P2P_EVENTS", "mpi"),
            ("MPI_COLLECTIVES_EVENTS", "mpi"),
        ):
            wanted = wanted | ({"textId": "int64"} if category == "mpi" else {})
            for batch in self._timed(table, wanted):
                named = batch.column("textId" if category == "mpi" else "nameId")
                self._add("other_events", category, self._other(batch, self.texts.of(named), category))

    def _overheads(self) -> None:
        wanted = dict.fromkeys(("start", "end", "globalTid", "nameId"), "int64")
        for table in ("PROFILER_OVERHEAD", "CUPTI_ACTIVITY_KIND_OVERHEAD"):
            for batch in self._timed(table, wanted):
                names = self.texts.of(batch.column("nameId"))
                self._add("other_events", "overheads", self._other(batch, names, "overhead"))

    def _other(self, batch: pa.RecordBatch, names: pa.Array, category: str) -> dict[str, pa.Array]:
        import pyarrow as pa

        count = batch.num_rows
        kinds = {"category": pa.repeat(pa.scalar(category), count), "phase": pa.repeat(pa.scalar("X"), count)}
        return self._host(batch) | kinds | {"name": names}

    # ---------------------------------------------------------------- ranges

    def _ranges(self) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        table = "NVTX_EVENTS"
        self._domains = self._domain_names()
        whole = ("start", "end", "eventType", "globalTid", "textId", "domainId")
        wanted = {**dict.fromkeys(whole, "int64"), "text": "string"}
        typed = self._tables.has(table, "eventType")
        for batch in self._tables.batches(table, wanted):
            kind = batch.column("eventType")
            marks = pc.is_in(kind, pa.array(_MARKS)) if typed else pc.is_null(batch.column("end"))
            ranges = pc.is_in(kind, pa.array(_RANGES)) if typed else pc.invert(marks)
            self._add_marks(batch.filter(marks))
            timed = self.times.of(table, batch.filter(ranges), open_ended=True)
            if not timed.num_rows:
                continue
            text = pc.coalesce(timed.column("text"), self.texts.of(timed.column("textId")))
            torch = pc.and_kleene(_may_be_torch(text), _is_default(timed.column("domainId"))).fill_null(False)
            self._add_annotations(timed.filter(pc.invert(torch)), text.filter(pc.invert(torch)))
            self._add_torch(timed.filter(torch), text.filter(torch))

    def _domain_names(self) -> dict[int | None, str | None]:
        import pyarrow.compute as pc

        found: dict[int | None, str | None] = {}
        wanted = {"eventType": "int64", "domainId": "int64", "textId": "int64", "text": "string"}
        if not self._tables.has("NVTX_EVENTS", "eventType", "domainId"):
            return found
        for batch in self._tables.batches("NVTX_EVENTS", wanted):
            for row in batch.filter(
                pc.equal(batch.column("eventType"), _DOMAIN).fill_null(False)
            ).to_pylist():
                found[row["domainId"]] = row["text"] or self.texts.one(row["textId"])
        return found

    def _domain(self, number: int | None) -> str | None:
        name = self._domains.get(number)
        return json.dumps({"domain": name[:200]}) if name and number else None

    def _add_annotations(self, batch: pa.RecordBatch, names: pa.Array) -> None:
        import pyarrow as pa

        columns = self._host(batch) | {
            "name": names,
            "args": of_distinct([batch.column("domainId")], self._domain, pa.string()),
        }
        self._add("annotations", "ranges", columns)

    def _add_marks(self, batch: pa.RecordBatch) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        fits = pc.is_valid(batch.column("start"))
        batch = batch.append_column("dur", pa.nulls(batch.num_rows, pa.int64())).filter(fits)
        names = pc.coalesce(batch.column("text"), self.texts.of(batch.column("textId")))
        columns = self._other(batch, names, "nvtx_mark")
        del columns["dur_ns"]
        columns["phase"] = pa.repeat(pa.scalar("i"), batch.num_rows)
        self._add("other_events", "marks", columns)

    def _add_torch(self, batch: pa.RecordBatch, text: pa.Array) -> None:
        """What emit_nvtx wrote: operators, and ranges that were marked in the program."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if not batch.num_rows:
            return
        parts = pc.extract_regex(text, _TOLD)
        name, seq, sizes = (pc.struct_field(parts, field) for field in ("name", "seq", "sizes"))
        is_op = of_distinct([name], lambda one: bool(one and _OPERATOR.match(one)), pa.bool_())
        is_op = pc.or_(is_op, pc.and_(pc.not_equal(seq, ""), pc.not_equal(name, "")))
        self._add_annotations(batch.filter(pc.invert(is_op)), name.filter(pc.invert(is_op)))
        seq = pc.if_else(pc.equal(seq, ""), None, seq).cast(pa.int64())
        columns = self._host(batch) | {
            "name": name,
            "sequence": seq,
            "args": of_distinct([sizes], _sizes, pa.string()),
        }
        self._add("ops", "operators", {key: column.filter(is_op) for key, column in columns.items()})

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
            self._add("device_counters", "counters", columns)


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


def _is_default(domain: pa.Array) -> pa.Array:
    import pyarrow.compute as pc

    return pc.equal(domain.fill_null(0), 0)


def _may_be_torch(text: pa.Array) -> pa.Array:
    import pyarrow.compute as pc

    told = pc.or_(pc.match_substring(text, ", op_id = "), pc.match_substring(text, ", seq = "))
    return pc.or_(told, pc.match_substring_regex(text, _NAMESPACE))


def _sizes(text: str | None) -> str | None:
    """Shapes of the inputs under Kineto's key, if they are lists."""
    if not text:
        return None
    try:
        read = json.loads(text[:20_000])
    except (ValueError, RecursionError):
        return None
    return json.dumps({"Input Dims": read}) if isinstance(read, list) else None


def _unit(name: str) -> str | None:
    found = re.search(r"\[([^\]]{1,40})\]$", name)
    return found[1] if found else None
