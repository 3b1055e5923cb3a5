"""Writes small SQLite files for `make fuzz-sqlite`: several sizes of pages, long texts, deep trees."""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path


def write(path: Path, *, page_size: int, rows: int) -> None:
    """A file with a table of numbers and texts, one with a number of its own for rows, and an index."""
    path.unlink(missing_ok=True)
    opened = sqlite3.connect(path)
    opened.execute(f"PRAGMA page_size = {page_size}")
    opened.execute("CREATE TABLE kernels (start INTEGER, end INTEGER, share REAL, name TEXT, left TEXT)")
    opened.execute("CREATE TABLE names (id INTEGER PRIMARY KEY, value TEXT)")
    opened.execute("CREATE INDEX by_start ON kernels (start)")
    for i in range(rows):
        text = "gemm é" * (i % 7) + "x" * (3_000 if i % 50 == 9 else i % 30)
        left = b"\xff\x00" if i % 11 == 0 else i
        given = (i * 1_000 ** (i % 6), None if i % 5 == 0 else -i, i / 3, text, left)
        opened.execute("INSERT INTO kernels VALUES (?, ?, ?, ?, ?)", given)
        opened.execute("INSERT INTO names VALUES (?, ?)", (3 * i + 1, text[:40]))
    opened.commit()
    opened.close()


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for size, count in ((512, 400), (1024, 30), (4096, 300), (65536, 60)):
        write(folder / f"pages_of_{size}.sqlite", page_size=size, rows=count)
