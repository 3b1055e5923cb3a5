"""Rows of stacks that native code read from text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope import _native
from stepscope.sources._sampled_frames import frame_rows, named

if TYPE_CHECKING:
    import pyarrow as pa

    from stepscope.sources import Input
    from stepscope.store.writer import StoreWriter

__all__ = ["read_stacks"]

_COLUMNS = ("process", "thread", "cpu", "clock_ns", "weight", "command", "event", "stack")
_EVERY = 1 << 24
"""Bytes after which samples are written."""


def read_stacks(given: Input, writer: StoreWriter, *, collapsed: bool) -> _native.StackReader:
    """Reads a text of stacks, and writes all of their tables."""
    reader = _native.StackReader(collapsed)
    stream, since = given.stream, 0
    for piece in stream:
        reader.feed(piece)
        since += len(piece)
        if since >= _EVERY:
            since = 0
            _write_samples(reader, writer, collapsed=collapsed)
            if given.progress:
                done = min(stream.read_bytes / stream.size, 0.999) if stream.size else None
                given.progress("reading", done, stream.given_bytes, reader.samples)
    reader.finish()
    _write_samples(reader, writer, collapsed=collapsed)
    _write_stacks(reader, writer)
    frames = _texts(reader, "frames")
    split = (named(text) if collapsed else _of_perf(text) for text in frames)
    if reader.samples:
        writer.add_rows("sampled_frames", frame_rows(split))
    return reader


def _of_perf(text: str) -> tuple[str, str | None, int | None]:
    name, _, module = text.partition("\x01")
    return name, module or None, None


def _texts(reader: _native.StackReader, of: str) -> list[str]:
    """Texts of a file may be no UTF-8."""
    import pyarrow as pa

    offsets, text = reader.texts(of)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(text)]
    whole = pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)
    return [one.decode("utf-8", "replace") for one in whole.to_pylist()]


def _write_samples(reader: _native.StackReader, writer: StoreWriter, *, collapsed: bool) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc

    given = reader.take_samples()
    arrays = {}
    for name, (values, valid) in zip(_COLUMNS, given, strict=True):
        mask = None if valid is None else pa.py_buffer(valid)
        arrays[name] = pa.Array.from_buffers(pa.int64(), len(values), [mask, pa.py_buffer(values)])
    count = len(arrays["stack"])
    if not count:
        return
    for name, of in (("command", "commands"), ("event", "events")):
        arrays[name] = pa.array(_texts(reader, of), pa.string()).take(arrays[name])
    ones = pa.repeat(pa.scalar(1, pa.int64()), count)
    arrays["samples"] = arrays["weight"] if collapsed else ones
    arrays["weight"] = pc.cast(arrays["weight"], pa.float64())
    writer.add_rows("cpu_samples", pa.table(arrays))


def _write_stacks(reader: _native.StackReader, writer: StoreWriter) -> None:
    import pyarrow as pa

    offsets, frames = reader.take_stacks()
    if not len(frames):
        return
    starts = pa.Array.from_buffers(pa.int64(), len(offsets), [None, pa.py_buffer(offsets)])
    values = pa.Array.from_buffers(pa.int64(), len(frames), [None, pa.py_buffer(frames)])
    for at in range(0, len(starts) - 1, _STACKS):
        part = starts.slice(at, _STACKS + 1)
        lists = pa.LargeListArray.from_arrays(part, values)
        writer.add_rows("sampled_stacks", _rows_of(lists, at))


_STACKS = 1 << 16


def _rows_of(lists: pa.LargeListArray, first: int) -> pa.Table:
    """A row for each frame of some stacks, numbered from the innermost."""
    import pyarrow as pa
    import pyarrow.compute as pc

    parents = pc.list_parent_indices(lists)
    flat = lists.flatten()
    places = pa.array(range(len(flat)), pa.int64())
    begins = pc.subtract(lists.offsets.slice(0, len(lists)), lists.offsets[0])
    depth = pc.subtract(places, begins.take(parents))
    return pa.table({"stack": pc.add(parents, first), "depth": depth, "frame": flat})
