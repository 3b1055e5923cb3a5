"""Execution traces: operators with shapes and dependencies, as PyTorch or Chakra writes them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from stepscope import _native
from stepscope.errors import StepscopeError
from stepscope.sources import Damage, Input, SourceMeta, source
from stepscope.sources._protobuf import leading_fields
from stepscope.store.arrow_sql import ask
from stepscope.store.columns import texts

if TYPE_CHECKING:
    import pyarrow as pa

    from stepscope.store.writer import StoreWriter

__all__ = ["execution_trace"]

_TORCH = re.compile(rb'^\s*\{\s*"schema"\s*:\s*"[0-9][^"]{0,40}"\s*,\s*"pid"')
_NODES = re.compile(rb'"nodes"\s*:\s*\[')
_WORKLOAD = re.compile(rb'^\s*\{\s*"workload_graph"\s*:\s*\[')
_PROTOBUF = re.compile(
    rb"[\x80-\xff]{0,3}[\x01-\x7f](\x0a[\x03-\x20][0-9]+\.|\x12[\x80-\xff]{0,3}[\x01-\x7f]\x0a)"
)
"""The length of the header, then its version, or the first attribute with its name."""
_ATTRIBUTES = (b"schema", b"chakra")
_LENGTH = re.compile(rb"[\x80-\xff]{0,3}[\x00-\x7f]")
_VERSION = re.compile(rb"[0-9]+\.[0-9]+[0-9A-Za-z.+-]{0,24}")
_FIELDS: dict[int, tuple[type, ...]] = {
    **dict.fromkeys((1, 3, 6, 7), (int,)),
    **dict.fromkeys((2, 8, 9, 10), (bytes,)),
    **dict.fromkeys((4, 5), (int, bytes)),
}
"""The fields of a node: numbers, or texts and messages; dependencies may be packed or not."""
_KINDS = range(1, 16)
_NO_TIMES = "An execution trace has no times: it says what operators were given, not how long they took."
_SOME_TIMES = (
    "An execution trace has no timeline: it says what operators were given and how long they took (`dur_ns` "
    "of `execution_nodes`), not when they ran."
)
_TOLD = ("schema", "pid", "time")
_BATCH_BYTES = 32 << 20
_RECORD = "record one with torch.profiler.ExecutionTraceObserver().register_callback('et.json')"

_TORCH_NODES = """
    WITH read AS (
        SELECT node, map_from_entries(list_transform(
            coalesce(TRY_CAST(from_json(node->'attrs', '[{"name": "VARCHAR", "value": "VARCHAR"}]')
                              AS STRUCT("name" VARCHAR, "value" VARCHAR)[]), []),
            lambda one: {'k': coalesce(one.name, ''), 'v': one.value})) AS attrs
        FROM nodes WHERE json_type(node) = 'OBJECT')
    SELECT TRY_CAST(node->>'id' AS BIGINT) AS node, node->>'name' AS name,
           TRY_CAST(coalesce(node->>'parent', node->>'$.ctrl_deps[0]', node->>'ctrl_deps') AS BIGINT)
             AS parent,
           TRY_CAST(coalesce(node->>'tid', attrs['tid']) AS BIGINT) AS thread,
           TRY_CAST(coalesce(node->>'rf_id', attrs['rf_id']) AS BIGINT) AS record_id,
           nullif(TRY_CAST(coalesce(node->>'seq_id', attrs['seq_id']) AS BIGINT), -1) AS sequence,
           nullif(TRY_CAST(coalesce(node->>'fw_parent', attrs['fw_parent']) AS BIGINT), 0) AS forward_node,
           nullif(coalesce(node->>'op_schema', attrs['op_schema']), '') AS schema,
           coalesce(node->>'input_shapes', node->>'$.inputs.shapes') AS input_shapes,
           coalesce(node->>'input_types', node->>'$.inputs.types') AS input_types,
           coalesce(node->>'$.inputs.values', node->>'inputs') AS inputs,
           coalesce(node->>'output_shapes', node->>'$.outputs.shapes') AS output_shapes,
           coalesce(node->>'output_types', node->>'$.outputs.types') AS output_types,
           coalesce(node->>'$.outputs.values', node->>'outputs') AS outputs,
           nullif(node->>'data_deps', '[]') AS depends_on,
           1000 * TRY_CAST(node->>'duration_micros' AS BIGINT) AS dur_ns
    FROM read
"""
_WORKLOAD_NODES = """
    SELECT TRY_CAST(node->>'Id' AS BIGINT) AS node, node->>'Name' AS name,
           TRY_CAST(node->>'$.ctrlDeps[0]' AS BIGINT) AS parent, node->>'data_deps' AS depends_on,
           1000 * TRY_CAST(node->>'runtime' AS BIGINT) AS dur_ns
    FROM nodes WHERE json_type(node) = 'OBJECT'
