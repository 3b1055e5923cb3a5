"""The JSON that rocprof wrote before version 3: events as Chrome has them, told apart by process names."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from stepscope.errors import StepscopeError
from stepscope.sources._reading import why_no_json
from stepscope.sources._rocm_events import storable
from stepscope.store.meta import Damage
from stepscope.store.rows import of_distinct

if TYPE_CHECKING:
    import pyarrow as pa

    from stepscope.sources._input import Input
    from stepscope.sources._rocm_events import RocmEvents

__all__ = ["is_first_json", "read_first_json"]

_MOST_JSON = 1 << 29
# It begins with an empty event, which no other tool writes there, and then calls its processes by name.
_HEAD = re.compile(rb'(?:\xef\xbb\xbf)?\s*\{\s*"traceEvents"\s*:\s*\[\s*\{\s*\}')
_NAMED = re.compile(rb'"name"\s*:\s*"(?:CPU (?:HIP|HSA|KFD) API|CPU ROCTX|Markers and Ranges|COPY)"')
_GPU = re.compile(r"GPU ?(\d{1,6})")
_ARGS = ("BeginNs", "EndNs", "dev-id", "proc-id", "pid", "Index")
_APART = 1 << 40
"""More than the calls of one process are counted up to."""


def is_first_json(head: bytes) -> bool:
    """Whether a file that begins like this is of rocprof before version 3."""
    return bool(_HEAD.match(head)) and bool(_NAMED.search(head))


def read_first_json(given: Input, events: RocmEvents) -> list[Damage]:
    """Reads all its events; those of processes without a known name are kept as others."""
    import pyarrow as pa

    raw = given.whole(_MOST_JSON, ", too large for JSON of rocprof", hint="give results.db instead")
    try:
        listed = json.loads(raw.decode("utf-8-sig", "replace"), strict=False)["traceEvents"]
    except (ValueError, RecursionError, KeyError, TypeError) as error:
        raise StepscopeError(
            f"{given.name} is JSON of rocprof, but cut short or damaged: {why_no_json(error)}",
            hint="give results.db, which rocprof wrote beside it",
        ) from error
    kept = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    named = _process_names([one for one in kept if one.get("ph") == "M"])
    rows = _columns([one for one in kept if one.get("ph") == "X"])
    _add(rows, of_distinct([rows["process"]], named.get, pa.string()), events)
    odd = len(listed) - len(kept) if isinstance(listed, list) else 0
    return [Damage("an event in the JSON that is none, not kept", odd)] if odd else []


def _process_names(told: list[dict[str, Any]]) -> dict[str | None, str]:
    named: dict[str | None, str] = {}
    for one in told:
        args = one.get("args")
        if one.get("name") == "process_name" and isinstance(args, dict):
            named[storable(one.get("pid"))] = storable(args.get("name"))
    return named


def _columns(spans: list[dict[str, Any]]) -> dict[str, pa.Array]:
    """The spans as columns. Times within `args` are whole; those beside them may be rounded and shifted."""
    import pyarrow as pa
    import pyarrow.compute as pc

    args = pa.struct([(name, pa.string()) for name in _ARGS])
    plain = ("name", "pid", "tid", "ts", "dur")
    kind = pa.struct([*((name, pa.string()) for name in plain), ("args", args)])
    try:
        read = pa.array(spans, kind)
    except (
        pa.ArrowException,
        TypeError,
        ValueError,
    ):  # rocprof quotes all numbers; others that write so do not
        read = pa.array([_quoted(one) for one in spans], kind)
    texts = {name: pc.struct_field(read, name) for name in plain}
    told = {name: pc.struct_field(read, ["args", name]) for name in _ARGS}
    start, end = _times(texts, _whole(told["BeginNs"]), _whole(told["EndNs"]))
    owner = _owner(texts["pid"], told["pid"], told["proc-id"])
    return {
        "owner": owner,
        "start": start,
        "end": end,
        "name": texts["name"],
        "process": texts["pid"],
        "stream": _whole(texts["tid"]),
        "device": _whole(told["dev-id"]),
        "correlation": _index(owner, _whole(told["Index"])),
    }


def _quoted(span: dict[str, Any]) -> dict[str, Any]:
    """A span with all numbers as texts."""
    args = span.get("args")
    told = {name: storable(args[name]) for name in _ARGS if name in args} if isinstance(args, dict) else {}
    plain = {name: storable(span[name]) for name in ("name", "pid", "tid", "ts", "dur") if name in span}
    return plain | {"args": told}


def _whole(texts: pa.Array) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    found = pc.extract_regex(texts, r"^(?P<number>-?\d{1,18})$")
    return pc.struct_field(found, "number").cast(pa.int64())


def _times(texts: dict[str, pa.Array], begin: pa.Array, end: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Starts and ends in ns; `ts` may count from the start of the run, which others tell."""
    import pyarrow.compute as pc

    start, dur = _nanoseconds(texts["ts"]), _nanoseconds(texts["dur"])
    shifts = pc.drop_null(pc.subtract(begin, start))
    first = pc.add(start, pc.min(shifts)) if len(shifts) else start
    return pc.coalesce(begin, first), pc.coalesce(end, pc.add(pc.coalesce(begin, first), dur))


