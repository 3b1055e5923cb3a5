"""Draws small exports of Nsight Systems: SQLite files with the tables and columns that a test names."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

__all__ = ["PID", "drawn", "export", "tid"]

PID = 1 << 48 | 300 << 24
EPOCH = 1_700_000_000_000_000_000

Rows = list[dict[str, Any]]


def tid(thread: int, pid: int = PID) -> int:
    """A thread of a process, as the export numbers it."""
    return pid | thread


def export(path: Path, **tables: Rows) -> Path:
    """Writes tables; the columns of each are the keys of its rows."""
    opened = sqlite3.connect(path)
    for name, rows in tables.items():
        columns = list(dict.fromkeys(key for row in rows for key in row))
        kinds = ", ".join(
            f'"{one}" {"TEXT" if one in ("text", "value", "name") else "INTEGER"}' for one in columns
        )
        opened.execute(f'CREATE TABLE "{name}" ({kinds})')
        values = [[row.get(one) for one in columns] for row in rows]
        opened.executemany(f'INSERT INTO "{name}" VALUES ({", ".join("?" * len(columns))})', values)
    opened.commit()
    opened.close()
    return path


def drawn(pid: int = PID, device: int = 0, steps: int = 4) -> dict[str, Rows]:
    """A program of some steps: each has a range, two launches with their kernels, and a copy."""
    strings = [
        "gemm(float*)",
        "relu(float*)",
        "cudaLaunchKernel_v7000",
        "cudaMemcpyAsync_v3020",
        "cuLaunchKernelEx",
    ]
    calls, kernels, copies, ranges = [], [], [], []
    for step in range(steps):
        at, number = step * 100_000, step * 10
        ranges.append(
            {"start": at, "end": at + 90_000, "eventType": 59, "text": "step", "globalTid": tid(7, pid)}
        )
        for place, name in enumerate((2, 4, 3)):
            begin = at + 10_000 * (place + 1)
            call = {"start": begin, "end": begin + 5_000, "globalTid": tid(7, pid), "nameId": name}
            calls.append(call | {"correlationId": number + place})
            work = {
                "start": begin + 6_000,
                "end": begin + 9_000,
                "deviceId": device,
                "contextId": 1,
                "streamId": 7,
            }
            work |= {"correlationId": number + place, "globalPid": pid}
            if name == 3:
                copies.append(work | {"bytes": 6_000, "copyKind": 1, "srcKind": 0, "dstKind": 2})
                continue
            shape = {"gridX": 264, "gridY": 1, "gridZ": 1, "blockX": 128, "blockY": 1, "blockZ": 1}
            shape |= {"registersPerThread": 40, "staticSharedMemory": 16, "dynamicSharedMemory": 1_024}
            kernels.append(work | shape | {"demangledName": place, "shortName": place})
    gpu = {
        "id": device,
        "cuDevice": device,
        "name": "NVIDIA H200",
        "totalMemory": 150_109_880_320,
        "smCount": 132,
    }
    gpu |= {"threadsPerWarp": 32, "maxWarpsPerSm": 64, "computeMajor": 9, "computeMinor": 0}
    return {
        "StringIds": [{"id": number, "value": text} for number, text in enumerate(strings)],
        "CUPTI_ACTIVITY_KIND_RUNTIME": calls,
        "CUPTI_ACTIVITY_KIND_KERNEL": kernels,
        "CUPTI_ACTIVITY_KIND_MEMCPY": copies,
        "NVTX_EVENTS": ranges,
        "TARGET_INFO_GPU": [gpu],
        "TARGET_INFO_SESSION_START_TIME": [{"utcEpochNs": EPOCH}],
    }
