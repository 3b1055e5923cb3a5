"""Texts of ROCm's tools: the CSV tables of rocprofv3 and of rocprof before it, and the JSON of rocprofv3."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

from stepscope.errors import StepscopeError
from stepscope.sources._reading import why_no_json
from stepscope.sources._rocm_events import RocmEvents, device_properties, storable
from stepscope.store.meta import Damage
from stepscope.store.rows import of_distinct, same

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from stepscope.sources._input import Input

__all__ = ["read_csv", "read_json"]

_MOST_JSON = 1 << 29
_BLOCK = 8 << 20


class _Columns:
    """The columns of a CSV batch, all texts, by their names in small letters."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch
        names = enumerate(batch.schema.names)
        self._given = {name.strip().lower(): batch.column(place) for place, name in names}
        self.rows = batch.num_rows

    def filtered(self, which: pa.Array) -> _Columns:
        """Some of the rows."""
        return _Columns(self._batch.filter(which))

    def __contains__(self, name: str) -> bool:
        return name in self._given

    def text(self, name: str) -> pa.Array:
        return self._given[name] if name in self._given else same(None, self.rows)

    def whole(self, *names: str) -> pa.Array:
        """Whole numbers of the first of these columns that is there: `Agent 1` is 1, no number is NULL."""
        import pyarrow as pa
        import pyarrow.compute as pc

        name = next((one for one in names if one in self._given), None)
        if name is None:
            return pa.nulls(self.rows, pa.int64())
        given = self._given[name]
        with contextlib.suppress(pa.ArrowInvalid):
            return given.cast(pa.int64())
        found = pc.extract_regex(given, r"(?P<number>-?\d{1,18})(?:\.0*)?\s*$")
        return pc.struct_field(found, "number").cast(pa.int64())


def read_csv(path: Path, name: str, kind: str, events: RocmEvents, apart: int = 0) -> list[Damage]:
    """Reads one table; what cannot be read of it is told."""
    import pyarrow as pa
    import pyarrow.csv

    damage: list[Damage] = []
    skipped: list[str] = []

    def skip(row: Any) -> str:
        skipped.append(row.text or "")
        return "skip"

    try:
        opened = pa.csv.open_csv(
            path,
            read_options=pa.csv.ReadOptions(block_size=_BLOCK, use_threads=False),
            parse_options=pa.csv.ParseOptions(invalid_row_handler=skip, newlines_in_values=True),
            convert_options=pa.csv.ConvertOptions(column_types=_all_texts(path), strings_can_be_null=True),
        )
        for batch in opened:
            _READERS[kind](_Columns(batch), name, events, apart)
    except pa.ArrowInvalid as error:
        damage.append(Damage(f"{name} could not be read to the end: {str(error).splitlines()[0][:200]}"))
    if skipped:
        damage.append(Damage(f"a line of {name} with too many or too few values", len(skipped)))
    return damage


def _all_texts(path: Path) -> dict[str, Any]:
    import pyarrow as pa

    with path.open("rb") as file:
        line = file.readline(1 << 16).decode("utf-8", "replace")
    return {name.strip().strip('"'): pa.string() for name in line.split(",")}


def _kernels(columns: _Columns, what: str, events: RocmEvents, apart: int) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc

    sizes = {"work": "grid_size", "group": "workgroup_size"}
    axes = {f"{to}_{axis}": columns.whole(f"{of}_{axis}") for to, of in sizes.items() for axis in "xyz"}
    if "grid_size_x" not in columns:
        ones = pa.repeat(pa.scalar(1, pa.int64()), columns.rows)
        axes = dict.fromkeys(axes, ones) | {
            "work_x": columns.whole("grid_size"),
            "group_x": columns.whole("workgroup_size"),
        }
    given = {
        "start": columns.whole("start_timestamp"),
        "end": columns.whole("end_timestamp"),
        "name": columns.text("kernel_name"),
        "device": columns.whole("agent_id"),
        "stream": columns.whole("stream_id", "queue_id"),
        "correlation": pc.add(columns.whole("correlation_id"), apart),
        "registers": columns.whole("vgpr_count"),
        "shared": columns.whole("lds_block_size"),
    }
    events.agents.update(one for one in pc.unique(columns.text("agent_id")).to_pylist() if one)
    events.kernels(what, given | axes)


