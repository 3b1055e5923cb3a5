"""What all profiles of ROCm share: kernels, copies, calls and ranges as Arrow columns, made into events."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from stepscope.sources._arrow_tables import Times
from stepscope.store.rows import of_distinct, same

if TYPE_CHECKING:
    import pyarrow as pa

    from stepscope.store.writer import StoreWriter

__all__ = ["RocmEvents", "device_properties", "storable"]

_CALLS = re.compile(r"HIP|HSA|KFD|ROCDECODE|ROCJPEG", re.IGNORECASE)
_RANGES = re.compile(r"MARKER|ROCTX|RCCL|USER", re.IGNORECASE)
_DIRECTIONS = {"HOST": "H", "DEVICE": "D", "PEER": "P"}


class RocmEvents:
    """Takes columns of a ROCm profile as events of a store.

    Columns have the names `start`, `end`, `name`, `device`, `stream`, `process`, `thread` and `correlation`.
    """

    def __init__(self, writer: StoreWriter) -> None:
        self.times = Times()
        self.counted: dict[str, int] = {}
        """How many rows of each kind were kept."""
        self.agents: set[str] = set()
        """What tables of texts call the devices of their kernels."""
        self._writer = writer

    def kernels(self, what: str, columns: dict[str, pa.Array]) -> None:
        """Dispatches; `work_x` and `group_x` count work items, `registers` and `shared` may be missing."""
        import pyarrow as pa

        sizes = [f"{kind}_{axis}" for kind in ("work", "group") for axis in "xyz"]
        timed = self._timed(what, columns)
        if timed is None:
            return
        nothing = pa.nulls(timed.num_rows, pa.int64())
        told = [
            timed.column(name) if name in columns else nothing for name in ("registers", "shared", *sizes)
        ]
        named = {
            "name": of_distinct([timed.column("name")], _kernel_name, pa.string()),
            "args": of_distinct(told, _shape, pa.string()),
        }
        self._add("device_work", "kernels", _placed(timed) | named)

    def copies(self, what: str, columns: dict[str, pa.Array]) -> None:
        """Copies, with `bytes`; their names say the direction."""
        import pyarrow as pa

        timed = self._timed(what, columns)
        if timed is None:
            return
        placed = _placed(timed)
        placed["name"] = of_distinct([placed["name"]], _copy_name, pa.string())
        kinds = {"category": same("gpu_memcpy", timed.num_rows)}
        sized = {"bytes": timed.column("bytes")} if "bytes" in columns else {}
        self._add("device_work", "copies", placed | kinds | sized)

    def on_host(self, what: str, columns: dict[str, pa.Array]) -> None:
        """Calls, ranges and others, as their `domain` says."""
        import pyarrow as pa

        timed = self._timed(what, columns)
        if timed is None:
            return
        given = _hosted(timed)
        kind = of_distinct([timed.column("domain")], _kind_of_domain, pa.string())
        for table, counted in (("launches", "calls"), ("annotations", "ranges"), ("other_events", "others")):
            which = of_distinct([kind], lambda one, table=table: one == table, pa.bool_())
            if not which.true_count:
                continue
            rows = {name: column.filter(which) for name, column in given.items()}
            if table == "annotations":
                del rows["correlation"]
            if table == "other_events":
                rows |= {
                    name: same(text, which.true_count)
                    for name, text in (("category", "rocm"), ("phase", "X"))
                }
            self._add(table, counted, rows)

    def _timed(self, what: str, columns: dict[str, pa.Array]) -> pa.RecordBatch | None:
        import pyarrow as pa

        timed = self.times.of(what, pa.RecordBatch.from_arrays(list(columns.values()), list(columns)))
        return timed if timed.num_rows else None

    def _add(self, table: str, kind: str, columns: dict[str, pa.Array]) -> None:
        import pyarrow as pa

        rows = pa.RecordBatch.from_arrays(list(columns.values()), list(columns))
        if rows.num_rows:
            self._writer.add_rows(table, rows)
            self.counted[kind] = self.counted.get(kind, 0) + rows.num_rows


def _placed(timed: pa.RecordBatch) -> dict[str, pa.Array]:
    """Times and place of something on a device."""
    import pyarrow as pa

    device, stream = timed.column("device"), timed.column("stream")
    return {
        "start_ns": timed.column("start"),
        "dur_ns": timed.column("dur"),
        "name": timed.column("name"),
        "device": device,
        "stream": stream,
        "process": of_distinct([device], _text, pa.string()),
        "thread": of_distinct([stream], _text, pa.string()),
        "correlation": timed.column("correlation"),
    }


def _hosted(timed: pa.RecordBatch) -> dict[str, pa.Array]:
    import pyarrow as pa

    return {
        "start_ns": timed.column("start"),
        "dur_ns": timed.column("dur"),
        "name": timed.column("name"),
        "process": of_distinct([timed.column("process")], _text, pa.string()),
        "thread": of_distinct([timed.column("thread")], _text, pa.string()),
        "correlation": timed.column("correlation"),
    }


def storable(value: object) -> str:
    """A value of JSON as a text that can be stored: escapes may stand for halves of letters."""
    return str(value).encode("utf-8", "replace").decode()


def _text(value: object) -> str:
    return "unknown" if value is None else str(value)


def _kind_of_domain(domain: str | None) -> str:
    if domain and _RANGES.search(domain):
        return "annotations"
    return "launches" if domain and _CALLS.search(domain) else "other_events"


def _shape(registers: int | None, shared: int | None, *sizes: int | None) -> str | None:
    """How a kernel was launched, in Kineto's words: its grid counts groups, that of ROCm work items."""
    told: dict[str, Any] = {}
    if registers is not None:
        told["registers per thread"] = registers
    if shared is not None:
        told["shared memory"] = shared
    known = [one for one in sizes if one is not None and 0 <= one < 1 << 40]
    if len(known) == len(sizes):
        work, group = known[:3], [max(one, 1) for one in known[3:]]
        told |= {"grid": [-(-one // by) for one, by in zip(work, group, strict=True)], "block": group}
    return json.dumps(told) if told else None


def _copy_name(name: str | None) -> str:
    """As Kineto calls it: `MEMORY_COPY_HOST_TO_DEVICE`, `CopyHostToDevice` or `HOST_TO_DEVICE`."""
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name or "").upper()
    found = re.search(r"(HOST|DEVICE|PEER)_TO_(HOST|DEVICE|PEER)", words)
    if found is None:
        return "Memcpy unknown" if not name else f"Memcpy ({name})"
    ends = [_DIRECTIONS[one] for one in found.groups()]
    return f"Memcpy {ends[0]}to{ends[1]} ({found[1].title()} -> {found[2].title()})"


def _kernel_name(name: str | None) -> str:
    """Without the quotes and endings that ROCm's tools leave: `"k(float*) [clone .kd]"`."""
    plain = (name or "").strip().strip('"')
    return re.sub(r"( \[clone )?\.kd\]?$", "", plain) or "a kernel without a name"


def device_properties(number: int, name: str | None, told: str) -> dict[str, Any]:
    """A GPU with Kineto's keys, of what its agent says in JSON; `told` may be cut, for it is long."""

    def whole(key: str) -> int | None:
        found = re.search(rf'"{key}"\s*:\s*(\d{{1,18}})\b', told)
        return int(found[1]) if found else None

    keys = {"numSms": "cu_count", "warpSize": "wave_front_size", "totalGlobalMem": "size_in_bytes"}
    known = {to: value for to, of in keys.items() if (value := whole(of))}
    waves = whole("max_waves_per_cu")
    if waves and known.get("warpSize"):
        known["maxThreadsPerMultiprocessor"] = waves * known["warpSize"]
    if shared := whole("lds_size_in_kb"):
        known["sharedMemPerMultiprocessor"] = known["sharedMemPerBlock"] = shared * 1024
    return {"id": number, "name": name or "", **known}
