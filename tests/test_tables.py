from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any

import pyarrow as pa
import pytest

from stepscope.errors import StepscopeError
from stepscope.tables import Column, LateTable, Table, columns_of


@dataclass(frozen=True, slots=True)
class Spell:
    name: Annotated[str, "what it is called"]
    calls: Annotated[int, "how often"]
    total_ns: Annotated[int | None, "how long"]
    busy_share: Annotated[float | None, "of the window"]
    linked: Annotated[bool, "whether it has a launch"]


ROWS = [Spell("a", 2, 10, 0.5, True), Spell("b", 1, None, None, False)]


def arrow(**replaced: pa.Array) -> pa.Table:
    columns = {
        "name": pa.array(["a", "b"]),
        "calls": pa.array([2, 1]),
        "total_ns": pa.array([10, None]),
        "busy_share": pa.array([0.5, None]),
        "linked": pa.array([True, False]),
    }
    return pa.table({**columns, **replaced})


def test_columns_are_those_of_the_row_class() -> None:
    assert columns_of(Spell) == (
        Column("name", "str", "what it is called"),
        Column("calls", "int", "how often"),
        Column("total_ns", "int", "how long", nullable=True),
        Column("busy_share", "float", "of the window", nullable=True),
        Column("linked", "bool", "whether it has a launch"),
    )


def test_yields_rows_records_and_notes() -> None:
    table = Table(Spell, arrow(), notes=["one was lost"])
    assert list(table) == ROWS
    assert len(table) == 2
    assert table.row is Spell
    assert table.notes == ("one was lost",)
    assert table.columns == list(columns_of(Spell))
    assert table.records()[1] == {
        "name": "b",
        "calls": 1,
        "total_ns": None,
        "busy_share": None,
        "linked": False,
    }
    assert repr(table) == "Table[Spell](2 rows)"


def test_is_made_of_rows_too() -> None:
    assert Table.of(Spell, ROWS).arrow.equals(Table(Spell, arrow()).arrow)
    assert list(Table.of(Spell, [])) == []


@pytest.mark.parametrize(
    "replaced",
    [
        {"calls": pa.array([Decimal(2), Decimal(1)], pa.decimal128(38, 0))},
        {"calls": pa.array([2.0, 1.0])},
        {"calls": pa.array([2, 1], pa.uint8())},
        {"name": pa.array(["a", "b"]).dictionary_encode()},
        {"name": pa.array(["a", "b"], pa.large_string())},
        {"name": pa.array(["a", "b"], pa.string_view())},
    ],
    ids=["sums", "whole floats", "small", "encoded", "large", "views"],
)
def test_casts_to_the_declared_types(replaced: dict[str, pa.Array]) -> None:
    assert list(Table(Spell, arrow(**replaced))) == ROWS


def test_refuses_other_columns() -> None:
    with pytest.raises(TypeError, match="has the columns"):
        Table(Spell, arrow().drop_columns(["calls"]))
    with pytest.raises(TypeError, match="has the columns"):
        Table(Spell, arrow().select(["calls", "name", "total_ns", "busy_share", "linked"]))


@pytest.mark.parametrize(
    "replaced,error,message",
    [
        ({"calls": pa.array([1.5, 2.0])}, TypeError, "Spell.calls"),
        ({"calls": pa.array(["one", "two"])}, TypeError, "Spell.calls"),
        ({"calls": pa.array([None, 1])}, ValueError, "Spell.calls: 1 values are absent"),
        ({"busy_share": pa.array([float("nan"), None])}, ValueError, "Spell.busy_share"),
        ({"busy_share": pa.array([float("inf"), 1.0])}, ValueError, "Spell.busy_share"),
    ],
    ids=["fraction", "text", "absent", "nan", "infinity"],
)
def test_refuses_values_that_it_would_bend(
    replaced: dict[str, pa.Array], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Table(Spell, arrow(**replaced))


@dataclass(frozen=True)
class Bare:
    n: int


@dataclass(frozen=True)
class Undescribed:
    n: Annotated[int, 7]


@dataclass(frozen=True)
class Listed:
    n: Annotated[list[int], "several"]


@dataclass(frozen=True)
class Either:
    n: Annotated[int | str, "this or that"]


@pytest.mark.parametrize("row", [Bare, Undescribed, Listed, Either])
def test_every_column_has_one_type_and_a_description(row: type) -> None:
    with pytest.raises(TypeError, match=rf"{row.__name__}\.n"):
        columns_of(row)


def test_names_on_one_line() -> None:
    broken = Table(Spell, arrow(name=pa.array(["a\nb", "c\n"])), notes=["note"])
    assert [row.name for row in broken.one_line()] == ["a\\nb", "c\\n"]
    assert broken.one_line().notes == ("note",)
    assert [row.name for row in broken] == ["a\nb", "c\n"], "the table itself says what the profile says"
    plain = Table.of(Spell, ROWS)
    assert plain.one_line() is plain


class TestDataFrames:
    """With the libraries themselves, which are there where torch is."""

    def test_pandas(self, torch: Any) -> None:
        frame = Table.of(Spell, ROWS).to_pandas()
        assert [str(kind) for kind in frame.dtypes][1:3] == ["int64[pyarrow]", "int64[pyarrow]"]
        assert frame["total_ns"][0] == 10
        assert frame["total_ns"].isna().tolist() == [False, True]

    def test_polars(self, torch: Any) -> None:
        assert Table.of(Spell, ROWS).to_polars().rows() == [dataclasses.astuple(row) for row in ROWS]

    def test_a_library_that_is_not_there(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "polars", None)
        with pytest.raises(StepscopeError, match="polars is not installed"):
            Table.of(Spell, ROWS).to_polars()


def test_a_late_table_is_worked_out_at_the_first_look_and_once() -> None:
    made: list[Table[Spell]] = []

    def make() -> Table[Spell]:
        made.append(Table.of(Spell, ROWS, ["a note"]))
        return made[-1]

    late: Table[Spell] = LateTable(make)
    assert not hasattr(late, "nonsense")
    assert not made
    assert len(late) == len(ROWS)
    assert (list(late), late.notes, late.row, late.arrow) == (ROWS, ("a note",), Spell, made[0].arrow)
    assert len(made) == 1
    assert list(late.with_notes(())) == ROWS


def test_what_fails_as_a_late_table_is_made_fails_at_every_look() -> None:
    def make() -> Table[Spell]:
        raise StepscopeError("no luck")

    late: Table[Spell] = LateTable(make)
    for _ in range(2):
        with pytest.raises(StepscopeError, match="no luck"):
            list(late)
