"""Typed results: rows of a frozen dataclass over Arrow columns, every column documented."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from importlib import import_module
from types import ModuleType, NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from stepscope.errors import StepscopeError
from stepscope.records import dataclass
from stepscope.showing import InNotebook

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Column", "LateTable", "Table", "columns_of"]

Row = TypeVar("Row")

ColumnType = Literal["int", "float", "str", "bool"]

_ARROW_TYPES = {"int": "int64", "float": "float64", "str": "string", "bool": "bool_"}
_TYPE_NAMES: dict[object, ColumnType] = {int: "int", float: "float", str: "str", bool: "bool"}


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table: what it is called, what it holds and what that means."""

    name: str
    type: ColumnType
    description: str
    nullable: bool = False


class _Kind(NamedTuple):
    """What a column holds."""

    name: str
    type: str
    nullable: bool


class Table(InNotebook, Generic[Row]):
    """Rows of one class, kept as Arrow columns; `notes` are lines to be stated beside them."""

    __slots__ = ("_arrow", "_notes", "_row")

    def __init__(self, row: type[Row], arrow: pa.Table, notes: Iterable[str] = ()) -> None:
        self._row = row
        self._arrow = _conform(row, arrow)
        self._notes = tuple(notes)

    @classmethod
    def of(cls, row: type[Row], rows: Iterable[Row], notes: Iterable[str] = ()) -> Table[Row]:
        """A table of the given rows."""
        import pyarrow as pa

        given = list(rows)
        arrays = []
        for column, kind in zip(_kinds_of(row), _schema(row).types, strict=True):
            values = [getattr(one, column.name) for one in given]
            # To look at few values costs less than to ask Arrow about them.
            absent = values.count(None)
            _check(
                row, column, absent, [value for value in values if value is not None] if absent else values
            )
            arrays.append(pa.array(values, kind))
        table = cls.__new__(cls)
        table._row, table._notes = row, tuple(notes)  # noqa: SLF001  # its own class
        table._arrow = pa.Table.from_arrays(arrays, schema=_schema(row))  # noqa: SLF001
        return table

    def with_notes(self, notes: Iterable[str]) -> Table[Row]:
        """The same table with other notes beside it."""
        other = copy(self)
        other._notes = tuple(notes)  # noqa: SLF001
        return other

    def one_line(self) -> Table[Row]:
        """The same table with the code of every line break in its texts, which come from anybody.

        For whoever writes texts of several lines with names in them: a name must not add a line.
        """
        import pyarrow.compute as pc

        arrow = self._arrow
        for place, column in enumerate(arrow.columns):
            # To look at the bytes costs less than to ask Arrow.
            if column.type == "string" and any(
                (text := chunk.buffers()[2]) and b"\n" in text.to_pybytes() for chunk in column.chunks
            ):
                broken = pc.replace_substring(column, "\n", "\\n")
                arrow = arrow.set_column(place, arrow.schema.field(place), broken)
        if arrow is self._arrow:
            return self
        other = copy(self)
        other._arrow = arrow  # noqa: SLF001
        return other

    @property
    def row(self) -> type[Row]:
        """The class of the rows."""
        return self._row

    @property
    def arrow(self) -> pa.Table:
        """The columns."""
        return self._arrow

    @property
    def notes(self) -> tuple[str, ...]:
        """What has to be said beside the table, line by line."""
        return self._notes

    @property
    def columns(self) -> list[Column]:
        """Name, type and meaning of every column."""
        return list(columns_of(self._row))

    def records(self) -> list[dict[str, Any]]:
        """The rows as dictionaries."""
        records: list[dict[str, Any]] = self._arrow.to_pylist()
        return records

    def to_pandas(self) -> Any:
        """The rows as a DataFrame of pandas: whole numbers stay whole, NULL is `<NA>`."""
        return self.arrow.to_pandas(types_mapper=_installed("pandas").ArrowDtype)

    def to_polars(self) -> Any:
        """The rows as a DataFrame of Polars."""
        return _installed("polars").from_arrow(self.arrow)

    def __len__(self) -> int:
        return int(self._arrow.num_rows)

    def __iter__(self) -> Iterator[Row]:
        for batch in self._arrow.to_batches():
            for values in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                yield self._row(*values)

    def __repr__(self) -> str:
        return f"Table[{self._row.__name__}]({len(self)} rows)"


