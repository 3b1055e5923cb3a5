"""NVTX ranges of an export: those of the program, and those that PyTorch writes around its operators.

`torch.autograd.profiler.emit_nvtx` marks every operator with a range, and appends to its name what it knows:
`aten::mm, seq = 5, op_id = 12, sizes = [[8, 4], [4, 2]]`. It marks ranges of the program in the same way, so
that only the name tells what is an operator.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING

from stepscope import _native
from stepscope.sources._nsys_events import NsysEvents
from stepscope.store.columns import texts
from stepscope.store.rows import constant_of, of_distinct, same
from stepscope.threads import BackgroundWorker

if TYPE_CHECKING:
    import pyarrow as pa

    _Told = tuple[pa.Array, pa.Array, pa.Array, pa.Array]

__all__ = ["read_ranges"]

_TABLE = "NVTX_EVENTS"
_RANGES = (59, 60, 70, 71)
_MARKS = (34, 65)
_DOMAIN = 75

_NUMBERS = (", seq = ", ", op_id = ")
_SIZES = ", sizes = "
# Whatever has such a name is an operator: with something appended to it, or of a namespace of PyTorch.
_OPERATOR = re.compile(
    r"(?!FSDP::|DDP::|nccl:)(?:[A-Za-z_]\w*(?:::\w+)+(?:\.\w+)?|\w+Backward\d*"
    r"|autograd::engine::evaluate_function: .*|detach_?|record_param_comms)"
)
_OF_TORCH = re.compile(
    r"(aten|prims?|c10d|_c10d_functional|torch|torchvision|quantized|inductor|flash_attn|xformers)::\w+"
)


def read_ranges(events: NsysEvents) -> None:
    """Reads all ranges and marks."""
    _Ranges(events).read()


class _Ranges:
    def __init__(self, events: NsysEvents) -> None:
        self._events = events

    def read(self) -> None:
        with BackgroundWorker() as aside:  # texts are taken apart beside the work on those before
            for marks, ranges, told in aside.ahead(self._batches()):
                self._add_marks(marks)
                if told is not None:
                    self._add_ranges(ranges, told)

    def _batches(self) -> Iterator[tuple[pa.RecordBatch, pa.RecordBatch, _Told | None]]:
        """Marks and ranges, with what the texts of the ranges tell if there are any."""
        import pyarrow.compute as pc

        whole = ("start", "end", "eventType", "globalTid", "textId", "domainId")
        wanted = {**dict.fromkeys(whole, "int64"), "text": "string"}
        typed = self._events.tables.has(_TABLE, "eventType")
        for batch in self._events.tables.batches(_TABLE, wanted):
            if typed:
                marks, ranges = _of_kind(batch, _MARKS), _of_kind(batch, _RANGES)
            else:
                ends = pc.is_valid(batch.column("end"))
                marks, ranges = _chosen(batch, pc.invert(ends)), _chosen(batch, ends)
            timed = self._events.times.of(_TABLE, ranges, open_ended=True)
            told = _taken_apart(self._names(timed)) if timed.num_rows else None
            yield marks, timed, told

    @cached_property
    def _domains(self) -> dict[int | None, str | None]:
        """Names of domains; looked for when a range has one that is not the default."""
        import pyarrow.compute as pc

        found: dict[int | None, str | None] = {}
        if not self._events.tables.has(_TABLE, "eventType", "domainId"):
            return found
        wanted = {"eventType": "int64", "domainId": "int64", "textId": "int64", "text": "string"}
        for batch in self._events.tables.batches(_TABLE, wanted):
            created = pc.equal(batch.column("eventType"), _DOMAIN).fill_null(False)
            for row in batch.filter(created).to_pylist() if created.true_count else ():
                found[row["domainId"]] = row["text"] or self._events.texts.one(row["textId"])
        return found

    def _domain(self, number: int | None) -> str | None:
        name = self._domains.get(number) if number else None
        return json.dumps({"domain": name[:200]}) if name else None

    def _names(self, batch: pa.RecordBatch) -> pa.Array:
        """The text of each range: its own, or one that was registered before and has a number."""
        import pyarrow.compute as pc

        own, number = batch.column("text"), batch.column("textId")
        if number.null_count == len(number):
            return own
        return pc.coalesce(own, self._events.texts.of(number).cast(own.type))

    def _add_marks(self, batch: pa.RecordBatch) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        if not batch.num_rows:
            return
        batch = batch.append_column("dur", pa.nulls(batch.num_rows, pa.int64()))
        batch = batch.filter(pc.is_valid(batch.column("start")))
        columns = self._events.other(batch, self._names(batch), "nvtx_mark")
        del columns["dur_ns"]
        self._events.add("other_events", "marks", columns | {"phase": same("i", batch.num_rows)})

    def _add_ranges(self, batch: pa.RecordBatch, taken_apart: _Told) -> None:
        """Operators to operators, and all others to annotations."""
        import pyarrow as pa
        import pyarrow.compute as pc

        name, sequence, told, sizes = taken_apart
        domain = batch.column("domainId")

        def kind(text: str | None, domain: int | None, told: bool, *, ordered: bool) -> bool:
            if not text or domain:
                return False
            return bool(ordered or (_OPERATOR if told else _OF_TORCH).fullmatch(text))

        keys = [name, domain, told, pc.is_valid(sequence)]
        is_op = of_distinct(keys, lambda *key: kind(*key[:3], ordered=key[3]), pa.bool_())
        columns = self._events.host(batch) | {"name": name}
        ops = columns | {"sequence": sequence, "args": of_distinct([sizes], _sizes, pa.string())}
        others = columns | {"args": of_distinct([domain], self._domain, pa.string())}
        count = is_op.true_count
        if count:
            self._events.add("ops", "operators", _filtered(ops, None if count == len(is_op) else is_op))
        if count < len(is_op):
            self._events.add("annotations", "ranges", _filtered(others, pc.invert(is_op) if count else None))


def _of_kind(batch: pa.RecordBatch, kinds: tuple[int, ...]) -> pa.RecordBatch:
    """The rows of some types; mostly all rows have one, which is cheaper to see."""
    import pyarrow as pa
    import pyarrow.compute as pc

    types = batch.column("eventType")
    only = constant_of(types)
    if only is not None:
        return batch if only[0] in kinds else batch.slice(0, 0)
    return _chosen(batch, pc.is_in(types, pa.array(kinds)))


def _chosen(batch: pa.RecordBatch, which: pa.Array) -> pa.RecordBatch:
    """Some rows; all of them cost nothing."""
    return batch if which.true_count == batch.num_rows else batch.filter(which)


def _filtered(columns: dict[str, pa.Array], which: pa.Array | None) -> dict[str, pa.Array]:
    return columns if which is None else {name: column.filter(which) for name, column in columns.items()}


def _taken_apart(given: pa.Array) -> _Told:
    """Names without what is appended, sequence numbers, whether anything is appended, and sizes."""
    import pyarrow as pa
    import pyarrow.compute as pc

    given = pa.concat_arrays([given]) if given.offset else given
    valid, offsets, text = given.buffers()
    places = memoryview(offsets).cast("b").cast("i")[: len(given) + 1]
    letters = memoryview(text if text is not None else b"").cast("B")
    name, names, numbers, sizes, told = _native.told_texts(places, letters, _NUMBERS, (_SIZES,))
    whole = [_column(pa.int64(), *one) for one in numbers]
    mask = pc.is_valid(given) if valid is not None and given.null_count else None
    codes = _column(pa.int32(), name, None)
    if mask is not None:
        codes = pc.if_else(mask, codes, None)
    # Native code numbered them: their numbers need no check.
    named = pa.DictionaryArray.from_arrays(codes, texts(*names), safe=False)
    shaped = pa.DictionaryArray.from_arrays(_column(pa.int32(), *sizes[0]), texts(*told), safe=False)
    return named, whole[0], pc.or_(*(pc.is_valid(one) for one in whole)), shaped


def _column(kind: pa.DataType, values: memoryview, valid: memoryview | None) -> pa.Array:
    import pyarrow as pa

    buffers = [None if valid is None else pa.py_buffer(valid), pa.py_buffer(values)]
    return pa.Array.from_buffers(kind, len(values), buffers)


def _sizes(text: str | None) -> str | None:
    """Shapes of the inputs under Kineto's key, if they are lists."""
    if not text:
        return None
    try:
        read = json.loads(text[:20_000])
    except (ValueError, RecursionError):
        return None
    return json.dumps({"Input Dims": read}) if isinstance(read, list) else None
