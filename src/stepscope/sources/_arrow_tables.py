"""Tables as profilers store them, in SQLite or in Parquet files, and what is asked of their columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from stepscope import _native
from stepscope.sources._sqlite import ROWS
from stepscope.store.columns import view
from stepscope.store.meta import Damage
from stepscope.store.rows import of_distinct

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Lookup", "ParquetFolder", "ProfileTables", "Texts", "Times", "shifted"]

_FAR = 1 << 60
_KEPT_TEXTS = 1 << 10


class ProfileTables(Protocol):
    """Tables by name; those that are missing have no rows, and columns that are missing are NULL."""

    @property
    def damage(self) -> tuple[Damage, ...]:
        """What could not be read."""

    def has(self, table: str, *columns: str) -> bool:
        """Whether there is such a table, with these columns."""

    def batches(self, table: str, wanted: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
        """Its rows, in batches."""

    def rows(self, table: str, wanted: Mapping[str, str], most: int = 100_000) -> list[dict[str, Any]]:
        """The first rows of a small table."""

    def close(self) -> None:
        """Lets go of the files."""


class ParquetFolder:
    """Tables that are files of their names in one folder."""

    def __init__(self, folder: Path, listing: tuple[str, ...]) -> None:
        self._files = {name[:-8].lower(): folder / name for name in listing if name.endswith(".parquet")}
        self._lost: dict[str, str] = {}

    @property
    def damage(self) -> tuple[Damage, ...]:
        """Tables that could not be read, or not to the end."""
        return tuple(
            Damage(f"the table {table} could not be read: {why}") for table, why in self._lost.items()
        )

    def has(self, table: str, *columns: str) -> bool:
        """Whether there is such a table, with these columns."""
        if table.lower() not in self._files:
            return False
        there = {name.lower() for name in self._names(table)}
        return all(column.lower() in there for column in columns)

    def _names(self, table: str) -> list[str]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            return list(pq.read_schema(self._files[table.lower()]).names)
        except (OSError, pa.ArrowException) as error:
            self._lost[table] = str(error).splitlines()[0][:200]
            return []

    def batches(self, table: str, wanted: Mapping[str, str]) -> Iterator[pa.RecordBatch]:
        """The rows of a table in batches; a column of another type than asked for is NULL."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        if table.lower() not in self._files:
            return
        there = {name.lower(): name for name in self._names(table)}
        columns = [there[name.lower()] for name in wanted if name.lower() in there]
        try:
            file = pq.ParquetFile(self._files[table.lower()])
            for batch in file.iter_batches(ROWS, columns=columns):
                given = {name.lower(): batch.column(name) for name in batch.schema.names}
                arrays = [
                    _as_kind(given.get(name.lower()), kind, batch.num_rows) for name, kind in wanted.items()
                ]
                yield pa.RecordBatch.from_arrays(arrays, list(wanted))
        except (OSError, pa.ArrowException) as error:
            self._lost[table] = str(error).splitlines()[0][:200]

    def rows(self, table: str, wanted: Mapping[str, str], most: int = 100_000) -> list[dict[str, Any]]:
        """The first rows of a small table."""
        kept: list[dict[str, Any]] = []
        for batch in self.batches(table, wanted):
            kept += batch.slice(0, most - len(kept)).to_pylist()
            if len(kept) >= most:
                break
        return kept

    def close(self) -> None:
        """Nothing stays open."""


def _as_kind(array: pa.Array | None, kind: str, rows: int) -> pa.Array:
    """A column as it was asked for; a name that stands where its number would is kept as a text."""
    import pyarrow as pa

    wanted = {"int64": pa.int64(), "double": pa.float64(), "string": pa.string()}[kind]
    if array is None:
        return pa.nulls(rows, wanted)
    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    try:
        if pa.types.is_integer(array.type) and kind == "int64":
            return array.cast(wanted, safe=False)  # numbers of 64 bits without a sign, too
        if pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
            return array.cast(pa.string())
        return array.cast(wanted, safe=False)
    except pa.ArrowException:
        return pa.nulls(rows, wanted)


class Texts:
    """Texts by number: names are stored once and pointed to."""

    def __init__(self, tables: ProfileTables, table: str, number: str = "id", text: str = "value") -> None:
        import pyarrow as pa

        self._places: dict[int, int] = {}
        found: list[pa.Array] = []
        for batch in tables.batches(table, {number: "int64", text: "string"}):
            before = sum(len(one) for one in found)
            numbers = batch.column(0).to_pylist()
            self._places.update(zip(numbers, range(before, before + len(numbers)), strict=True))
            found.append(batch.column(1))
        self._texts = pa.chunked_array(found, pa.string())
        self.one = lru_cache(maxsize=_KEPT_TEXTS)(self._one)  # batches have the same ones again
        """The text of that number."""

    def _one(self, number: int | None) -> str | None:
        place = None if number is None else self._places.get(number)
        return None if place is None else self._texts[place].as_py()

    def first_of(self, columns: list[pa.Array], otherwise: str) -> pa.Array:
        """The text of the first number in each row that has one."""
        import pyarrow as pa

        def text(*values: int | str | None) -> str:
            found = (value if isinstance(value, str) else self.one(value) for value in values)
            return next((one for one in found if one), otherwise)

        return of_distinct(columns, text, pa.string())

    def of(
        self, numbers: pa.Array, change: Callable[[str | None], str | None] = lambda text: text
    ) -> pa.Array:
        """The text of each number, after a change; what already is a text stays one."""
        import pyarrow as pa

        if pa.types.is_string(numbers.type):
            return of_distinct([numbers], change, pa.string())
        return of_distinct([numbers], lambda number: change(self.one(number)), pa.string())