def _counters(columns: _Columns, what: str, events: RocmEvents, apart: int) -> None:
    """Counters of kernels: each dispatch comes once for each counter, and counts once."""
    import pyarrow.compute as pc

    counter = columns.text("counter_name")
    if columns.rows:
        _kernels(columns.filtered(pc.equal(counter, counter[0])), what, events, apart)


def _copies(columns: _Columns, what: str, events: RocmEvents, apart: int) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc

    target, source = columns.whole("destination_agent_id"), columns.whole("source_agent_id")
    outwards = of_distinct([columns.text("direction")], _leaves_device, pa.bool_())
    given = {
        "start": columns.whole("start_timestamp"),
        "end": columns.whole("end_timestamp"),
        "name": columns.text("direction"),
        "device": pc.if_else(outwards, source, target),
        "stream": columns.whole("stream_id", "queue_id"),
        "correlation": pc.add(columns.whole("correlation_id"), apart),
    }
    events.copies(what, given)


def _leaves_device(direction: str | None) -> bool:
    return "DEVICE_TO_HOST" in (direction or "")


def _host(columns: _Columns, what: str, events: RocmEvents, apart: int) -> None:
    import pyarrow.compute as pc

    given = {
        "start": columns.whole("start_timestamp"),
        "end": columns.whole("end_timestamp"),
        "name": columns.text("function"),
        "domain": columns.text("domain") if "domain" in columns else same("HIP", columns.rows),
        "process": columns.whole("process_id"),
        "thread": columns.whole("thread_id"),
        "correlation": pc.add(columns.whole("correlation_id"), apart),
    }
    events.on_host(what, given)


def _first_kernels(columns: _Columns, what: str, events: RocmEvents, _: int) -> None:
    import pyarrow as pa

    ones = pa.repeat(pa.scalar(1, pa.int64()), columns.rows)
    given = {
        "start": columns.whole("beginns"),
        "end": columns.whole("endns"),
        "name": columns.text("kernelname"),
        "device": columns.whole("gpu-id"),
        "stream": columns.whole("queue-id"),
        "correlation": pa.nulls(columns.rows, pa.int64()),
        "registers": columns.whole("arch_vgpr"),
        "shared": columns.whole("lds"),
        "work_x": columns.whole("grd"),
        "group_x": columns.whole("wgr"),
        **dict.fromkeys(("work_y", "work_z", "group_y", "group_z"), ones),
    }
    events.kernels(what, given)


_READERS = {
    "kernels": _kernels,
    "counters": _counters,
    "copies": _copies,
    "host": _host,
    "first kernels": _first_kernels,
}


# ---------------------------------------------------------------- JSON


def read_json(given: Input, events: RocmEvents) -> tuple[dict[str, Any], list[Damage]]:
    """Reads the JSON of rocprofv3, one part for each process."""
    write = "write a database: rocprofv3 --output-format rocpd --sys-trace -- python train.py"
    raw = given.whole(_MOST_JSON, ", too large for JSON of rocprofv3", hint=write)
    try:
        parts = json.loads(raw.decode("utf-8", "replace"))["rocprofiler-sdk-tool"]
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        raise StepscopeError(
            f"{given.name} is JSON of rocprofv3, but cut short or damaged: {why_no_json(error)}",
            hint="write a database, which can be read up to the damage: rocprofv3 --output-format rocpd",
        ) from error
    metadata: dict[str, Any] = {}
    damage: list[Damage] = []
    for place, part in enumerate(parts if isinstance(parts, list) else ()):
        if isinstance(part, dict):
            metadata |= _Part(part, events, place << 40).read(damage)
    return metadata, damage


