"""Perfetto's own format: what a viewer shows of it is what ran, also where kernels of a stream overlap."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, Any

from stepscope import _native
from stepscope.exports import _packets, export_format
from stepscope.exports._marks import Mark, marks_of
from stepscope.schema import NOT_HOST, STORED
from stepscope.sources.pftrace import OWN_CATEGORY
from stepscope.store.columns import view
from stepscope.store.export import (
    Export,
    Selection,
    end_file,
    event_texts,
    event_writer,
    output_file,
    selected,
)
from stepscope.store.leftovers import scratch

if TYPE_CHECKING:
    import pyarrow as pa

    from stepscope.store.cutting import Window
    from stepscope.store.trace import Trace

__all__ = ["pftrace"]

_MEMORY = 64 << 20  # of slices that are sorted
_KINDS = 4  # tracks of one thread: the host's, work of a device, its annotations, what else it did
_HOST, _WORK, _RANGES, _OTHERS = range(_KINDS)
_GPU_PIDS = 1 << 30  # a viewer tells processes by their number, and that of a device may be one of a process
_PROCESSES = 1 << 62
_SHOWN = "('X', 'i', 'I')"

_SKELETON_KINDS = f"""
    SELECT id, CASE WHEN phase NOT IN {_SHOWN} THEN NULL
                    WHEN stored_in = 'device_work' THEN {_WORK}
                    WHEN category = 'gpu_user_annotation' THEN {_RANGES}
                    WHEN category IN ({", ".join(f"'{one}'" for one in NOT_HOST)}) THEN {_OTHERS}
                    ELSE {_HOST} END::BIGINT AS kind
    FROM stored.skeletons ORDER BY id