def _nanoseconds(texts: pa.Array) -> pa.Array:
    """Microseconds in decimals as whole nanoseconds, without going through a float."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found = pc.extract_regex(texts, r"^(?P<whole>\d{1,15})(?:\.(?P<part>\d{1,3})\d*)?$")
    part = pc.utf8_rpad(pc.fill_null(pc.struct_field(found, "part"), ""), 3, "0")
    whole = pc.struct_field(found, "whole")
    return pc.add(pc.multiply(whole.cast(pa.int64()), 1000), part.cast(pa.int64()))


def _owner(section: pa.Array, pid: pa.Array, process: pa.Array) -> pa.Array:
    """The process of each event, NULL where the file does not say it.

    The last versions say it as `pid` within `args`. Those before have the number of the section there, as
    beside them, and say the process of work alone, as `proc-id`.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    differ = pc.any(pc.not_equal(section, pid)).as_py()
    return pc.coalesce(pid if differ else pa.nulls(len(pid), pa.string()), process)


def _index(owner: pa.Array, index: pa.Array) -> pa.Array:
    """What may tie work to its call, which each process counts for itself.

    Of several processes, nothing can be tied where calls do not say whose they are.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    encoded = owner.dictionary_encode()
    if len(encoded.dictionary) < 2:
        return index
    apart = pc.multiply(encoded.indices.cast(pa.int64()), _APART)
    return pc.add(index, apart)  # NULL without a process


def _add(rows: dict[str, pa.Array], named: pa.Array, events: RocmEvents) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc

    def number(name: str | None) -> int | None:
        found = _GPU.fullmatch(name or "")
        return int(found[1]) if found else None

    def chosen(which: pa.Array) -> dict[str, pa.Array]:
        return {name: column.filter(which) for name, column in columns.items()}

    # Calls of HIP and what they asked of a device are counted alike; those of HSA, and its copies, are not.
    hip = of_distinct([named], lambda one: one == "CPU HIP API", pa.bool_())
    tied = pc.or_(hip, pc.is_valid(rows["device"]))
    index = pc.if_else(tied, rows["correlation"], pa.scalar(None, pa.int64()))
    columns = rows | {"named": named, "correlation": index}
    columns["device"] = pc.coalesce(of_distinct([named], number, pa.int64()), rows["device"])
    on_gpu = of_distinct([named], lambda one: number(one) is not None, pa.bool_())
    copied = of_distinct([named], lambda one: one == "COPY", pa.bool_())
    work = ("start", "end", "name", "device", "stream", "correlation")
    for which, add in ((on_gpu, events.kernels), (copied, events.copies)):
        kept = chosen(which)
        add("results.json", {name: kept[name] for name in work})
    kept = chosen(pc.invert(pc.or_(on_gpu, copied)))
    host = {
        "start": kept["start"],
        "end": kept["end"],
        "name": kept["name"],
        "domain": of_distinct([kept["named"]], _domain, pa.string()),
        "process": pc.fill_null(kept["owner"], "rocprof"),
        "thread": kept["stream"],
        "correlation": kept["correlation"],
    }
    events.on_host("results.json", host)


def _domain(name: str | None) -> str | None:
    return "MARKER" if name == "Markers and Ranges" else name
