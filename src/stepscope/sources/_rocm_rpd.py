"""RPD, the database of rocmProfileData: operations, calls, and tables of what a call asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.sources._arrow_tables import Lookup, Texts
from stepscope.sources._rocm_events import RocmEvents
from stepscope.sources._sqlite import Database
from stepscope.store.rows import of_distinct, same

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["read_rpd"]

_AXES = "XYZ"
_COPIES = ("Copy", "Memcpy", "MEMORY_COPY")
# These calls are given work items, all others groups. RPD stores what they are given, unless its newer reader
# recorded, which stores work items and is named in the file.
_STORES_ITEMS = "RocprofDataSource"
_GIVEN_ITEMS = ("hipExtModuleLaunchKernel", "hipHccModuleLaunchKernel")


def read_rpd(tables: Database, events: RocmEvents) -> None:
    """Calls and operations, tied by a table of their own."""
    strings = Texts(tables, "rocpd_string", "id", "string")
    _read_operations(tables, events, strings)
    _read_calls(tables, events, strings)


def _read_operations(tables: Database, events: RocmEvents, strings: Texts) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc

    calls = Lookup(tables, "rocpd_api_ops", "op_id", ("api_id",))
    asked = _Asked(tables, strings)
    whole = ("id", "gpuId", "queueId", "start", "end", "description_id", "opType_id")
    for batch in tables.batches("rocpd_op", dict.fromkeys(whole, "int64")):
        kind = strings.of(batch.column("opType_id"))
        call = calls.of("api_id", batch.column("id"))
        columns = {
            "start": batch.column("start"),
            "end": batch.column("end"),
            "name": strings.first_of([batch.column("description_id"), batch.column("opType_id")], "unknown"),
            "device": batch.column("gpuId"),
            "stream": batch.column("queueId"),
            "correlation": call,
        }
        copied = of_distinct([kind], lambda one: bool(one and one.startswith(_COPIES)), pa.bool_())
        kinds = (
            (pc.invert(copied), events.kernels, asked.of_kernels),
            (copied, events.copies, asked.of_copies),
        )
        for which, add, asked_for in kinds:
            if which.true_count:
                kept = {name: column.filter(which) for name, column in columns.items()}
                add("rocpd_op", kept | asked_for(kept["correlation"]))


class _Asked:
    """What calls asked for, by the number of the call: sizes of copies, and how kernels were launched."""

    def __init__(self, tables: Database, strings: Texts) -> None:
        sizes = tuple(f"{kind}{axis}" for kind in ("grid", "workgroup") for axis in _AXES)
        self._strings = strings
        self._copies = _by_call(tables, "rocpd_copyapi", ("size",))
        self._kernels = _by_call(tables, "rocpd_kernelapi", (*sizes, "groupSegmentSize"))
        self._all_items = self._kernels is not None and _mentions(tables, _STORES_ITEMS)
        self._names = Lookup(tables, "rocpd_api", "id", ("apiName_id",)) if self._kernels else None

    def of_copies(self, call: pa.Array) -> dict[str, pa.Array]:
        return {"bytes": self._copies.of("size", call)} if self._copies else {}

    def of_kernels(self, call: pa.Array) -> dict[str, pa.Array]:
        import pyarrow as pa
        import pyarrow.compute as pc

        if self._kernels is None or self._names is None:
            return {}
        name = self._names.of("apiName_id", call)
        items = of_distinct([name], self._counts_items, pa.bool_())
        told = {"shared": self._kernels.of("groupSegmentSize", call)}
        for axis in _AXES:
            grid, group = (self._kernels.of(f"{kind}{axis}", call) for kind in ("grid", "workgroup"))
            told[f"group_{axis.lower()}"] = group
            told[f"work_{axis.lower()}"] = pc.if_else(items, grid, pc.multiply(grid, group))
        return told

    def _counts_items(self, call: int | None) -> bool:
        return self._all_items or self._strings.one(call) in _GIVEN_ITEMS


def _mentions(tables: Database, text: str) -> bool:
    import pyarrow.compute as pc

    texts = (batch.column(0) for batch in tables.batches("rocpd_string", {"string": "string"}))
    return any(pc.any(pc.match_substring(one, text)).as_py() for one in texts)


def _by_call(tables: Database, table: str, wanted: tuple[str, ...]) -> Lookup | None:
    """Such a table by the number of the call, whose column was renamed; None if the table is missing."""
    number = next((one for one in ("api_ptr_id", "api_id") if tables.has(table, one)), None)
    return None if number is None else Lookup(tables, table, number, wanted)


def _read_calls(tables: Database, events: RocmEvents, strings: Texts) -> None:
    import pyarrow as pa

    # Texts that hardly repeat, as those of ranges, have a table of their own since schema 3.
    own = tables.has("rocpd_ustring", "id", "string")
    said_by = Texts(tables, "rocpd_ustring", "id", "string") if own else strings

    def name(call: int | None, said: int | None) -> str | None:
        called = strings.one(call)
        return (said_by.one(said) or called) if called == "UserMarker" else called

    whole = ("id", "pid", "tid", "start", "end", "apiName_id", "args_id")
    for batch in tables.batches("rocpd_api", dict.fromkeys(whole, "int64")):
        named = of_distinct([batch.column("apiName_id"), batch.column("args_id")], name, pa.string())
        domain = strings.of(batch.column("apiName_id"), lambda one: "USER" if one == "UserMarker" else "HIP")
        columns = {
            "start": batch.column("start"),
            "end": batch.column("end"),
            "name": named,
            "domain": domain if batch.num_rows else same("HIP", 0),
            "process": batch.column("pid"),
            "thread": batch.column("tid"),
            "correlation": batch.column("id"),
        }
        events.on_host("rocpd_api", columns)
