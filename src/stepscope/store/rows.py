"""Rows as a source gives them, names and threads as texts, made into rows as they are stored.

A source knows nothing of our numbers: it names the process, the thread, the category, and the writer numbers
them. What an event says beyond its columns it gives as JSON in `args`; with it and the names of the columns
the event's skeleton is built, so that such rows are read, shown and cut like those of a Kineto trace.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stepscope import _native
from stepscope.errors import StepscopeError
from stepscope.records import dataclass
from stepscope.schema import EVERY_EVENT, SIDE, STORED, StoredTable
from stepscope.store.columns import arrow_schema, bits_of, nulls, repeated, shorts, view

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "SHARED",
    "PlainRows",
    "Skeleton",
    "batches_of",
    "cast_column",
    "constant_of",
    "each_of_distinct",
    "of_distinct",
    "same",
    "shown",
    "stored_table",
    "wrong",
]

SHARED = ("annotations", "other_events")
"""Tables that several sources may fill; in others the same thing would be counted twice."""

BATCH = 1 << 16
_FAR = 1 << 62  # a time beyond this leaves no room for sums
_EARLIEST = -(1 << 63)  # how native code sees NULL
_TEXTS = ("name", "process", "thread", "category", "phase", "args")
_NUMBERED = ("event", "skeleton")

Runs = list[tuple[int, int, int, int]]
"""Stretches of one thread in a batch: thread, first row, rows, earliest start."""


def wrong(table: str, column: str, problem: str, hint: str = "") -> StepscopeError:
    """What is wrong with a column that a source gave."""
    given = "CONTRIBUTING.md says under “Add a source” which columns there are"
    return StepscopeError(f"rows for {table}: the column {column} {problem}", hint=hint or given)


def stored_table(name: str) -> StoredTable:
    """The stored table of that name."""
    known = (*STORED, *SIDE)
    for table in known:
        if table.name == name:
            return table
    raise StepscopeError(
        f"there is no stored table {name}", hint=f"there are: {', '.join(table.name for table in known)}"
    )


def batches_of(rows: pa.RecordBatch | pa.Table) -> list[pa.RecordBatch]:
    """Rows as record batches, at least one, so that columns are checked even where there is no row."""
    import pyarrow as pa

    if isinstance(rows, pa.RecordBatch):
        return [rows]
    return rows.to_batches() or [pa.RecordBatch.from_pylist([], schema=rows.schema)]


@dataclass(slots=True)
class Skeleton:
    """One row of `skeletons`, and what was counted for it."""

    number: int
    text: str
    phase: str
    category: str | None
    stored_in: str
    events: int = 0
    total_ns: int = 0


class PlainRows:
    """Numbers the texts of rows and hands them on in sorted batches, as the native reader would."""

    def __init__(self, keep: Callable[[StoredTable, pa.RecordBatch, Runs], None]) -> None:
        self.threads: list[tuple[str, str]] = []
        """Process and thread of every number, as JSON."""
        self.names: dict[str, int] = {}
        """Names that rows brought."""
        self.skeletons: dict[tuple[Any, ...], Skeleton] = {}
        """Skeletons that were built for rows."""
        self.since_1970 = False
        """Whether rows gave absolute times."""
        self.first_name = 0
        self.first_skeleton = 0
        self._known_threads: dict[tuple[str, str], int] = {}
        self._keep = keep
        self._waiting: defaultdict[str, list[pa.RecordBatch]] = defaultdict(list)

    def add_threads(self, threads: list[tuple[str, str]]) -> None:
        """Threads that a native reader numbered, from 0."""
        self.threads += threads
        for number, pair in enumerate(shown(threads)):
            self._known_threads.setdefault(pair, number)

    def add(self, table: StoredTable, rows: pa.RecordBatch, first_event: int, base_ns: int) -> None:
        """Checks and numbers rows; they are handed on when there are enough of them."""
        import pyarrow as pa
        import pyarrow.compute as pc

        given = _checked(table, rows)
        count = rows.num_rows
        start = given.get("start_ns")
        if start is None:
            self.since_1970 = True
            start = pc.subtract(given["epoch_ns"], base_ns)
        place = [given["process"], given["thread"]]
        found = {
            "event": _from_native(pa.int64(), _native.counted(first_event, count)),
            "thread": _numbers(place, self._thread),
            "name": _numbers([given["name"]], self._name),
            "start_ns": start,
            "dur_ns": given.get("dur_ns", nulls(count, pa.int64())),
            "skeleton": self._skeletons_of(table, given),
        }
        schema = arrow_schema(table.read_columns)
        arrays = [
            found[field.name] if field.name in found else given.get(field.name, nulls(count, field.type))
            for field in schema
        ]
        self._count(found["skeleton"], found["dur_ns"])
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        for at in range(0, count, BATCH):
            waiting = self._waiting[table.name]
            waiting.append(batch.slice(at, BATCH))
            if sum(one.num_rows for one in waiting) >= BATCH:
                self._hand_on(table)

    def flush(self) -> None:
        """Hands on what waits."""
        for table in STORED:
            if self._waiting[table.name]:
                self._hand_on(table)

    def _hand_on(self, table: StoredTable) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        batches = self._waiting.pop(table.name)
        rows = batches[0]
        if len(batches) > 1:  # putting together copies, also what is in one piece
            (rows,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
        order = _native.order_of(shorts(rows["thread"]), view(rows["start_ns"]), view(rows["dur_ns"]))
        if order is not None:
            rows = rows.take(_from_native(pa.int64(), order))
        threads, ends = [rows["thread"][0].as_py()], [rows.num_rows]
        if threads[0] != rows["thread"][-1].as_py():  # they are sorted by it
            stretches = pc.run_end_encode(rows["thread"])
            threads, ends = stretches.values.to_pylist(), stretches.run_ends.to_pylist()
        runs, first = [], 0
        for thread, end in zip(threads, ends, strict=True):
            start = rows["start_ns"][first].as_py()
            runs.append((thread, first, end - first, _EARLIEST if start is None else start))
            first = end
        self._keep(table, rows, runs)

    def _name(self, text: str | None) -> int | None:
        if text is None:
            return None
        return self.names.setdefault(text, self.first_name + len(self.names))

    def _thread(self, process: str, thread: str) -> int:
        number = self._known_threads.setdefault((process, thread), len(self.threads))
        if number == len(self.threads):
            self.threads.append((_scalar_json(process), _scalar_json(thread)))
        return number

    def _skeletons_of(self, table: StoredTable, given: dict[str, pa.Array]) -> pa.Array:
        """The number of each row's skeleton: it depends on category, phase and args, and on what is NULL."""
        import pyarrow.compute as pc

        filled = [name for name, array in given.items() if name not in _TEXTS[3:] and len(array)]
        filled = [name for name in filled if given[name].null_count < len(given[name])]
        partly = [name for name in filled if given[name].null_count]
        whole = frozenset(filled) - frozenset(partly)

        def number(category: str | None, phase: str, args: str | None, *there: bool) -> int:
            has = whole | {name for name, one in zip(partly, there, strict=True) if one} if partly else whole
            key = (table.name, category, phase, args, has)
            if key not in self.skeletons:
                text = _skeleton_text(table, category, phase, args, has)
                place = self.first_skeleton + len(self.skeletons)
                self.skeletons[key] = Skeleton(place, text, phase, category, table.name)
            return self.skeletons[key].number

        told = [given["category"], given["phase"], given["args"]]
        return _numbers([*told, *(pc.is_valid(given[name]) for name in partly)], number)

    def _count(self, skeletons: pa.Array, durations: pa.Array) -> None:
        known = list(self.skeletons.values())
        counts, sums = _native.sums_of(shorts(skeletons), view(durations), self.first_skeleton, len(known))
        for skeleton, count, total in zip(known, counts, sums, strict=True):
            skeleton.events += count
            skeleton.total_ns += total


