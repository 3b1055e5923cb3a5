"""The native reader of SQLite files: what sqlite3 wrote is read back, and no mutation makes it crash."""

from __future__ import annotations

import random
import sqlite3
import struct
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.trying import tries

from stepscope.sources._sqlite import Database

KINDS = {"a": "int64", "b": "double", "c": "string", "id": "int64"}


def written(path: Path, rows: list[tuple[Any, ...]], page_size: int = 4096, *more: str) -> Path:
    with sqlite3.connect(path) as opened:
        opened.execute(f"PRAGMA page_size = {page_size}")
        opened.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a INTEGER, b REAL, c TEXT, d BLOB)")
        opened.executemany("INSERT INTO t (a, b, c, d) VALUES (?, ?, ?, ?)", rows)
        for sql in more:
            opened.execute(sql)
    opened.close()
    return path


def read(path: Path, table: str = "t", kinds: dict[str, str] = KINDS) -> list[tuple[Any, ...]]:
    with Database(path) as opened:
        return [tuple(row.values()) for batch in opened.batches(table, kinds) for row in batch.to_pylist()]


def asked(path: Path, sql: str = "SELECT a, b, c, id FROM t ORDER BY rowid") -> list[tuple[Any, ...]]:
    opened = sqlite3.connect(path)
    try:
        return opened.execute(sql).fetchall()
    finally:
        opened.close()


WHOLE = st.one_of(st.none(), st.integers(-(1 << 63), (1 << 63) - 1), st.integers(-3, 300))
REAL = st.one_of(st.none(), st.floats(allow_nan=False), st.integers(-100, 100).map(float))
TEXT = st.one_of(
    st.none(), st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40)
)
BLOB = st.one_of(st.none(), st.integers(0, 20_000).map(lambda size: b"\x5a" * size))


@settings(max_examples=tries(60), deadline=None)
@given(
    rows=st.lists(st.tuples(WHOLE, REAL, TEXT, BLOB), max_size=60),
    times=st.sampled_from([1, 1, 7, 120]),
    page_size=st.sampled_from([512, 1024, 4096, 65536]),
    vacuum=st.booleans(),
    deleted=st.booleans(),
)
def test_what_was_written_is_read(
    rows: list[tuple[Any, ...]], times: int, page_size: int, vacuum: bool, deleted: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = written(Path(folder) / "x.db", rows * times, page_size)
        opened = sqlite3.connect(path)
        if deleted:
            opened.execute("DELETE FROM t WHERE id % 3 = 0")
            opened.execute("INSERT INTO t (a, c) VALUES (5, 'after')")
        opened.commit()
        if vacuum:
            opened.execute("VACUUM")
        opened.close()
        assert read(path) == asked(path)


@pytest.mark.parametrize("page_size", [512, 4096, 65536])
def test_long_texts_and_blobs_before_them(tmp_path: Path, page_size: int) -> None:
    rows = [
        (number, number / 2, "é" * (number * 37 % 9_000), b"x" * (number * 911 % 70_000))
        for number in range(300)
    ]
    path = written(tmp_path / "x.db", rows, page_size)
    assert read(path) == asked(path)


def test_any_type_may_stand_in_any_column(tmp_path: Path) -> None:
    path = written(
        tmp_path / "x.db", [("word", "word", 5, None), (1.5, 2, 2.5, None), (b"\xff", None, b"\xffab", None)]
    )
    with Database(path) as opened:
        rows = [tuple(row.values()) for batch in opened.batches("t", KINDS) for row in batch.to_pylist()]
        assert rows == [(None, None, "5", 1), (None, 2.0, "2.5", 2), (None, None, "\ufffdab", 3)]
        assert [(one.reason, one.count) for one in opened.damage] == [
            ("a value in t that is not of its column's type, taken as missing", 4)
        ]


def test_a_byte_that_is_no_text_stands_out_wherever_it_is(tmp_path: Path) -> None:
    """Texts are copied by eight bytes, the last of which overlap."""
    letters = "abcdéfghijklmnopqrstuvwx".encode()
    texts = [
        letters[:place] + b"\xff" + letters[place:length]
        for length in range(25)
        if length != 5  # in the middle of a letter
        for place in range(length + 1)
        if place != 5
    ]
    path = written(tmp_path / "x.db", [(1, 1.0, text, None) for text in [b"", *texts]])
    assert [row[2] for row in read(path)] == ["", *(text.decode("utf-8", "replace") for text in texts)]


def test_texts_that_are_too_long_are_cut(tmp_path: Path) -> None:
    path = written(tmp_path / "x.db", [(1, 1.0, "x" * 100_000, None), (2, 2.0, "y", b"z" * (5 << 20))])
    with Database(path) as opened:
        first, second = [row for batch in opened.batches("t", KINDS) for row in batch.to_pylist()]
        assert (len(first["c"]), second["c"]) == (65_536, "y")
        assert [one.reason for one in opened.damage] == ["a text in t that is too long, cut"]


@pytest.mark.parametrize(
    "columns",
    [
        '"a" INTEGER, [b c] REAL, `d` TEXT, "e""f" INT',
        "a INTEGER NOT NULL DEFAULT (1 + 2), b NUMERIC(9), c TEXT CHECK (c IN ('x', ')')), PRIMARY KEY (a)",
        "a INTEGER, -- , not, these\n b /* nor (this) */ TEXT, UNIQUE (b), FOREIGN KEY (a) REFERENCES t (b)",
        "a INTEGER PRIMARY KEY DESC, b TEXT",
        "a INT PRIMARY KEY, b TEXT COLLATE NOCASE",
        "a INTEGER, b INTEGER GENERATED ALWAYS AS (a + 1) VIRTUAL, c INTEGER AS (a * 2) STORED, d TEXT",
        "'a' INTEGER PRIMARY KEY AUTOINCREMENT, b",
    ],
)
def test_columns_are_where_sqlite_says(tmp_path: Path, columns: str) -> None:
    path = tmp_path / "x.db"
    opened = sqlite3.connect(path)
    opened.execute(f"CREATE TABLE t ({columns})")
    told = opened.execute("PRAGMA table_xinfo(t)").fetchall()
    given_ = [name for _, name, _, _, _, _, hidden in told if not hidden]
    quoted = ", ".join('"' + name.replace('"', '""') + '"' for name in given_)
    opened.execute(
        f"INSERT INTO t ({quoted}) VALUES ({', '.join('?' * len(given_))})", ["7"] + ["x"] * (len(given_) - 1)
    )
    opened.commit()
    stored = [name for _, name, _, _, _, _, hidden in told if hidden != 2]
    expected = opened.execute(
        "SELECT " + ", ".join('"' + one.replace('"', '""') + '"' for one in stored) + " FROM t"
    )
    texts = [tuple(None if value is None else str(value) for value in row) for row in expected]
    opened.close()
    assert read(path, "T", dict.fromkeys(stored, "string")) == texts


def test_other_encodings_and_logs_are_read_by_sqlite(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    opened = sqlite3.connect(path)
    opened.execute("PRAGMA encoding = 'UTF-16le'")
    opened.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a INTEGER, b REAL, c TEXT)")
    opened.execute("INSERT INTO t (a, b, c) VALUES (1, 2.5, 'größe'), ('word', 1, NULL)")
    opened.commit()
    opened.close()
    assert read(path) == [(1, 2.5, "größe", 1), (None, 1.0, None, 2)]
    path = tmp_path / "log.db"
    opened = sqlite3.connect(path)
    opened.execute("PRAGMA journal_mode = WAL")
    opened.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a INTEGER, b REAL, c TEXT)")
    opened.execute("INSERT INTO t (a) VALUES (7)")
    opened.commit()
    assert read(path) == [(7, None, None, 1)]  # all of it still lies in the log
    opened.close()
    assert read(path) == [(7, None, None, 1)]


