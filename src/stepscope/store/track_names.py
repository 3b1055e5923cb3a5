"""How people call the tracks of a trace: processes and threads of the host, devices and their streams.

The first picture waits for this, so it reads the few columns it needs, and opens no database.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from stepscope.records import dataclass
from stepscope.schema import NOT_HOST

if TYPE_CHECKING:
    import pyarrow as pa

    from stepscope.store.trace import Trace

__all__ = ["TrackName", "track_names"]

_CALLS = ("python_frames", "ops", "launches")
"""Where they are, the host works."""
_NAMING = ("process_name", "thread_name")


@dataclass(frozen=True, slots=True)
class TrackName:
    """What is known of a track before its events are looked at."""

    side: str
    group: str
    label: str


def track_names(trace: Trace) -> dict[int, TrackName]:
    """For each row of `threads` how it is called, and whether a device or the host works there."""
    trace.check_stored(("annotations", "other_events"))
    skeletons = trace.dictionary("skeletons")
    devices = _device_threads(trace, skeletons)
    told_names = _told_names(trace, skeletons)
    found = {}
    for row in trace.dictionary("threads").to_pylist():
        key, pid, tid = row["id"], row["pid"] or "", row["tid"] or ""
        process, told = _told_of(row, *told_names)
        if key in devices:
            group = f"GPU {pid}" if pid.isdigit() else process or pid
            label = f"stream {tid}" if tid.isdigit() else told or tid
            found[key] = TrackName("device", group, label)
        else:
            number = f"pid {pid}" if pid.isdigit() else pid
            group = f"{process} ({number})" if process else number
            found[key] = TrackName("host", group, told or (f"thread {tid}" if tid.isdigit() else tid))
    return found


def _told_of(
    row: dict[str, Any], processes: dict[str, str], threads: dict[tuple[str, str], list[str]]
) -> tuple[str, str]:
    """What the profile calls the process of a thread, and the thread.

    A thread may be named twice, as `thread 7 (pt_autograd_0)` and `thread 7 (python3)`: then the last name
    counts that tells more than its process and its number.
    """
    process = processes.get(row["pid_json"], "").strip()
    names = [name.strip() for name in threads.get((row["pid_json"], row["tid_json"]), ())]
    number = f"thread {row['tid']}".casefold()
    plain = ("", number, process.casefold(), f"{number} ({process.casefold()})")
    telling = [name for name in names if name.casefold() not in plain]
    return process, (telling or names or [""])[-1]


def _device_threads(trace: Trace, skeletons: pa.Table) -> set[int]:
    """Threads on which work of a device runs, or of which only a device tells something."""
    import pyarrow as pa
    import pyarrow.compute as pc

    of_devices = pc.is_in(skeletons["category"], pa.array(NOT_HOST, pa.string()))
    told: set[int] = set()
    for table in ("annotations", "other_events"):
        for rows in _with_skeleton(trace, table, skeletons["id"].filter(of_devices), ["thread"]):
            told.update(pc.unique(rows["thread"]).to_pylist())
    runs = trace.dictionary("runs")
    of_runs = dict.fromkeys(zip(runs["stored_in"].to_pylist(), runs["thread"].to_pylist(), strict=True))
    called = {thread for table, thread in of_runs if table in _CALLS}
    return (told - called) | {thread for table, thread in of_runs if table == "device_work"}


def _told_names(trace: Trace, skeletons: pa.Table) -> tuple[dict[str, str], dict[tuple[str, str], list[str]]]:
    """What the profile calls its processes, and its threads."""
    import pyarrow as pa
    import pyarrow.compute as pc

    told = skeletons.filter(pc.equal(skeletons["phase"], "M"))
    texts = dict(zip(told["id"].to_pylist(), told["text"].to_pylist(), strict=True))
    names = trace.dictionary("names")
    naming = names.filter(pc.is_in(names["text"], pa.array(_NAMING, pa.string())))
    what = dict(zip(naming["id"].to_pylist(), naming["text"].to_pylist(), strict=True))
    known = trace.dictionary("threads")
    columns = (known[name].to_pylist() for name in ("id", "pid_json", "tid_json"))
    threads = {key: (pid, tid) for key, pid, tid in zip(*columns, strict=True)}
    processes: dict[str, str] = {}
    of_threads: dict[tuple[str, str], list[str]] = {}
    for rows in _with_skeleton(trace, "other_events", told["id"], ["thread", "name"]):
        for row in rows.filter(pc.is_in(rows["name"], naming["id"].combine_chunks())).to_pylist():
            if (text := _name_in(texts[row["skeleton"]])) and row["thread"] in threads:
                pid, tid = threads[row["thread"]]
                if what[row["name"]] == "process_name":
                    processes[pid] = text
                else:
                    of_threads.setdefault((pid, tid), []).append(text)
    return processes, of_threads


def _with_skeleton(
    trace: Trace, table: str, wanted: pa.ChunkedArray, columns: list[str]
) -> Iterator[pa.RecordBatch]:
    """The rows of a table that have one of some skeletons."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    chosen = wanted.combine_chunks()
    with pq.ParquetFile(trace.folder / f"{table}.parquet") as file:
        for rows in file.iter_batches(columns=[*columns, "skeleton"]) if len(chosen) else ():
            yield rows.filter(pc.is_in(rows["skeleton"], chosen))


def _name_in(text: str) -> str:
    """The name that an event gives; empty where it gives none."""
    try:
        given = json.loads(text)["args"]["name"]
    except (ValueError, RecursionError, KeyError, TypeError):
        return ""
    return given if isinstance(given, str) else "" if given is None else json.dumps(given)