def shown(threads: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Process and thread as people read them, of their JSON."""

    def plain(text: str) -> str:
        return str(json.loads(text)) if text else ""

    return [(plain(pid), plain(tid)) for pid, tid in threads]


def _scalar_json(text: str) -> str:
    """A number stays one, as profilers write it."""
    return text if re.fullmatch(r"0|-?[1-9]\d{0,17}", text) else json.dumps(text, ensure_ascii=False)


def of_distinct(columns: list[pa.Array], tell: Callable[..., Any], kind: pa.DataType) -> pa.Array:
    """What `tell` says of each row; it is asked once for every distinct one. Texts are given by number."""
    return each_of_distinct(columns, (tell, kind))[0]


def each_of_distinct(
    columns: list[pa.Array], *tellers: tuple[Callable[..., Any], pa.DataType]
) -> list[pa.Array]:
    """What several say of the same columns, which are looked at once."""
    import pyarrow as pa

    told, which = _told_apart(columns)
    checked = pa.types.is_dictionary(columns[0].type)  # numbers of ours need no check
    return [_spread([tell(*row) for row in told], which, kind, checked=checked) for tell, kind in tellers]


def _spread(found: list[Any], which: pa.Array, kind: pa.DataType, *, checked: bool) -> pa.Array:
    """For each row the value at its place."""
    import pyarrow as pa
    import pyarrow.compute as pc

    alike = bool(found) and found.count(found[0]) == len(found)
    if not pa.types.is_string(kind):
        if alike and isinstance(found[0], int) and not pa.types.is_floating(kind):
            return repeated(found[0], len(which), kind)
        return pc.take(pa.array(found, kind), which, boundscheck=checked)
    if alike:
        return same(found[0], len(which))
    texts = [text for text in dict.fromkeys(found) if text is not None]
    number = {text: place for place, text in enumerate(texts)}
    if len(texts) < len(found):
        which = pc.take(
            pa.array([number.get(text) for text in found], pa.int32()), which, boundscheck=checked
        )
    return pa.DictionaryArray.from_arrays(which, pa.array(texts, pa.string()), safe=False)


def same(text: str | None, rows: int) -> pa.Array:
    """One text for all rows."""
    import pyarrow as pa

    if text is None:
        return pa.DictionaryArray.from_arrays(nulls(rows, pa.int32()), pa.array([], pa.string()))
    return pa.DictionaryArray.from_arrays(repeated(0, rows, pa.int32()), pa.array([text]), safe=False)


def constant_of(column: pa.Array) -> tuple[Any] | None:
    """The value that all rows have, where that is cheaper to see than which values there are."""
    import pyarrow as pa

    if not len(column):
        return None
    if column.null_count == len(column):
        return (None,)
    if column.null_count:
        return None
    if pa.types.is_dictionary(column.type):
        return (column.dictionary[0].as_py(),) if len(column.dictionary) == 1 else None
    if column[0] != column[-1]:
        return None
    if pa.types.is_boolean(column.type):
        return (column[0].as_py(),) if column.true_count in (0, len(column)) else None
    if not pa.types.is_integer(column.type) or column.type.bit_width < 32:
        return None
    values, _, offset, bits = bits_of(column)
    return (column[0].as_py(),) if _native.all_alike(values, offset, len(column), bits) else None


def _told_apart(columns: list[pa.Array]) -> tuple[list[tuple[Any, ...]], pa.Array]:
    """The distinct rows of some columns, and for each row its place among them."""
    import pyarrow as pa

    alike = [constant_of(column) for column in columns]
    varied = [column for column, only in zip(columns, alike, strict=True) if only is None]
    if not varied:
        places = repeated(0, len(columns[0]), pa.int32())
        values: list[list[Any]] = []
    elif len(varied) == 1 and varied[0] is columns[0] and pa.types.is_dictionary(columns[0].type):
        texts, places = columns[0].dictionary.to_pylist(), columns[0].indices
        if places.null_count:
            texts, places = [*texts, None], places.fill_null(len(texts))
        values = [texts]
    else:
        numbers, first = _native.distinct([_bits(column) for column in varied], len(columns[0]))
        places, rows = _from_native(pa.int32(), numbers), _from_native(pa.int64(), first)
        values = [_taken(column, rows) for column in varied]
    varying = iter(values)
    count = len(values[0]) if values else 1
    told = [next(varying) if only is None else [only[0]] * count for only in alike]
    return list(zip(*told, strict=True)), places


def _from_native(kind: pa.DataType, numbers: memoryview) -> pa.Array:
    import pyarrow as pa

    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])


def _bits(column: pa.Array) -> tuple[Any, Any, int, int]:
    """A column as native code compares it; texts by their numbers."""
    import pyarrow as pa

    if not (pa.types.is_primitive(column.type) or pa.types.is_dictionary(column.type)):
        column = column.dictionary_encode()
    return bits_of(column.indices if pa.types.is_dictionary(column.type) else column)


def _taken(column: pa.Array, rows: pa.Array) -> list[Any]:
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        return list(column.dictionary.take(column.indices.take(rows)).to_pylist())
    return list(column.take(rows).to_pylist())


def _numbers(columns: list[pa.Array], number: Callable[..., int | None]) -> pa.Array:
    import pyarrow as pa

    return of_distinct(columns, number, pa.int32())


def _skeleton_text(
    table: StoredTable, category: str | None, phase: str, args: str | None, has: frozenset[str]
) -> str:
    """The event as JSON, null for each value that has a column."""
    event: dict[str, Any] = {"ph": phase}
    if category is not None:
        event["cat"] = category
    if "name" in has:
        event["name"] = None
    event |= {"pid": None, "tid": None}
    if has & {"start_ns", "epoch_ns"}:
        event["ts"] = None
    if "dur_ns" in has:
        event["dur"] = None
    event |= {column.key: None for column in table.columns if column.top and column.name in has}
    inside = {column.key: None for column in table.columns if not column.top and column.name in has}
    inside |= _arguments(table, args)
    return json.dumps(event | ({"args": inside} if inside else {}), ensure_ascii=False)


def _arguments(table: StoredTable, args: str | None) -> dict[str, Any]:
    """What the event says beyond its columns."""
    if args is None:
        return {}
    try:
        told = json.loads(args)
    except ValueError:
        told = None
    if not isinstance(told, dict):
        raise wrong(table.name, "args", f"is no JSON object: {args[:80]}")
    for column in table.columns:
        if not column.top and column.key in told:
            raise wrong(table.name, "args", f"has {column.key!r}", f"give it as the column {column.name}")
    return told


def _checked(table: StoredTable, rows: pa.RecordBatch) -> dict[str, pa.Array]:
    """The columns, each of its stored type, what may be left out filled in; an error says what is wrong."""
    given: dict[str, pa.Array] = {}
    for name, array in zip(rows.schema.names, rows.columns, strict=True):
        if name in given:
            raise wrong(table.name, name, "is there twice")
        given[name] = _cast(table, name, array)
    if "start_ns" in given and "epoch_ns" in given:
        raise wrong(table.name, "epoch_ns", "says what start_ns says", "give one of them")
    count = rows.num_rows
    if table.name == "device_work":
        given = _placed_on_device(given)
    category = table.categories[0] if table.categories else None
    given.setdefault("category", same(category, count))
    given.setdefault("args", same(None, count))
    if not table.phases:
        given.setdefault("phase", same(table.phase, count))
    for name in ("name", "process", "thread", "phase"):
        if name not in given:
            raise wrong(table.name, name, "is missing")
        if name != "name" and given[name].null_count:
            raise wrong(table.name, name, f"is NULL in {given[name].null_count:,} rows; it never is")
    _check_times(table, given)
    _check_kinds(table, given)
    return given


def _placed_on_device(given: dict[str, pa.Array]) -> dict[str, pa.Array]:
    """Device and stream in place of process and thread, as Kineto has it."""
    import pyarrow as pa

    names = {"process": "device", "thread": "stream"}
    placed = {to: given[of].cast(pa.string()) for to, of in names.items() if of in given and to not in given}
    return given | placed


def _cast(table: StoredTable, name: str, array: pa.Array) -> pa.Array:
    import pyarrow as pa

    types = {column.name: column.type for column in (*EVERY_EVENT, *table.columns)}
    types |= {"epoch_ns": "int64", **dict.fromkeys(_TEXTS, "string")}
    if name in _NUMBERED or name in [column.name for column in table.linked]:
        raise wrong(table.name, name, "is worked out by stepscope", "leave it out")
    if name not in types:
        known = ", ".join(one for one in types if one not in _NUMBERED)
        raise wrong(table.name, name, "does not exist", f"there are: {known}")
    numbered = name in _TEXTS and pa.types.is_dictionary(array.type)
    if numbered and pa.types.is_string(array.type.value_type) and not array.dictionary.null_count:
        return array  # its distinct texts are known already
    return cast_column(table.name, name, array, types[name])


def cast_column(table: str, name: str, array: pa.Array, kind: str) -> pa.Array:
    """A column of the type that is stored; an error says why it does not fit."""
    import pyarrow as pa

    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    whole = pa.types.is_integer(array.type)
    fits = {
        "int64": whole,
        "double": whole or pa.types.is_floating(array.type),
        "string": _is_text(array.type) or (whole and name in ("process", "thread")),
    }
    wanted = {"int64": pa.int64(), "double": pa.float64(), "string": pa.string()}[kind]
    if not fits[kind] and not pa.types.is_null(array.type):
        raise wrong(table, name, f"is of type {array.type}, not {kind}")
    try:
        return array.cast(wanted)
    except pa.ArrowInvalid as error:
        raise wrong(table, name, f"does not fit into {kind}: {error}") from error


def _is_text(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or str(kind) == "string_view")


def _check_times(table: StoredTable, given: dict[str, pa.Array]) -> None:
    import pyarrow.compute as pc

    times = [name for name in ("start_ns", "epoch_ns") if name in given]
    if not times:
        raise wrong(table.name, "start_ns", "is missing", "give start_ns, or epoch_ns for times since 1970")
    if table.categories and table.phase == "X" and "dur_ns" not in given:
        raise wrong(table.name, "dur_ns", "is missing")
    for name in [*times, "dur_ns"]:
        least = 0 if name == "dur_ns" else -_FAR
        column = given.get(name)
        if column is None or column.null_count == len(column):
            continue
        if not column.null_count and _native.all_within(view(column), least, _FAR):
            continue  # mostly, and cheaper to see
        first, last = pc.min_max(column).as_py().values()
        if first < least or last > _FAR:
            raise wrong(table.name, name, f"goes from {first:,} to {last:,}: that is no time")


def _values(column: pa.Array) -> list[Any]:
    """What is in a column, each value once."""
    import pyarrow.compute as pc

    return list(constant_of(column) or pc.unique(column).to_pylist())


def _check_kinds(table: StoredTable, given: dict[str, pa.Array]) -> None:
    """Category and phase decide which table an event is in: they have to be ones of this table."""
    phases = table.phases or ((table.phase,) if table.categories else ())
    for name, known in (("category", table.categories), ("phase", phases)):
        for value in _values(given[name]) if known else ():
            if value not in known:
                raise wrong(table.name, name, f"is {value!r}", f"it can be: {', '.join(known)}")