def test_tables_without_row_numbers(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    with sqlite3.connect(path) as opened:
        opened.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a INTEGER, b REAL, c TEXT) WITHOUT ROWID")
        opened.execute("INSERT INTO t VALUES (3, 1, 2.5, 'x')")
    opened.close()
    assert read(path) == [(1, 2.5, "x", 3)]


def test_a_view_is_no_table(tmp_path: Path) -> None:
    path = written(tmp_path / "x.db", [(1, 1.0, "x", None)], 4096, "CREATE VIEW v AS SELECT * FROM t")
    with Database(path) as opened:
        assert list(opened.tables) == ["t"]
        assert not list(opened.batches("v", {"a": "int64"}))


def test_a_cut_file_is_read_up_to_the_cut(tmp_path: Path) -> None:
    path = written(tmp_path / "x.db", [(number, 1.0, "some text", None) for number in range(50_000)])
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    with Database(path) as opened:
        found = [row["a"] for batch in opened.batches("t", KINDS) for row in batch.to_pylist()]
        assert found == sorted(found)
        assert 20_000 < len(found) < 26_000
        assert "beyond the end" in opened.damage[0].reason


def test_circles_end(tmp_path: Path) -> None:
    """An inner page whose children are itself and its parents."""
    path = written(tmp_path / "x.db", [(number, 1.0, "x" * 50, None) for number in range(20_000)], 512)
    raw = bytearray(path.read_bytes())
    with Database(path) as opened:
        root = opened.tables["t"].root
    for page in range(1, len(raw) // 512):
        if raw[page * 512] == 5:
            raw[page * 512 + 8 : page * 512 + 12] = struct.pack(">I", root)
    path.write_bytes(raw)
    with Database(path) as opened:
        assert sum(batch.num_rows for batch in opened.batches("t", KINDS)) < 20_000
        assert opened.damage


@settings(max_examples=tries(60, 1500), deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_mutated_files_never_crash(seed: int) -> None:
    dice = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        rows = [
            (dice.getrandbits(40), 1.5, "x" * dice.randrange(900), b"y" * dice.randrange(3000))
            for _ in range(80)
        ]
        path = written(Path(folder) / "x.db", rows, dice.choice([512, 4096]))
        raw = bytearray(path.read_bytes())
        for _ in range(dice.randrange(1, 60)):
            at = dice.randrange(len(raw)) if dice.random() < 0.7 else dice.randrange(200)
            raw[at] = dice.choice([0, 1, 0x7F, 0x80, 0xFF, dice.randrange(256)])
        if dice.random() < 0.2:
            del raw[dice.randrange(len(raw)) :]
        path.write_bytes(raw)
        with Database(path) as opened:
            for table in list(opened.tables):
                total = sum(batch.num_rows for batch in opened.batches(table, KINDS))
                assert total <= 100_000
