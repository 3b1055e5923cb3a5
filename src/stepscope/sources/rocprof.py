"""ROCm's profilers: rocprofv3 (rocpd, CSV, JSON), rocprof before it (CSV, database) and RPD."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.errors import StepscopeError
from stepscope.sources import Damage, Input, SourceMeta, source
from stepscope.sources._rocm_databases import is_rocm_database, read_database
from stepscope.sources._rocm_events import RocmEvents
from stepscope.sources._rocm_texts import JSON_HEAD, kind_of_header, read_csv, read_json
from stepscope.sources._sqlite import MAGIC, Database
from stepscope.sources.kineto import rank_of

if TYPE_CHECKING:
    from stepscope.store.writer import StoreWriter

__all__ = ["rocprof"]

_MOST_FILES = 1_000
_RECORD = "rocprofv3 --sys-trace --output-format rocpd -d traces -- python train.py"


def _is_rocm(given: Input) -> bool:
    if given.is_folder:
        return bool(_tables_in(given))
    if given.head.startswith(MAGIC):
        with Database(given.as_file()) as tables:
            return is_rocm_database(tables)
    return bool(JSON_HEAD.match(given.head)) or kind_of_header(given.head) is not None


def _tables_in(folder: Input) -> list[tuple[Path, str]]:
    """The CSV files of a folder that ROCm's tools wrote, by their first line."""
    found = []
    names = [name for name in folder.listing if name.lower().endswith(".csv")][:_MOST_FILES]
    for name in names if folder.path is not None else ():
        path = Path(folder.path or "") / name
        try:
            with path.open("rb") as file:
                kind = kind_of_header(file.read(4096))
        except OSError:
            continue
        if kind is not None:
            found.append((path, kind))
    return found


@source(sniff=_is_rocm)
def rocprof(given: Input, writer: StoreWriter) -> SourceMeta:
    """Reads profiles of ROCm: rocpd, CSV and JSON of rocprofv3, rocprof before it, and RPD."""
    if writer.sources:
        raise StepscopeError(
            f"{given.name} cannot be added to {writer.sources[0].source}: it begins a trace of its own",
            hint=f"read it on its own: stepscope report {given.name}",
        )
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
    if given.is_folder:
        return {}, *_read_folder(given, events)
    if given.head.startswith(MAGIC):
        with Database(given.as_file()) as tables:
            metadata = read_database(tables, events)
            return metadata, list(tables.damage), []
    if JSON_HEAD.match(given.head):
        metadata, damage = read_json(iter(given.stream), given.name, events)
        return metadata, damage, []
    kind = kind_of_header(given.head) or ""
    notes = ["These are the kernels of a run with counters, which runs slower."] if kind == "counters" else []
    return {}, read_csv(given.as_file(), Path(given.name).name, kind, events), notes


def _read_folder(given: Input, events: RocmEvents) -> tuple[list[Damage], list[str]]:
    """All tables of a folder; what the same process wrote begins with the same name."""
    tables = _tables_in(given)
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
    return damage, notes


def _notes(counted: dict[str, int]) -> list[str]:
    notes = ["A profile of ROCm's tools has no operators, Python frames, shapes or allocations of PyTorch."]
    if "calls" not in counted:
        notes.append("No calls of HIP were recorded: what launched a kernel is not known; add --sys-trace.")
    notes.append("Its times count from the start of the machine, not from 1970.")
    return notes
