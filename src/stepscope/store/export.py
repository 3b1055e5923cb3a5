"""Writes a stored trace, or a part of it, back to the JSON that it was read from.

Events come out in the order of the profile and say what they said there: the text of their skeleton with
the values of their columns put back. Memory is bounded, whatever the size of the trace: tables are read
batch by batch, texts wait on disk in stretches of the profile, and one stretch at a time is put in order.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from stepscope import _native
from stepscope.errors import StepscopeError
from stepscope.records import dataclass
from stepscope.schema import STORED, StoredTable, native_tables
from stepscope.store.columns import view
from stepscope.store.leftovers import scratch
from stepscope.store.sums import StoreFiles
from stepscope.writing import written

if TYPE_CHECKING:
    import pyarrow as pa

    from stepscope.store.trace import Trace

__all__ = ["Export", "Selection", "event_texts", "event_writer", "export", "output_file", "selected"]

_STRETCH = 1 << 17
_FILES = 128
"""How many events make a stretch, and into how many stretches a profile is cut at most."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which events are written: a condition in SQL for each stored table, and what the conditions build on.

    A condition sees the table as `t`; `prelude` is a list of common table expressions. A table without a
    condition is written whole. `always` is how many events are in every selection: metadata.
    """

    where: Mapping[str, str] = field(default_factory=dict)
    prelude: str = ""
    always: int = -1


@dataclass(frozen=True, slots=True)
class Export:
    """What was written: events, and bytes of the file."""

    events: int
    bytes: int


def export(trace: Trace, path: str, selection: Selection | None = None) -> Export:
    """Writes events as a Kineto trace, compressed as the name says (.gz, .zst); `-` is standard output."""
    selection = selection or Selection()
    with output_file(path) as (file, raw), tempfile.TemporaryDirectory(dir=scratch()) as folder:
        stretches = _Stretches(folder, trace.meta.events)
        writer = event_writer(trace)
        taken_off_ns = trace.meta.sources[0].taken_off_ns
        for number, table in enumerate(STORED):
            for batch in trace.batches(selected(table, selection, later_ns=taken_off_ns)):
                stretches.add(batch["event"], _texts(writer, number, batch))
        if stretches.events <= selection.always:
            raise StepscopeError(
                "the trace has no event in the window",
                hint="stepscope show steps TRACE lists its steps",
            )
        file.write(_head(trace.meta.metadata))
        skipped = 2  # the comma before the first event
        for text in stretches:
            file.write(text[skipped:])
            skipped = 0
        file.write(b"\n]}\n")
        return Export(stretches.events, end_file(file, raw))


def _head(metadata: dict[str, Any]) -> bytes:
    """The trace up to its first event: what the profile said of itself, wherever it stood there."""
    entries = [f" {json.dumps(key)}: {json.dumps(value)},\n" for key, value in metadata.items()]
    return ("{\n" + "".join(entries) + ' "traceEvents": [\n').encode()


def event_writer(trace: Trace) -> _native.EventWriter:
    """A native writer that knows the names, skeletons and threads of a trace."""
    import pyarrow as pa
    import pyarrow.compute as pc

    threads = _dictionary(trace, "threads").read_all()
    writer = _native.EventWriter(
        native_tables(),
        list(zip(threads["pid_json"].to_pylist(), threads["tid_json"].to_pylist(), strict=True)),
    )
    for batch in _batches(_dictionary(trace, "names")):
        writer.add_names(batch["id"][0].as_py(), *_arrow_text(batch["text"]))
    tables = pa.array([table.name for table in STORED])
    for batch in _batches(_dictionary(trace, "skeletons")):
        numbers = pc.index_in(batch["stored_in"], tables).fill_null(-1)
        stored_in = memoryview(numbers.buffers()[1]).cast("b").cast("i")[: len(numbers)]
        writer.add_skeletons(batch["id"][0].as_py(), *_arrow_text(batch["text"]), stored_in)
    return writer


def _dictionary(trace: Trace, name: str) -> pa.RecordBatchFileReader:
    return StoreFiles(trace.folder).arrow(name)


def _batches(file: pa.RecordBatchFileReader) -> Iterator[pa.RecordBatch]:
    for number in range(file.num_record_batches):
        batch = file.get_batch(number)
        if batch.num_rows:
            yield batch


def _arrow_text(column: pa.Array) -> tuple[memoryview, memoryview]:
    """Offsets and bytes of an Arrow column of texts, as they lie in the file."""
    _, offsets, text = column.buffers()
    first = column.offset
    return (
        memoryview(offsets).cast("b").cast("i")[first : first + len(column) + 1],
        memoryview(text if text is not None else b"").cast("B"),
    )


def selected(table: StoredTable, selection: Selection, *, more: str = "", later_ns: int = 0) -> str:
    """SQL for the selected events of a table, which it calls `t`; `more` columns come after the stored."""
    columns = ", ".join(f"t.{column.name}" for column in table.read_columns)
    if later_ns:
        columns = columns.replace("t.start_ns", f"t.start_ns + {later_ns} AS start_ns")
    if table.name == "device_work":  # what is written is what was read, impossible or not
        columns = columns.replace("t.dur_ns", "coalesce(t.recorded_ns, t.dur_ns) AS dur_ns")
    prelude = f"WITH {selection.prelude} " if selection.prelude else ""
    chosen = selection.where.get(table.name, "true")
    added = f", {more}" if more else ""
    return f"{prelude}SELECT {columns}{added} FROM stored.{table.name} t WHERE {chosen}"


def event_texts(writer: _native.EventWriter, table: int, batch: pa.RecordBatch) -> tuple[bytes, memoryview]:
    """Events of a table as JSON, one after the other, and where each begins."""
    # By place, not by name: a table may have a column called like one of those that every event has.
    _, thread, name, start, dur, skeleton, *values = (_bits(column) for column in batch.columns)
    return writer.write(table, thread, name, start, dur, skeleton, values)


def _texts(writer: _native.EventWriter, table: int, batch: pa.RecordBatch) -> pa.Array:
    import pyarrow as pa

    text, offsets = event_texts(writer, table, batch)
    return pa.Array.from_buffers(
        pa.large_binary(), batch.num_rows, [None, pa.py_buffer(offsets), pa.py_buffer(text)]
    )


def _bits(column: pa.Array) -> memoryview:
    """Numbers for native code, doubles as their bits; those of minus zero are the native NULL."""
    import pyarrow as pa

    return view(column.fill_null(-0.0).view(pa.int64()) if column.type == pa.float64() else column)


class _Stretches:
    """Texts of events in any order, given back in the order of the profile, a stretch of it at a time."""

    def __init__(self, folder: str, events: int) -> None:
        self.events = 0
        self._folder = Path(folder)
        self._width = max(_STRETCH, -(-events // _FILES))
        self._files: dict[int, Any] = {}

    def add(self, events: pa.Array, texts: pa.Array) -> None:
        """Keeps texts, by the numbers of their events."""
        import pyarrow as pa
        import pyarrow.compute as pc

        self.events += len(events)
        batch = pa.RecordBatch.from_arrays([events, texts], names=["event", "text"])
        stretches = pc.divide(events, self._width)
        for stretch in pc.unique(stretches).to_pylist():
            if stretch not in self._files:
                options = pa.ipc.IpcWriteOptions(compression="lz4")
                self._files[stretch] = pa.ipc.new_file(self._path(stretch), batch.schema, options=options)
            self._files[stretch].write_batch(batch.filter(pc.equal(stretches, stretch)))

    def __iter__(self) -> Iterator[memoryview]:
        import pyarrow as pa
        import pyarrow.compute as pc

        for stretch in sorted(self._files):
            self._files.pop(stretch).close()
            with pa.OSFile(self._path(stretch)) as file:
                table = pa.ipc.open_file(file).read_all()
            ordered = table["text"].take(pc.sort_indices(table["event"])).combine_chunks()
            for chunk in ordered.chunks if isinstance(ordered, pa.ChunkedArray) else [ordered]:
                yield memoryview(chunk.buffers()[2])

    def _path(self, stretch: int) -> str:
        return str(self._folder / f"{stretch}.arrow")


@contextmanager
def output_file(path: str) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """The stream to write to and the file below it."""
    if path == "-":
        yield sys.stdout.buffer, sys.stdout.buffer
        return
    with written(Path(path)) as raw:
        yield _compressed(raw, Path(path).resolve().suffix), raw


def end_file(file: IO[bytes], raw: IO[bytes]) -> int:
    """Ends what `output_file` gave; how many bytes the file has, 0 where that cannot be told."""
    if file is not raw:
        file.close()
    raw.flush()
    return raw.tell() if raw.seekable() else 0


def _compressed(raw: IO[bytes], suffix: str) -> IO[bytes]:
    stream: Any = raw
    if suffix == ".gz":
        make: Any
        try:
            from isal.igzip import IGzipFile as make  # noqa: N813
        except ImportError:  # no wheel for this machine: slower, the same content
            from gzip import GzipFile as make  # noqa: N813
        stream = make(filename="", mode="wb", compresslevel=3, fileobj=raw, mtime=0)
    elif suffix == ".zst":
        if sys.version_info >= (3, 14):
            from compression import zstd
        else:
            from backports import zstd
        stream = zstd.ZstdFile(raw, "wb")
    return stream  # type: ignore[no-any-return]
