"""Nsight Systems: what `nsys export` writes of a report, as a SQLite file or a folder of Parquet files."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope import _native
from stepscope.errors import StepscopeError
from stepscope.memory import release_freed
from stepscope.sources import Damage, Input, SourceMeta, source
from stepscope.sources._reading import begins_a_trace
from stepscope.sources.kineto import rank_of
from stepscope.store.leftovers import scratch

if TYPE_CHECKING:
    from stepscope.sources._arrow_tables import ProfileTables
    from stepscope.store.writer import StoreWriter

__all__ = ["nsys"]

_OURS = re.compile(
    r"cupti_activity_kind_\w+|nvtx_events|stringids|target_info_\w+|osrt_api|gpu_metrics|processstreams"
)
_REPORT = re.compile(r"\.(nsys-rep|qdrep)$", re.IGNORECASE)
_RECORD = "nsys profile --trace=cuda,nvtx,osrt -o report python train.py"


def _is_nsys(given: Input) -> bool:
    if given.is_folder:
        stems = {name[:-8].lower() for name in given.listing if name.endswith(".parquet")}
        return any(_OURS.fullmatch(stem) for stem in stems) or _projection(given) is not None
    if given.is_sqlite:
        from stepscope.sources._sqlite import Database

        tables = Database(given.as_file())
        try:
            return any(_OURS.fullmatch(name) for name in tables.tables)
        finally:
            tables.close()
    if given.head.startswith(b"PAR1"):
        from stepscope.sources._nsys_recipe import is_projection

        return is_projection(given.as_file())
    # The report itself is a format of NVIDIA's own; what is text or packed is none, whatever its name.
    named = given.path is not None and _REPORT.search(given.path.name)
    return bool(named) and b"\0" in given.head


@source(sniff=_is_nsys)
def nsys(given: Input, writer: StoreWriter) -> SourceMeta:
    """Reads an export of Nsight Systems: a SQLite file or a folder of Parquet files."""
    from stepscope.sources._arrow_tables import ParquetFolder
    from stepscope.sources._sqlite import Database

    begins_a_trace(given, writer, "a profile of Nsight Systems")
    if (projected := _projection(given)) is not None:
        return _read_recipe(given, projected, writer)
    if given.is_folder and given.path is not None:
        return _read(given, ParquetFolder(given.path, given.listing), writer)
    if given.is_sqlite:
        return _read(given, Database(given.as_file()), writer)
    with tempfile.TemporaryDirectory(dir=scratch()) as folder:
        return _read(given, Database(_exported(given, Path(folder))), writer)


def _projection(given: Input) -> Path | None:
    """The table of a recipe: the file itself, or the one in its folder."""
    if not given.is_folder:
        return given.as_file() if given.head.startswith(b"PAR1") else None
    if "trace.parquet" not in given.listing:
        return None
    from stepscope.sources._nsys_recipe import is_projection

    path = Path(given.path or "") / "trace.parquet"
    return path if is_projection(path) else None


def _read_recipe(given: Input, path: Path, writer: StoreWriter) -> SourceMeta:
    from stepscope.sources._nsys_recipe import read_projection

    count, damage = read_projection(path, writer)
    if not count:
        raise _nothing(given, damage)
    note = (
        "A recipe of Nsight Systems has NVTX ranges and their projections alone: "
        "give stepscope the report itself, or what nsys export writes of it."
    )
    return SourceMeta(damage=damage, counters={"ranges": count}, notes=(note,))


def _exported(report: Input, folder: Path) -> Path:
    """The SQLite file of a report, made by nsys itself."""
    exported = folder / "report.sqlite"
    by_hand = f"nsys export --type sqlite --output report.sqlite {report.name}"
    program = shutil.which("nsys")
    if program is None:
        raise StepscopeError(
            f"{report.name} is a report of Nsight Systems: only nsys opens it, which is not installed here",
            hint=f"export it where nsys is: {by_hand}",
        )
    command = [program, "export", "--type", "sqlite", "--force-overwrite", "true", "--output", str(exported)]
    done = subprocess.run(  # noqa: S603  # no shell, and the path that the user named
        [*command, str(report.path)], capture_output=True, text=True, check=False
    )
    if done.returncode or not exported.exists():
        said = (done.stderr or done.stdout).strip().splitlines()
        raise StepscopeError(
            f"nsys could not export {report.name}: {said[-1][:300] if said else 'it said nothing'}",
            hint=f"try it by hand: {by_hand}",
        )
    return exported


def _read(given: Input, tables: ProfileTables, writer: StoreWriter) -> SourceMeta:
    from stepscope.sources._nsys_events import NsysEvents
    from stepscope.sources._nsys_facts import base_of, metadata_of, unread_metrics
    from stepscope.sources._nsys_ranges import read_ranges
    from stepscope.sources._nsys_rows import NsysRows

    _native.keep_memory()
    try:
        metadata = metadata_of(tables)
        units = {one["id"]: one.get("numSms", 0) for one in metadata.get("deviceProperties", ())}
        events = NsysEvents(tables, writer)
        with writer.beside():
            NsysRows(events, units).read()
            read_ranges(events)
        release_freed()  # linking takes other memory than reading
        counted = events.counted
        unread = unread_metrics(tables, gpus_read="counters" in counted)
        damage = (*tables.damage, *events.times.damage)
        base = base_of(tables)
    finally:
        tables.close()
    if not counted:
        raise _nothing(given, damage)
    rank, rank_source = rank_of({}, given.name)
    return SourceMeta(
        base_ns=base,
        rank=rank,
        rank_source=rank_source,
        metadata=metadata,
        damage=damage,
        counters=counted,
        notes=(*_notes(counted), *unread),
    )


def _nothing(given: Input, damage: tuple[Damage, ...]) -> StepscopeError:
    if damage:
        return StepscopeError(f"{given.name} is damaged: {damage[0].reason}", hint="export it once more")
    return StepscopeError(
        f"{given.name} is of Nsight Systems, but nothing was recorded: no kernels, calls or ranges",
        hint=f"record with CUDA and NVTX: {_RECORD}",
    )


def _notes(counted: dict[str, int]) -> tuple[str, ...]:
    """What such a profile lacks."""
    notes = []
    if "operators" not in counted:
        notes.append(
            "A profile of Nsight Systems has no operators: only NVTX ranges tell what launched a kernel. "
            "With torch.autograd.profiler.emit_nvtx() around the loop it has them."
        )
    if "graphs" in counted:
        notes.append(
            "CUDA graphs were recorded as a whole, without their kernels: "
            "record with --cuda-graph-trace=node to have these."
        )
    if not counted.keys() & {"kernels", "graphs", "copies", "fills"}:
        notes.append("No work of a GPU was recorded: record with --trace=cuda,nvtx,osrt.")
    notes.append("A profile of Nsight Systems has no Python frames, tensor shapes or allocations of PyTorch.")
    return tuple(notes)
