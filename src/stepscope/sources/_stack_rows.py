"""Rows of stacks that native code read from text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope import _native
from stepscope.sources._perf_lines import NO_CLOCK_NS, perf_lines, whole_module
from stepscope.sources._sampled_frames import frame_rows, named
from stepscope.sources._stack_roots import Roots, roots_of

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
    for piece in stream if collapsed else perf_lines(stream):
        reader.feed(piece)
        since += len(piece)
        if since >= _EVERY:
            since = 0
            if not collapsed:  # the threads of collapsed stacks are known at the end
                _write_samples(reader, writer, None)
            if given.progress:
                done = min(stream.read_bytes / stream.size, 0.999) if stream.size else None
                given.progress("reading", done, stream.given_bytes, reader.samples)
    reader.finish()
    _write_rest(reader, writer, collapsed=collapsed)
    return reader


def _write_rest(reader: _native.StackReader, writer: StoreWriter, *, collapsed: bool) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = _texts(reader, "frames")
    starts, values = (
        pa.Array.from_buffers(pa.int64(), len(part), [None, pa.py_buffer(part)])
        for part in reader.take_stacks()
    )
    roots = roots_of(texts, starts, values) if collapsed else None
    _write_samples(reader, writer, roots)
    for at in range(0, len(starts) - 1 if len(values) else 0, _STACKS):
        lists = pa.LargeListArray.from_arrays(starts.slice(at, _STACKS + 1), values)
        writer.add_rows("sampled_stacks", _rows_of(lists, at, roots.kept if roots else None))
    if not reader.samples:
        return
    frames = frame_rows(named(text) if collapsed else _of_perf(text) for text in texts)
    if roots:
        frames = frames.filter(pc.invert(pc.is_in(frames["frame"], roots.no_code)))
    writer.add_rows("sampled_frames", frames)


def _of_perf(text: str) -> tuple[str, str | None, int | None]:
    name, _, module = text.partition("\x01")
    if module.count(")") > module.count("("):
        name, module = whole_module(name, module)
    return name, module or None, None


def _texts(reader: _native.StackReader, of: str) -> list[str]:
    """Texts of a file may be no UTF-8."""
    import pyarrow as pa

    offsets, text = reader.texts(of)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(text)]
    whole = pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)
    return [one.decode("utf-8", "replace") for one in whole.to_pylist()]


def _write_samples(reader: _native.StackReader, writer: StoreWriter, roots: Roots | None) -> None:
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
    if roots:
        for name in ("process", "thread", "command"):
            arrays[name] = getattr(roots, name).take(arrays["stack"])
    clock = arrays["clock_ns"]
    arrays["clock_ns"] = pc.if_else(pc.equal(clock, NO_CLOCK_NS), pa.scalar(None, pa.int64()), clock)
    ones = pa.repeat(pa.scalar(1, pa.int64()), count)
    arrays["samples"] = arrays["weight"] if roots else ones
    arrays["weight"] = pc.cast(arrays["weight"], pa.float64())
    writer.add_rows("cpu_samples", pa.table(arrays))


_STACKS = 1 << 16


def _rows_of(lists: pa.LargeListArray, first: int, kept: pa.Array | None) -> pa.Table:
    """A row for each frame of some stacks, numbered from the innermost; of the outermost, those kept."""
    import pyarrow as pa
    import pyarrow.compute as pc

    parents = pc.list_parent_indices(lists)
    flat = lists.flatten()
    places = pa.array(range(len(flat)), pa.int64())
    begins = pc.subtract(lists.offsets.slice(0, len(lists)), lists.offsets[0])
    depth = pc.subtract(places, begins.take(parents))
    rows = pa.table({"stack": pc.add(parents, first), "depth": depth, "frame": flat})
    return rows if kept is None else rows.filter(pc.less(rows["depth"], kept.take(rows["stack"])))