class Lookup:
    """Values by number, of a table that is kept whole: the columns `wanted` by the column `number`."""

    def __init__(self, tables: ProfileTables, table: str, number: str, wanted: tuple[str, ...]) -> None:
        import pyarrow as pa

        kinds = dict.fromkeys((number, *wanted), "int64")
        schema = pa.schema([(name, pa.int64()) for name in kinds])
        found = pa.Table.from_batches(tables.batches(table, kinds), schema).combine_chunks()
        columns = {name: _whole(found.column(name)) for name in kinds}
        self._numbers, self._values = columns[number], columns
        count = len(self._numbers)
        first, last = (self._numbers[0].as_py(), self._numbers[-1].as_py()) if count else (None, None)
        # Numbers one after the other, as tables have them that were written in one go, need no search.
        self._first = first if first is not None and last == first + count - 1 else None

    def of(self, column: str, numbers: pa.Array) -> pa.Array:
        """The value of each number, NULL where there is none."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if not len(self._numbers):
            return pa.nulls(len(numbers), pa.int64())
        if self._first is None:
            places = pc.index_in(numbers, self._numbers)
        else:
            places = pc.subtract(numbers, self._first)
            inside = pc.and_(pc.greater_equal(places, 0), pc.less(places, len(self._numbers)))
            places = pc.if_else(inside, places, None)
        return self._values[column].take(places)


def _whole(column: pa.ChunkedArray) -> pa.Array:
    import pyarrow as pa

    joined = column.combine_chunks()
    return joined if isinstance(joined, pa.Array) else pa.concat_arrays(joined.chunks)


class Times:
    """Checks starts and ends; rows whose times cannot be are left out and counted."""

    def __init__(self) -> None:
        self._odd: dict[str, int] = {}

    def of(self, table: str, batch: pa.RecordBatch, *, open_ended: bool = False) -> pa.RecordBatch:
        """The rows with `start` and `dur` in place of `start` and `end`."""
        import pyarrow as pa
        import pyarrow.compute as pc

        start, end = batch.column("start"), batch.column("end")
        all_fit = _durations(start, end)  # the usual case, in one pass
        # Wraps where numbers are absurd; those are left out below.
        dur = pc.subtract(end, start) if all_fit is None else all_fit
        columns = {name: batch.column(name) for name in batch.schema.names if name != "end"} | {"dur": dur}
        kept = pa.RecordBatch.from_arrays(list(columns.values()), list(columns))
        if all_fit is not None:
            return kept
        fits = pc.and_kleene(pc.less(start, _FAR), pc.greater(start, -_FAR))
        ended = pc.and_kleene(pc.less(end, _FAR), pc.greater_equal(end, start))
        if open_ended:
            ended = pc.or_kleene(ended, pc.is_null(end))
        fits = pc.and_kleene(fits, ended).fill_null(False)
        odd = batch.num_rows - (pc.sum(fits).as_py() or 0)
        if odd:
            self._odd[table] = self._odd.get(table, 0) + odd
            kept = kept.filter(fits)
        return kept

    @property
    def damage(self) -> tuple[Damage, ...]:
        """How many rows were left out."""
        return tuple(
            Damage(f"a row of {table} whose times cannot be, not kept", count)
            for table, count in self._odd.items()
        )


def _durations(start: pa.Array, end: pa.Array) -> pa.Array | None:
    """How long each row took, if all times are there and can be."""
    import pyarrow as pa

    if start.null_count or end.null_count or not (start.type == end.type == pa.int64()):
        return None
    found = _native.durations_of(view(start), view(end), _FAR)
    return (
        None if found is None else pa.Array.from_buffers(pa.int64(), len(found), [None, pa.py_buffer(found)])
    )


def shifted(numbers: pa.Array, by: int, mask: int = (1 << 63) - 1) -> pa.Array:
    """Some bits of whole numbers, as a number."""
    import pyarrow as pa
    import pyarrow.compute as pc

    right = pc.shift_right(numbers, pa.scalar(by, pa.int64()))
    return pc.bit_wise_and(right, pa.scalar(mask, pa.int64()))