"""
_ARROWS = {"launches": "CASE WHEN t.work_events > 0 THEN t.event + 1 END", "device_work": "t.launch + 1"}
"""What a launch and its work have in common."""


@export_format(".pftrace", ".perfetto-trace")
def pftrace(
    trace: Trace, path: str, selection: Selection | None = None, *, marked: Window | None = None
) -> Export:
    """Perfetto's protobuf format, with arrows from launches to work, lanes, idle gaps and findings.

    A part of a trace has no findings of its own; those of the whole that lie in `marked` are written with it.
    """
    chosen = selection or Selection()
    packets = _native.PftraceWriter(str(scratch()), _MEMORY, trace.meta.base_ns)
    writer = event_writer(trace)
    kinds = _kinds(trace)
    used: set[int] = set()
    for number, table in enumerate(STORED):
        if table.name == "flows":  # arrows are written with the slices that they connect
            continue
        arrow = f"({_ARROWS.get(table.name, 'NULL')})::BIGINT AS arrow"
        for found in trace.batches(selected(table, chosen, more=arrow)):
            batch, tracks = _on_tracks(found, kinds)
            used.update(tracks.unique().to_pylist())
            text, offsets = event_texts(writer, number, batch.select(range(len(table.read_columns))))
            columns = [tracks, *(batch[name] for name in ("start_ns", "dur_ns", "event", "arrow"))]
            packets.add(text, offsets, [view(column) for column in columns])
    marks = marks_of(trace) if selection is None or marked else []
    if marked:
        base = trace.meta.base_ns
        first, last = base + marked.start_ns, base + marked.end_ns
        marks = [one for one in marks if one.start_ns < last and one.start_ns + one.dur_ns > first]
    names = list(dict.fromkeys(mark.track for mark in marks))
    first = (len(_threads(trace)) + 1) * _KINDS
    _add_marks(packets, marks, {name: first + place for place, name in enumerate(names)}, trace.meta.base_ns)
    with output_file(path) as (file, raw):
        for piece in _described(trace, used, names, first):
            file.write(piece)
        while piece := packets.next():
            file.write(piece)
        _write_counters(trace, packets, file)
        return Export(packets.slices - len(marks), end_file(file, raw))


def _kinds(trace: Trace) -> pa.Array:
    """By the number of a skeleton, the kind of its events; NULL for what has no place on the time line.

    Looked up here, for a join would have the database hold all events of a table.
    """
    found = trace.arrow(_SKELETON_KINDS)
    if found.num_rows and found["id"][-1].as_py() != found.num_rows - 1:
        raise ValueError("skeletons are not numbered from 0")
    return found["kind"].combine_chunks()


def _on_tracks(batch: pa.RecordBatch, kinds: pa.Array) -> tuple[pa.RecordBatch, pa.Array]:
    """The events that are shown, and the track of each."""
    import pyarrow as pa
    import pyarrow.compute as pc

    of_each = kinds.take(batch["skeleton"])
    if of_each.null_count:
        batch, of_each = batch.filter(of_each.is_valid()), of_each.drop_null()
    return batch, pc.add(pc.multiply(batch["thread"].cast(pa.int64()), _KINDS), of_each)


def _threads(trace: Trace) -> list[dict[str, Any]]:
    return trace.rows("SELECT id, pid, tid, pid_json, tid_json FROM stored.threads ORDER BY id")


def _described(trace: Trace, used: set[int], marks: list[str], first: int) -> Iterator[bytes]:
    """The packets before all others: the clock, GPUs, and every track."""
    yield _packets.clocks(trace.meta.base_ns)
    told = trace.meta.metadata.get("deviceProperties")
    models = (
        [str(one.get("name", "")) for one in told if isinstance(one, dict)] if isinstance(told, list) else []
    )
    if models:
        yield _packets.gpus(models)
    names = _names(trace)
    processes: dict[str, int] = {}
    for row in _threads(trace):
        kinds = [kind for kind in range(_KINDS) if row["id"] * _KINDS + kind in used]
        for device in (False, True):
            if any((kind != _HOST) == device for kind in kinds):
                yield from _thread(row, kinds, names, processes, device=device)
    if marks:
        yield _packets.process(_PROCESSES - 1, None, OWN_CATEGORY)
        for place, name in enumerate(marks):
            yield _packets.track(_packets.uuid_of(first + place), _PROCESSES - 1, name)


def _thread(
    row: dict[str, Any],
    kinds: list[int],
    names: dict[tuple[str, str, str], str],
    processes: dict[str, int],
    *,
    device: bool,
) -> Iterator[bytes]:
    """The tracks of a thread or stream, and that of its process or device if it is the first there."""
    pid, tid = _number(row["pid_json"]), _number(row["tid_json"])
    called = f"GPU {row['pid']}" if device else names.get(("process_name", row["pid_json"], ""), row["pid"])
    key = f"{device} {row['pid_json']}"
    if key not in processes:
        processes[key] = _PROCESSES + len(processes)
        yield _packets.process(processes[key], None if pid is None else pid + _GPU_PIDS * device, called)
    parent = processes[key]
    own = _packets.uuid_of(row["id"] * _KINDS + (_WORK if device else _HOST))
    title = (
        f"stream {row['tid']}"
        if device
        else names.get(("thread_name", row["pid_json"], row["tid_json"]), row["tid"])
    )
    if pid is None or tid is None:
        yield _packets.track(own, parent, title or "events")
    else:
        yield _packets.thread(own, parent, (pid + _GPU_PIDS * device, tid), title)
    for kind, name in ((_RANGES, "annotations"), (_OTHERS, "synchronisation")):
        if device and kind in kinds:
            yield _packets.track(_packets.uuid_of(row["id"] * _KINDS + kind), own, name)


def _number(text: str) -> int | None:
    """A number that a viewer takes for a process or thread."""
    return int(text) if text.isdigit() and int(text) < _GPU_PIDS else None


def _names(trace: Trace) -> dict[tuple[str, str, str], str]:
    """How the profile calls its processes and threads."""
    rows = trace.rows(
        """SELECT n.text AS what, h.pid_json, h.tid_json, json_extract_string(s.text, '$.args.name') AS called
           FROM stored.other_events t JOIN stored.skeletons s ON s.id = t.skeleton
           JOIN stored.names n ON n.id = t.name JOIN stored.threads h ON h.id = t.thread
           WHERE s.phase = 'M' AND n.text IN ('process_name', 'thread_name')"""
    )
    return {
        (row["what"], row["pid_json"], row["tid_json"] if row["what"] == "thread_name" else ""): row["called"]
        for row in rows
        if row["called"]
    }


def _add_marks(
    packets: _native.PftraceWriter, marks: list[Mark], tracks: dict[str, int], base_ns: int
) -> None:
    import pyarrow as pa

    if not marks:
        return
    texts = pa.array([mark.text() for mark in marks], pa.large_string())
    columns = [
        pa.array([tracks[mark.track] for mark in marks], pa.int64()),
        pa.array([mark.start_ns - base_ns for mark in marks], pa.int64()),
        pa.array([mark.dur_ns for mark in marks], pa.int64()),
        pa.array(range(len(marks)), pa.int64()),
        pa.nulls(len(marks), pa.int64()),
    ]
    _, offsets, text = texts.buffers()
    places = memoryview(offsets).cast("b").cast("q")[: len(texts) + 1]
    packets.add(memoryview(text).cast("B"), places, [view(one) for one in columns])


def _write_counters(trace: Trace, packets: _native.PftraceWriter, file: IO[bytes]) -> None:
    """Readings of device counters, as far as they belong to a device."""
    import pyarrow as pa

    if not trace.meta.rows.get("device_counters"):
        return
    listed = "SELECT DISTINCT device, name FROM stored.device_counters WHERE device >= 0 ORDER BY ALL"
    known = [(row["device"], row["name"]) for row in trace.rows(listed)]
    if not known:
        return
    file.write(_packets.counters(known))
    ordered = (
        "SELECT device, name, start_ns, value FROM stored.device_counters WHERE device >= 0 ORDER BY start_ns"
    )
    for batch in trace.batches(ordered):
        file.write(_readings(packets, batch, known, pa))


def _readings(
    packets: _native.PftraceWriter, batch: pa.RecordBatch, known: list[tuple[int, str]], pa: Any
) -> bytes:
    import pyarrow.compute as pc

    numbers = pa.nulls(batch.num_rows, pa.int64())
    for number, (device, name) in enumerate(known):
        here = pc.and_(pc.equal(batch["device"], device), pc.equal(batch["name"], name))
        numbers = pc.if_else(here, pa.scalar(number, pa.int64()), numbers)
    values = batch["value"].view(pa.int64())
    columns = [pc.add(batch["device"], 1), numbers, batch["start_ns"], values]
    return packets.readings(*(view(column) for column in columns))
