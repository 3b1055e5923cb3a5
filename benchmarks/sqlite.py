"""Measure how fast an export of Nsight Systems is read, beside a Kineto trace of the same size.

python benchmarks/sqlite.py                      1 GB of each
python benchmarks/sqlite.py --size 200MB

Exit code 3 if the export is read at less than a third of the other's rate, in bytes a second, or with more
than 512 MiB.
"""

from __future__ import annotations

import argparse
import sqlite3
import sys
import tempfile
from pathlib import Path

import traces
from rates import compared, measured

_TID = (1 << 48) | (300 << 24) | 301
_KERNEL = """
start end deviceId contextId greenContextId streamId correlationId globalPid demangledName shortName
mangledName
launchType cacheConfig registersPerThread gridX gridY gridZ blockX blockY blockZ staticSharedMemory
dynamicSharedMemory localMemoryPerThread localMemoryTotal gridId sharedMemoryExecuted graphNodeId
sharedMemoryLimitConfig
"""
_RANGE = """
start end eventType rangeId category color text globalTid endGlobalTid textId domainId uint64Value int64Value
doubleValue uint32Value int32Value floatValue jsonTextId jsonText binaryData
"""
_KERNELS = f"""
i * 20000 + 9000, i * 20000 + 14000 + i % 3001, 0, 1, 0, 7, i, {_TID - 301}, 100 + i % 113, 300 + i % 113,
500 + i % 113, 1, 1, 40, 1 + i % 211, 1, 1, 128, 1, 1, 0, 1024, 0, 205258752, i, 32768, NULL, 0
"""
_RANGES = f"""
(i / 2) * 20000 + (i % 2) * 40, (i / 2) * 20000 + 9000 - (i % 2) * 1000, 59, NULL, NULL, NULL,
'aten::op_' || (i % 97) || ', op_id = ' || i, {_TID}, NULL, NULL, 0, {", ".join(["NULL"] * 9)}
"""
_CALL = "start end eventClass globalTid correlationId nameId returnValue callchainId"
_CALLS = f"i * 20000 + 100, i * 20000 + 4100 + i % 977, 0, {_TID}, i, i % 7, 0, NULL"
# Of each table: its columns, rows for each kernel, and their values by the number i, as exports of training
# programs with emit_nvtx have them.
_TABLES = {
    "CUPTI_ACTIVITY_KIND_RUNTIME": (_CALL, 1, _CALLS),
    "CUPTI_ACTIVITY_KIND_KERNEL": (_KERNEL, 1, _KERNELS),
    "NVTX_EVENTS": (_RANGE, 2, _RANGES),
}
_ROWS = """
WITH RECURSIVE n(i) AS (SELECT {first} UNION ALL SELECT i + 1 FROM n WHERE i + 1 < {last})
INSERT INTO {table} SELECT {values} FROM n
"""
_BYTES_OF_KERNEL = 270  # of all tables together
_AT_ONCE = 100_000


def draw(path: Path, size: int) -> int:
    """Writes an export of about that size and returns how many rows it has."""
    kernels = size // _BYTES_OF_KERNEL
    opened = sqlite3.connect(path)
    opened.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF")
    opened.execute("CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL)")
    opened.execute("CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER)")
    opened.execute("INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (1700000000000000000)")
    calls = [(number, f"cudaCall{number}_v7000") for number in range(50)]
    names = [(number, f"void at::native::kernel_{number}<{'x' * 60}>(float*)") for number in range(50, 700)]
    opened.executemany("INSERT INTO StringIds VALUES (?, ?)", calls + names)
    for table, (columns, _, _) in _TABLES.items():
        kinds = (f"{one} {'TEXT' if one.lower().endswith('text') else 'INTEGER'}" for one in columns.split())
        opened.execute(f"CREATE TABLE {table} ({', '.join(kinds)})")
    for first in range(0, kernels, _AT_ONCE):
        for table, (_, times, values) in _TABLES.items():
            last = min(first + _AT_ONCE, kernels) * times
            opened.execute(_ROWS.format(first=first * times, last=last, table=table, values=values))
    opened.commit()
    opened.close()
    return kernels * sum(times for _, times, _ in _TABLES.values())


def main() -> int:
    """Draws, reads, compares."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", type=traces.parse_size, default=1_000_000_000, help="of each file")
    parser.add_argument("--repeats", type=int, default=3)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=traces.cache_folder()) as folder:
        export = Path(folder) / "x.sqlite"
        rows = draw(export, chosen.size)
        plain = traces.cached(traces.Recipe(chosen.size, plain=True))
        events = sum(traces.summary_of(plain).events.values())
        profiles = {"Kineto JSON": (plain, events), "Nsight Systems SQLite": (export, rows)}
        return compared(measured(profiles, chosen.repeats))


if __name__ == "__main__":
    sys.exit(main())
