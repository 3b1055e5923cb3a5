"""ROCm's profilers: rocprofv3 (rocpd, CSV, JSON), rocprof before it (CSV, JSON, database) and RPD."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.errors import StepscopeError
from stepscope.sources import Damage, Input, SourceMeta, source
from stepscope.sources._reading import begins_a_trace
from stepscope.sources._rocm_first_json import is_first_json
from stepscope.sources.kineto import rank_of

if TYPE_CHECKING:
    from stepscope.sources._rocm_events import RocmEvents
    from stepscope.store.writer import StoreWriter

__all__ = ["rocprof"]

_JSON_HEAD = re.compile(rb'\s*\{\s*"rocprofiler-sdk-tool"\s*:')
_MOST_FILES = 1_000
_RECORD = "rocprofv3 --sys-trace --output-format rocpd -d traces -- python train.py"


# What a table is, by columns that it must have, in small letters.
_KINDS = {
    "counters": ("counter_name", "counter_value", "kernel_name", "start_timestamp"),
    "kernels": ("kernel_name", "start_timestamp", "end_timestamp"),
    "copies": ("direction", "start_timestamp", "end_timestamp"),
    "host": ("function", "start_timestamp", "end_timestamp"),
    "first kernels": ("kernelname", "beginns", "endns"),
    "agents": ("node_id", "agent_type", "cu_count"),
}
_NO_EVENTS = (None, "agents")


def _is_rocm(given: Input) -> bool:
    if given.is_folder:
        return bool(_tables_in(given))
    if given.is_sqlite:
        from stepscope.sources._rocm_databases import is_rocm_database
        from stepscope.sources._sqlite import Database

        with Database(given.as_file()) as tables:
            return is_rocm_database(tables)
    if _JSON_HEAD.match(given.head) or is_first_json(given.head):
        return True
    return _kind_of_header(given.head) not in _NO_EVENTS


def _kind_of_header(head: bytes) -> str | None:
    """Which table of ROCm's tools begins like this; None if none does."""
    line = head.removeprefix(b"\xef\xbb\xbf").split(b"\n", 1)[0].decode("utf-8", "replace")
    names = {name.strip().strip('"').lower() for name in line.split(",")}
    return next((kind for kind, needed in _KINDS.items() if names.issuperset(needed)), None)


def _tables_in(folder: Input) -> list[tuple[Path, str]]:
    """The CSV files of a folder that ROCm's tools wrote, by their first line.

    rocprofv3 writes into a folder named after the host. If that is all there is, it is meant; several hosts
    are a run, and not one profile.
    """
    if folder.path is None:
        return []
    names = [name for name in folder.listing if not name.startswith(".")]
    if len(names) == 1 and (only := folder.path / names[0]).is_dir():
        try:
            return _tables_of(only, sorted(entry.name for entry in only.iterdir()))
        except OSError:
            return []
    return _tables_of(folder.path, names)


def _tables_of(folder: Path, listing: list[str]) -> list[tuple[Path, str]]:
    found = []
    for name in [name for name in listing if name.lower().endswith(".csv")][:_MOST_FILES]:
        path = folder / name
        try:
            with path.open("rb") as file:
                kind = _kind_of_header(file.read(4096))
        except OSError:
            continue
        if kind is not None:
            found.append((path, kind))
    return found if any(kind not in _NO_EVENTS for _, kind in found) else []


@source(sniff=_is_rocm)
def rocprof(given: Input, writer: StoreWriter) -> SourceMeta:
    """Reads profiles of ROCm: rocpd, CSV and JSON of rocprofv3, rocprof before it, and RPD."""
    from stepscope.sources._rocm_events import RocmEvents

    begins_a_trace(given, writer, "a profile of ROCm")
    events = RocmEvents(writer)
    metadata, damage, notes = _read(given, events)
    damage += events.times.damage
    if not events.counted:
        why = f"is damaged: {damage[0].reason}" if damage else "has no kernels, calls or ranges"
        raise StepscopeError(f"{given.name} is of ROCm, but {why}", hint=f"record it again: {_RECORD}")
    notes += _notes(events.counted)
    rank, rank_source = rank_of({}, given.name)
    return SourceMeta(
        rank=rank,
        rank_source=rank_source,
        metadata=metadata,
        damage=tuple(damage),
        counters=events.counted,
        notes=tuple(notes),
    )


def _read(given: Input, events: RocmEvents) -> tuple[dict[str, Any], list[Damage], list[str]]:
    """Reads what is given; tells of the machine, of damage, and what has to be known."""
    from stepscope.sources._rocm_first_json import read_first_json
    from stepscope.sources._rocm_texts import read_csv, read_json

    if given.is_folder:
        return _read_folder(given, events)
    if given.is_sqlite:
        from stepscope.sources._rocm_databases import read_database
        from stepscope.sources._sqlite import Database

        with Database(given.as_file()) as tables:
            metadata = read_database(tables, events)
            return metadata, list(tables.damage), []
    if _JSON_HEAD.match(given.head):
        metadata, damage = read_json(given, events)
        return metadata, damage, []
    if is_first_json(given.head):
        return {}, read_first_json(given, events), []
    kind = _kind_of_header(given.head) or ""
    notes = ["These are the kernels of a run with counters, which runs slower."] if kind == "counters" else []
    return {}, read_csv(given.as_file(), Path(given.name).name, kind, events), notes


def _read_folder(given: Input, events: RocmEvents) -> tuple[dict[str, Any], list[Damage], list[str]]:
    """All tables of a folder; what the same process wrote begins with the same name."""
    from stepscope.sources._rocm_agents import gpus_of
    from stepscope.sources._rocm_texts import read_csv

    tables = _tables_in(given)
    agents = [path for path, kind in tables if kind == "agents"]
    tables = [(path, kind) for path, kind in tables if kind != "agents"]
    damage: list[Damage] = []
    notes = []
    if any(kind == "kernels" for _, kind in tables) and any(kind == "counters" for _, kind in tables):
        tables = [(path, kind) for path, kind in tables if kind != "counters"]
        notes.append("Counters of kernels were recorded in runs of their own and are not read here.")
    processes: dict[str, int] = {}
    for path, kind in tables:
        process = re.sub(
            r"[^_]*_?(kernel|api|copy|counter|marker|hip|hsa|memory|rccl)\w*\.csv$", "", path.name
        )
        apart = processes.setdefault(process, len(processes)) << 40
        damage += read_csv(path, path.name, kind, events, apart)
    gpus = gpus_of(agents, events.agents)
    return ({"deviceProperties": gpus} if gpus else {}), damage, notes


def _notes(counted: dict[str, int]) -> list[str]:
    notes = ["A profile of ROCm's tools has no operators, Python frames, shapes or allocations of PyTorch."]
    if "calls" not in counted:
        notes.append("No calls of HIP were recorded: what launched a kernel is not known; add --sys-trace.")
    notes.append("Its times count from the start of the machine, not from 1970.")
    return notes