class _Part:
    """What one process recorded."""

    def __init__(self, part: dict[str, Any], events: RocmEvents, apart: int) -> None:
        self._part = part
        self._events = events
        self._apart = apart
        self._process = _at(part, "metadata", "pid")
        agents = [one for one in _list(part.get("agents")) if isinstance(one, dict)]
        self._gpus = {
            _at(one, "id", "handle"): one
            for one in agents
            if one.get("type") == 2  # 1 is a CPU
        }
        self._kinds = _list(_at(part, "strings", "buffer_records"))
        said = [one for one in _list(_at(part, "strings", "marker_api")) if isinstance(one, dict)]
        self._said = {
            one["key"]: storable(one["value"][:2_000])
            for one in said
            if _is_whole(one.get("key")) and isinstance(one.get("value"), str)
        }

    def read(self, damage: list[Damage]) -> dict[str, Any]:
        """Reads all records, and tells of the machine."""
        records = self._part.get("buffer_records")
        records = records if isinstance(records, dict) else {}
        odd = 0
        for key, rows in records.items():
            given = _list(rows)
            kept = [one for one in given if isinstance(one, dict)]
            odd += len(given) - len(kept)
            if key == "kernel_dispatch":
                self._kernels(kept)
            elif key == "memory_copy":
                self._copies(kept)
            elif key.endswith("_api"):
                self._calls(kept, key)
        if odd:
            damage.append(Damage("a record in the JSON that is none, not kept", odd))
        told: dict[str, Any] = {}
        if isinstance(host := _at(self._part, "metadata", "node", "hostname"), str):
            told["host_name"] = host[:200]
        gpus = [
            device_properties(place, str(one.get("product_name") or ""), json.dumps(one)[:65_536])
            for place, one in enumerate(self._gpus.values())
        ]
        return told | ({"deviceProperties": gpus} if gpus else {})

    def _columns(self, rows: list[dict[str, Any]], **paths: tuple[str, ...]) -> dict[str, pa.Array]:
        import pyarrow as pa
        import pyarrow.compute as pc

        wanted = {"start": ("start_timestamp",), "end": ("end_timestamp",)} | paths
        kind = _struct_of(list(wanted.values()))
        try:
            read = pa.array(rows, kind)
        except (pa.ArrowException, TypeError, OverflowError):  # something in it is of another type
            read = pa.array([_fitting(row, kind) for row in rows], kind)
        return {name: pc.struct_field(read, list(path)) for name, path in wanted.items()}

    def _tied(self, correlation: pa.Array) -> pa.Array:
        import pyarrow.compute as pc

        return pc.add(correlation, self._apart)

    def _device(self, handle: int | None) -> int | None:
        places = list(self._gpus)
        return places.index(handle) if handle in self._gpus else None

    def _kernels(self, rows: list[dict[str, Any]]) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        symbols = {_at(one, "kernel_id"): one for one in _list(self._part.get("kernel_symbols"))}

        def name(number: int | None) -> str | None:
            told = _at(symbols.get(number), "formatted_kernel_name") or _at(
                symbols.get(number), "kernel_name"
            )
            return told if isinstance(told, str) else None

        def registers(number: int | None) -> int | None:
            told = _at(symbols.get(number), "arch_vgpr_count")
            return told if _is_whole(told) else None

        info = "dispatch_info"
        sizes = {"work": "grid_size", "group": "workgroup_size"}
        axes = {f"{to}_{axis}": (info, of, axis) for to, of in sizes.items() for axis in "xyz"}
        columns = self._columns(
            rows,
            agent=(info, "agent_id", "handle"),
            kernel=(info, "kernel_id"),
            stream=("stream_id", "handle"),
            queue=(info, "queue_id", "handle"),
            correlation=("correlation_id", "internal"),
            shared=(info, "group_segment_size"),
            **axes,
        )
        columns["device"] = of_distinct([columns.pop("agent")], self._device, pa.int64())
        columns["stream"] = pc.coalesce(columns["stream"], columns.pop("queue"))
        kernel = columns.pop("kernel")
        columns["name"] = of_distinct([kernel], name, pa.string())
        columns["registers"] = of_distinct([kernel], registers, pa.int64())
        columns["correlation"] = self._tied(columns["correlation"])
        self._events.kernels("kernel_dispatch", columns)

    def _operation(self, kind: int | None, operation: int | None) -> str | None:
        """The name of what was done: kinds and operations are numbered in the file."""
        named = self._kinds[kind] if kind is not None and 0 <= kind < len(self._kinds) else None
        listed = _list(_at(named, "operations"))
        found = listed[operation] if operation is not None and 0 <= operation < len(listed) else None
        return found if isinstance(found, str) else None

    def _copies(self, rows: list[dict[str, Any]]) -> None:
        import pyarrow as pa

        columns = self._columns(
            rows,
            kind=("kind",),
            operation=("operation",),
            target=("dst_agent_id", "handle"),
            source=("src_agent_id", "handle"),
            stream=("stream_id", "handle"),
            correlation=("correlation_id", "internal"),
            bytes=("bytes",),
        )

        def device(target: int | None, source: int | None) -> int | None:
            found = self._device(target)
            return self._device(source) if found is None else found

        agents = [columns.pop("target"), columns.pop("source")]
        kinds = [columns.pop("kind"), columns.pop("operation")]
        columns["device"] = of_distinct(agents, device, pa.int64())
        columns["name"] = of_distinct(kinds, self._operation, pa.string())
        columns["correlation"] = self._tied(columns["correlation"])
        self._events.copies("memory_copy", columns)

    def _said_by(self, correlation: pa.Array, otherwise: pa.Array) -> pa.Array:
        """What markers say; the name of the call where one says nothing."""
        import pyarrow as pa
        import pyarrow.compute as pc

        numbers, texts = pa.array(list(self._said), pa.int64()), pa.array(list(self._said.values()))
        said = texts.take(pc.index_in(correlation, numbers))
        return of_distinct([said, otherwise], lambda text, name: text or name, pa.string())

    def _calls(self, rows: list[dict[str, Any]], key: str) -> None:
        import pyarrow as pa

        columns = self._columns(
            rows,
            kind=("kind",),
            operation=("operation",),
            thread=("thread_id",),
            correlation=("correlation_id", "internal"),
        )
        kinds = [columns.pop("kind"), columns.pop("operation")]
        columns["name"] = of_distinct(kinds, self._operation, pa.string())
        if "marker" in key and self._said:
            columns["name"] = self._said_by(columns["correlation"], columns["name"])
        columns["domain"] = same(key, len(rows))
        columns["process"] = pa.array(
            [self._process if _is_whole(self._process) else None] * len(rows), pa.int64()
        )
        columns["correlation"] = self._tied(columns["correlation"])
        self._events.on_host(key, columns)


def _struct_of(paths: list[tuple[str, ...]]) -> pa.DataType:
    """The type of an object that has whole numbers at these paths; other members are not looked at."""
    import pyarrow as pa

    heads: dict[str, list[tuple[str, ...]]] = {}
    for head, *rest in paths:
        heads.setdefault(head, []).append(tuple(rest))
    return pa.struct(
        [(head, _struct_of(rests) if all(rests) else pa.int64()) for head, rests in heads.items()]
    )


def _fitting(value: Any, kind: pa.DataType) -> Any:
    """What of a value is of that type."""
    import pyarrow as pa

    if not pa.types.is_struct(kind):
        return value if _is_whole(value) else None
    if not isinstance(value, dict):
        return None
    return {field.name: _fitting(value.get(field.name), field.type) for field in kind}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _at(value: Any, *path: str) -> Any:
    """A member of members; None where one is missing."""
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 62
