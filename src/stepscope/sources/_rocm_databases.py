"""Databases of ROCm's tools: rocpd of rocprofv3, RPD of rocmProfileData, and of rocprof before version 3."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from stepscope.sources._arrow_tables import Lookup, Texts
from stepscope.sources._rocm_events import RocmEvents, device_properties, storable
from stepscope.sources._rocm_rpd import read_rpd
from stepscope.sources._sqlite import Database
from stepscope.store.rows import of_distinct

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["is_rocm_database", "read_database"]

# Tables of rocpd carry the id of a process behind their name, for files are merged.
_DISPATCHES = re.compile(r"rocpd_kernel_dispatch(_\w+)?")
_MESSAGE = re.compile(r'"message"\s*:\s*"((?:[^"\\]|\\.){1,2000})')
# Work of one stream may run on several queues; the queue is taken where no stream was recorded.
_STREAM = ("stream_id", "queue_id")
_FIRST_KERNELS = ("KernelName", "BeginNs", "EndNs")
# Since schema 4 rows point to a track, which says where they ran, and in schema 4.0 to their times as well.
_OF_TRACKS = ("pid", "tid", "agent_id", "queue_id", "stream_id")
_OF_TIMES = {"start": "start_id", "end": "end_id"}


def is_rocm_database(tables: Database) -> bool:
    """Whether one of these tools wrote it."""
    return (
        any(_DISPATCHES.fullmatch(name) for name in tables.tables)
        or tables.has("rocpd_op", "start", "end")
        or tables.has("KERN", *_FIRST_KERNELS)
    )


def read_database(tables: Database, events: RocmEvents) -> dict[str, Any]:
    """Reads what is there, and returns what it says of the machine."""
    metadata: dict[str, Any] = {}
    for place, name in enumerate(sorted(tables.tables)):
        if found := _DISPATCHES.fullmatch(name):
            metadata |= _Rocpd(tables, events, found[1] or "", place << 40).read()
    if tables.has("rocpd_op", "start", "end"):
        read_rpd(tables, events)
    if tables.has("KERN", *_FIRST_KERNELS):
        read_first_kernels(tables, events)
    return metadata


def read_first_kernels(tables: Database, events: RocmEvents) -> None:
    """The kernels of rocprof version 1 and 2."""
    import pyarrow as pa

    whole = (
        "gpu-id",
        "queue-id",
        "pid",
        "tid",
        "grd",
        "wgr",
        "lds",
        "arch_vgpr",
        "BeginNs",
        "EndNs",
        "Index",
    )
    for batch in tables.batches("KERN", {"KernelName": "string", **dict.fromkeys(whole, "int64")}):
        ones = pa.repeat(pa.scalar(1, pa.int64()), batch.num_rows)
        columns = {
            "start": batch.column("BeginNs"),
            "end": batch.column("EndNs"),
            "name": batch.column("KernelName"),
            "device": batch.column("gpu-id"),
            "stream": batch.column("queue-id"),
            "correlation": pa.nulls(batch.num_rows, pa.int64()),
            "registers": batch.column("arch_vgpr"),
            "shared": batch.column("lds"),
            "work_x": batch.column("grd"),
            "group_x": batch.column("wgr"),
            **dict.fromkeys(("work_y", "work_z", "group_y", "group_z"), ones),
        }
        events.kernels("KERN", columns)


class _Messages:
    """What events say, by their numbers. Most say nothing, so that only the others are kept."""

    def __init__(self, tables: Database, table: str) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        kinds = {"id": "int64", "extdata": "string"}
        schema = pa.schema([("id", pa.int64()), ("extdata", pa.string())])
        wanted = tables.batches(table, kinds) if tables.has(table, *kinds) else ()
        kept = (one.filter(pc.match_substring(one.column("extdata"), '"message"')) for one in wanted)
        self._kept = pa.Table.from_batches([one for one in kept if one.num_rows], schema)

    def of(self, events: pa.Array) -> pa.Array:
        """The text of each event, NULL where it has none."""
        import pyarrow as pa
        import pyarrow.compute as pc

        ends = pc.min_max(events).as_py()
        if not self._kept.num_rows or ends["min"] is None:
            return pa.nulls(len(events), pa.string())
        # A batch of regions is of events that lie together: looking among all would take long each time.
        numbers = self._kept.column("id")
        near = pc.and_(pc.greater_equal(numbers, ends["min"]), pc.less_equal(numbers, ends["max"]))
        found = self._kept.filter(near).combine_chunks()
        places = pc.index_in(events, found.column("id"))
        texts = found.column("extdata").take(places)
        return pa.concat_arrays(texts.chunks) if texts.num_chunks else pa.nulls(len(events), pa.string())


class _Rocpd:
    """The tables of one process in a rocpd file."""

    def __init__(self, tables: Database, events: RocmEvents, ending: str, apart: int) -> None:
        self._tables = tables
        self._events = events
        self._ending = ending
        self._apart = apart
        self._strings = Texts(tables, f"rocpd_string{ending}", "id", "string")
        categories = f"rocpd_info_category{ending}"  # in schema 3 they are strings as any other
        self._categories = (
            Texts(tables, categories, "id", "name") if tables.has(categories) else self._strings
        )
        self._tracks = Lookup(tables, f"rocpd_track{ending}", "id", _OF_TRACKS)
        self._times = Lookup(tables, f"rocpd_timestamp{ending}", "id", ("value",))
        self._by_event = Lookup(tables, f"rocpd_event{ending}", "id", ("stack_id", "category_id"))
        self._messages = _Messages(tables, f"rocpd_event{ending}")
        self._agents = self._agents_by_number()

    def read(self) -> dict[str, Any]:
        """Reads all of it, and tells of the machine."""
        self._read_regions()
        self._read_dispatches()
        self._read_copies()
        told: dict[str, Any] = {}
        for row in self._rows("rocpd_info_node", {"hostname": "string"}):
            told["host_name"] = (row["hostname"] or "")[:200]
        gpus = sorted(number for number, (index, _, _) in self._agents.items() if index is not None)
        if gpus:
            told["deviceProperties"] = [
                device_properties(index, name, text)
                for index, name, text in (self._agents[number] for number in gpus)
                if index is not None
            ]
        return told

    def _batches(self, table: str, wanted: dict[str, str]) -> Iterator[dict[str, pa.Array]]:
        """The rows of a table as columns, whichever version of the schema it is."""
        name = table + self._ending
        away = [one for one in wanted if not self._tables.has(name, one)]
        referred = dict.fromkeys(("track_id", *_OF_TIMES.values()), "int64")
        for batch in self._tables.batches(name, wanted | referred):
            columns = {one: batch.column(one) for one in batch.schema.names}
            for one in away:
                if one in _OF_TIMES:
                    columns[one] = self._times.of("value", columns[_OF_TIMES[one]])
                elif one in _OF_TRACKS:
                    columns[one] = self._tracks.of(one, columns["track_id"])
            yield columns

    def _rows(self, table: str, wanted: dict[str, str]) -> list[dict[str, Any]]:
        return self._tables.rows(table + self._ending, wanted)

    def _numbers(self, table: str, column: str) -> dict[int, int]:
        return {row["id"]: row[column] for row in self._rows(table, {"id": "int64", column: "int64"})}

    def _agents_by_number(self) -> dict[int, tuple[int | None, str | None, str]]:
        """Of each agent its number among the GPUs, None for a CPU; its product; and what else it says."""
        wanted = {"id": "int64", "type": "string", "type_index": "int64", "product_name": "string"}
        rows = self._rows("rocpd_info_agent", wanted | {"name": "string", "extdata": "string"})
        return {
            row["id"]: (
                row["type_index"] if row["type"] == "GPU" else None,
                row["product_name"] or row["name"],
                row["extdata"] or "",
            )
            for row in rows
        }

    def _device(self, number: int | None) -> int | None:
        return self._agents.get(number or 0, (None, None, ""))[0] if number is not None else None

    def _tied(self, event: pa.Array) -> pa.Array:
        """What ties a call to its work, unlike that of other processes."""
        import pyarrow.compute as pc

        return pc.add(self._by_event.of("stack_id", event), self._apart)

    def _read_regions(self) -> None:
        import pyarrow as pa

        threads = self._numbers("rocpd_info_thread", "tid")
        processes = self._numbers("rocpd_info_process", "pid")
        wanted = dict.fromkeys(("pid", "tid", "start", "end", "name_id", "event_id"), "int64")
        for batch in self._batches("rocpd_region", wanted | {"extdata": "string"}):
            event, named = batch["event_id"], batch["name_id"]
            told = [named, batch["extdata"], self._messages.of(event)]
            columns = {
                "start": batch["start"],
                "end": batch["end"],
                "name": of_distinct(told, self._region_name, pa.string()),
                "domain": self._categories.of(self._by_event.of("category_id", event)),
                "process": of_distinct([batch["pid"]], lambda one: processes.get(one, one), pa.int64()),
                "thread": of_distinct([batch["tid"]], lambda one: threads.get(one, one), pa.int64()),
                "correlation": self._tied(event),
            }
            self._events.on_host("rocpd_region", columns)

    def _region_name(self, number: int | None, *told: str | None) -> str | None:
        """The name, or what a marker says: the region itself tells it, or its event."""
        said = next((found for one in told if one and (found := _MESSAGE.search(one))), None)
        if said is None:
            return self._strings.one(number)
        try:
            return storable(json.loads(f'"{said[1]}"', strict=False))
        except ValueError:  # cut within an escape
            return said[1]

    def _read_dispatches(self) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        symbols = {
            "id": "int64",
            "display_name": "string",
            "kernel_name": "string",
            "arch_vgpr_count": "int64",
        }
        kernels = {row["id"]: row for row in self._rows("rocpd_info_kernel_symbol", symbols)}

        def name(number: int | None) -> str | None:
            row = kernels.get(number, {})
            return row.get("display_name") or row.get("kernel_name")

        def registers(number: int | None) -> int | None:
            return kernels.get(number, {}).get("arch_vgpr_count")

        kinds = {"work": "grid", "group": "workgroup"}
        axes = {f"{to}_{axis}": f"{of}_size_{axis}" for to, of in kinds.items() for axis in "xyz"}
        whole = ("start", "end", "agent_id", "kernel_id", *_STREAM, "event_id", "group_segment_size")
        for batch in self._batches("rocpd_kernel_dispatch", dict.fromkeys((*whole, *axes.values()), "int64")):
            kernel = batch["kernel_id"]
            columns = {
                "start": batch["start"],
                "end": batch["end"],
                "name": of_distinct([kernel], name, pa.string()),
                "device": of_distinct([batch["agent_id"]], self._device, pa.int64()),
                "stream": pc.coalesce(*(batch[one] for one in _STREAM)),
                "correlation": self._tied(batch["event_id"]),
                "registers": of_distinct([kernel], registers, pa.int64()),
                "shared": batch["group_segment_size"],
                **{to: batch[of] for to, of in axes.items()},
            }
            self._events.kernels("rocpd_kernel_dispatch", columns)

    def _read_copies(self) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        whole = ("start", "end", "name_id", "dst_agent_id", "src_agent_id", "size", *_STREAM, "event_id")

        def device(target: int | None, source: int | None) -> int | None:
            found = self._device(target)
            return self._device(source) if found is None else found

        for batch in self._batches("rocpd_memory_copy", dict.fromkeys(whole, "int64")):
            agents = [batch["dst_agent_id"], batch["src_agent_id"]]
            columns = {
                "start": batch["start"],
                "end": batch["end"],
                "name": self._strings.of(batch["name_id"]),
                "device": of_distinct(agents, device, pa.int64()),
                "stream": pc.coalesce(*(batch[one] for one in _STREAM)),
                "correlation": self._tied(batch["event_id"]),
                "bytes": batch["size"],
            }
            self._events.copies("rocpd_memory_copy", columns)