"""


def _is_execution_trace(given: Input) -> bool:
    head = given.head
    return bool((_TORCH.match(head) and _NODES.search(head)) or _WORKLOAD.match(head) or _is_protobuf(given))


def _is_protobuf(given: Input) -> bool:
    first = given.first_bytes[:4096]
    return bool(_PROTOBUF.match(first)) and (
        any(name in first for name in _ATTRIBUTES) or _is_generated(first)
    )


def _is_generated(first: bytes) -> bool:
    """Whether it begins with a header that has a version alone, as generators write it, and a node."""
    header, at = _message(first, 0)
    node, _ = _message(first, at)
    if header is None or node is None or len(header) != 1:
        return False
    ((number, version),) = header
    if number != 1 or not isinstance(version, bytes) or not _VERSION.fullmatch(version):
        return False
    fits = all(isinstance(value, _FIELDS.get(field, ())) for field, value in node)
    told = dict(node)
    name = told.get(2, b"")
    return fits and told.get(3) in _KINDS and isinstance(name, bytes) and _is_text(name)


def _message(first: bytes, at: int) -> tuple[list[tuple[int, int | bytes]] | None, int]:
    """The fields of the message at a place, which has its length in front, and the place behind it."""
    found = _LENGTH.match(first, at)
    if not found:
        return None, at
    size = sum((byte & 0x7F) << 7 * nth for nth, byte in enumerate(found[0]))
    end = found.end() + size
    return leading_fields(b"\x0a" + first[at:end], 1), end


def _is_text(name: bytes) -> bool:
    try:
        return name.decode().isprintable() and bool(name)
    except UnicodeDecodeError:
        return False


@source(sniff=_is_execution_trace, beside=True)
def execution_trace(given: Input, writer: StoreWriter) -> SourceMeta:
    """Adds an execution trace: what operators were given, and what depends on what."""
    reader: _native.ElementReader | _native.ChakraReader
    sql = _TORCH_NODES
    if _is_protobuf(given):
        reader = _native.ChakraReader()
    elif _WORKLOAD.match(given.head):
        reader, sql = _native.ElementReader("workload_graph"), _WORKLOAD_NODES
    else:
        reader = _native.ElementReader("nodes")
    lost = waiting = timed = 0
    for piece in given.stream:
        reader.feed(bytes(piece))
        waiting += len(piece)
        if waiting >= _BATCH_BYTES:
            kept = _add(reader, sql, writer)
            lost, timed, waiting = lost + kept.lost, timed + kept.timed, 0
        if reader.trouble:
            break
    reader.finish()
    kept = _add(reader, sql, writer)
    lost, timed = lost + kept.lost, timed + kept.timed
    if not reader.elements:
        why = reader.trouble or "it has no nodes"
        raise StepscopeError(f"{given.name} is no execution trace: {why}", hint=_RECORD)
    return SourceMeta(
        damage=tuple(_damage(reader, lost)),
        metadata={"execution_trace": _header(reader)},
        joined="by the order of operators",
        notes=(_SOME_TIMES if timed else _NO_TIMES,),
    )


def _damage(reader: _native.ElementReader | _native.ChakraReader, lost: int) -> Iterator[Damage]:
    if reader.trouble:
        reason = f"the execution trace ends too early or is damaged: {reader.trouble}"
        yield Damage(reason, bytes=reader.read_bytes - reader.trouble_at, offsets=(reader.trouble_at,))
    if lost:
        yield Damage("a node without a number or a name, not kept", lost)
    if isinstance(reader, _native.ChakraReader) and reader.damaged:
        yield Damage("a damaged node of the execution trace, not kept", reader.damaged)


class _Kept(NamedTuple):
    """How many nodes could not be stored, and how many have a duration."""

    lost: int
    timed: int


def _add(reader: _native.ElementReader | _native.ChakraReader, sql: str, writer: StoreWriter) -> _Kept:
    """Stores the nodes that were read."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found: pa.Table = ask(sql, nodes=pa.table({"node": texts(*reader.take())}))
    whole = found.filter(pc.and_(pc.is_valid(found["node"]), pc.is_valid(found["name"])))
    if whole.num_rows:
        writer.add_rows("execution_nodes", whole)
    return _Kept(found.num_rows - whole.num_rows, whole.num_rows - whole["dur_ns"].null_count)


def _header(reader: _native.ElementReader | _native.ChakraReader) -> dict[str, Any]:
    """What the file says of itself."""
    if isinstance(reader, _native.ChakraReader):
        told = json.loads(reader.header or "{}")
        return {one["name"]: one["value"] for one in told.get("attrs", ()) if one["name"] in _TOLD}
    return {key: _plain(text) for key, text in reader.members if key in _TOLD}


def _plain(text: str) -> Any:
    """A short value of the header."""
    value = json.loads(text) if len(text) < 1000 else None
    return value if isinstance(value, str | int) else None
