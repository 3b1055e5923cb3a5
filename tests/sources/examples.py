"""Small sources as other packages would have them, written by the recipe in CONTRIBUTING.md."""

from __future__ import annotations

import re
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyarrow import csv
from tests import packages

from stepscope.sources import Damage, Input, SourceMeta, source
from stepscope.store.writer import StoreWriter

ROOT = Path(__file__).parent.parent.parent
RECIPE = re.compile(r"\*\*Add a source\.\*\*.*?```text\n(.*?)```", re.DOTALL)


def install(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Has the sources below found, and the one that the recipe shows, as those of an installed package."""
    found = RECIPE.search((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    assert found
    monkeypatch.delitem(sys.modules, "recipe_package", raising=False)
    points = {"kernels_csv": "recipe_package:kernels_csv"}
    points |= {name: f"{__name__}:{name}" for name in ("memory_csv", "compile_logs", "spans_db")}
    packages.install(monkeypatch, folder, {"stepscope.sources": points})
    (folder / "recipe_package.py").write_text(found[1])


@source(sniff=lambda given: given.head.startswith(b"time_us,thread,address,bytes,allocated"))
def memory_csv(given: Input, writer: StoreWriter) -> SourceMeta:
    """Adds what an allocator did."""
    read = csv.read_csv(given.as_file())
    rows = {
        "name": pa.repeat("[memory]", read.num_rows),
        "process": pa.repeat(100, read.num_rows),
        "thread": read["thread"],
        "epoch_ns": pc.multiply(read["time_us"], 1000),
        "address": read["address"],
        "bytes": read["bytes"],
        "device_type": pa.repeat(1, read.num_rows),
        "device": pa.repeat(0, read.num_rows),
        "allocated_bytes": read["allocated"],
    }
    writer.add_rows("memory_events", pa.table(rows))
    return SourceMeta(counters={"blocks": len(pc.unique(read["address"]))})


@source(sniff=lambda given: any(name.startswith("compile-") for name in given.listing))
def compile_logs(given: Input, writer: StoreWriter) -> SourceMeta:
    """Reads the compilations that lie as files `compile-THREAD.log` in a folder."""
    assert given.path is not None
    damage = 0
    for file in sorted(given.path.glob("compile-*.log")):
        lines = [line.split() for line in file.read_text().splitlines()]
        good = [line for line in lines if len(line) == 3]
        damage += len(lines) - len(good)
        names, starts, lengths = zip(*good, strict=True) if good else ((), (), ())
        rows = pa.record_batch(
            {
                "name": pa.array(names, pa.string()),
                "process": pa.repeat("compiler", len(good)),
                "thread": pa.repeat(file.stem.partition("-")[2], len(good)),
                "start_ns": pa.array([int(start) for start in starts], pa.int64()),
                "dur_ns": pa.array([int(length) for length in lengths], pa.int32()),
            }
        )
        writer.add_rows("annotations", rows)
    told = (Damage("a line that is no compilation", damage),) if damage else ()
    return SourceMeta(damage=told, rank=3, rank_source="the folder")


@source(sniff=lambda given: given.head.startswith(b"SQLite format 3\0"))
def spans_db(given: Input, writer: StoreWriter) -> SourceMeta:
    """Reads launches and kernels from a database."""
    with closing(sqlite3.connect(f"{given.as_file().as_uri()}?mode=ro", uri=True)) as database:
        for table, place in (("launches", ("process", "thread")), ("device_work", ("device", "stream"))):
            found = database.execute(f"SELECT name, a, b, start_ns, dur_ns, correlation FROM {table}")
            columns = zip(*found, strict=True)
            names = ("name", *place, "start_ns", "dur_ns", "correlation")
            writer.add_rows(table, pa.table(dict(zip(names, map(list, columns), strict=True))))
    return SourceMeta(
        base_ns=1_000, metadata={"deviceProperties": [{"id": 0, "name": "A database's device"}]}
    )