class LateTable(Table[Row]):
    """A table that is worked out once somebody looks into it; what fails then, fails every time."""

    __slots__ = ("_make",)

    def __init__(self, make: Callable[[], Table[Row]]) -> None:
        self._make = make

    def __getattr__(self, name: str) -> Any:
        if name not in Table.__slots__:
            raise AttributeError(name)
        found = self._make()
        self._row, self._arrow, self._notes = found._row, found._arrow, found._notes  # noqa: SLF001
        return getattr(self, name)


_known: dict[type, tuple[Column, ...]] = {}
_kinds: dict[type, tuple[_Kind, ...]] = {}
_schemas: dict[type, pa.Schema] = {}
_PLAIN = re.compile(r"""Annotated\[\s*(int|float|str|bool)(\s*\|\s*None)?\s*,\s*['"]""")


def _kinds_of(row: type) -> tuple[_Kind, ...]:
    """The columns without what they mean: to evaluate annotations takes longer than to fill a small table."""
    if row not in _kinds:
        said = [(one.name, _PLAIN.match(str(one.type))) for one in dataclasses.fields(row)]
        plain = [_Kind(name, found[1], bool(found[2])) for name, found in said if found]
        if len(plain) < len(said):
            plain = [_Kind(one.name, one.type, one.nullable) for one in columns_of(row)]
        _kinds[row] = tuple(plain)
    return _kinds[row]


def _installed(name: str) -> ModuleType:
    """A library that stepscope does not need otherwise."""
    try:
        return import_module(name)
    except ImportError as error:
        raise StepscopeError(f"{name} is not installed", hint=f"pip install {name}") from error


def columns_of(row: type) -> tuple[Column, ...]:
    """The columns that a row class declares: `name: Annotated[int | None, "what it means"]`."""
    if row not in _known:
        hints = get_type_hints(row, include_extras=True)
        _known[row] = tuple(_column(row, one.name, hints[one.name]) for one in dataclasses.fields(row))
    return _known[row]


def _column(row: type, name: str, hint: object) -> Column:
    where = f"{row.__name__}.{name}"
    if get_origin(hint) is not Annotated:
        raise TypeError(f'{where}: write Annotated[type, "what the column means"]')
    annotated, *extras = get_args(hint)
    descriptions = [extra for extra in extras if isinstance(extra, str)]
    if not descriptions:
        raise TypeError(f"{where}: has no description")
    options = get_args(annotated) if get_origin(annotated) in (Union, UnionType) else (annotated,)
    types = [_TYPE_NAMES.get(option) for option in options if option is not NoneType]
    if len(types) != 1 or types[0] is None:
        raise TypeError(f"{where}: a column is int, float, str or bool, or one of these or None")
    return Column(name, types[0], descriptions[0], nullable=NoneType in options)


def _arrow_type(column: _Kind) -> pa.DataType:
    import pyarrow as pa

    return getattr(pa, _ARROW_TYPES[column.type])()


def _conform(row: type, arrow: pa.Table) -> pa.Table:
    """The same columns with the types the row class declares; what would bend a value is an error."""
    import pyarrow as pa

    columns = _kinds_of(row)
    wanted = [column.name for column in columns]
    if arrow.column_names != wanted:
        raise TypeError(f"{row.__name__} has the columns {wanted}, the table has {arrow.column_names}")
    arrays = []
    for column, kind in zip(columns, _schema(row).types, strict=True):
        array = arrow.column(column.name)
        try:
            array = array if array.type == kind else array.cast(kind)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise TypeError(f"{row.__name__}.{column.name}: {error}") from error
        floats = array.drop_null().to_pylist() if column.type == "float" else ()
        _check(row, column, array.null_count, floats)
        arrays.append(array)
    return pa.Table.from_arrays(arrays, schema=_schema(row))


def _check(row: type, column: _Kind, absent: int, values: Iterable[Any]) -> None:
    if absent and not column.nullable:
        raise ValueError(f"{row.__name__}.{column.name}: {absent} values are absent")
    # Not-a-number and infinity are no results: a share of nothing is absent.
    if column.type == "float" and not all(map(math.isfinite, values)):
        raise ValueError(f"{row.__name__}.{column.name}: a value is not finite")


def _schema(row: type) -> pa.Schema:
    import pyarrow as pa

    if row not in _schemas:
        _schemas[row] = pa.schema(
            [pa.field(column.name, _arrow_type(column), column.nullable) for column in _kinds_of(row)]
        )
    return _schemas[row]
