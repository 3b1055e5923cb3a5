"""Processes and threads that collapsed stacks have as their outermost frames."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Roots", "roots_of"]

_PROCESS = re.compile(r'^process (\d{1,18}):"(.*)$', re.DOTALL)
_THREAD = re.compile(r"^thread \(?(0[xX][0-9a-fA-F]{1,15}|\d{1,18})\)?(?:: (.*))?$", re.DOTALL)
_PERF = re.compile(r"^(.+)-(\d{1,18}|\?)(?:/(\d{1,18}))?$", re.DOTALL)
"""As stackcollapse-perf.pl writes it with --pid or --tid."""
_DEEPEST = 64
"""Processes of processes, and parts of command lines."""


class Roots(NamedTuple):
    """What the outermost frames of each stack tell."""

    process: pa.Array
    thread: pa.Array
    command: pa.Array
    kept: pa.Array
    """How many of its frames are code: the innermost ones."""
    no_code: pa.Array
    """Numbers of frames that are code in no stack."""


def roots_of(texts: list[str], starts: pa.Array, values: pa.Array) -> Roots:
    """The roots of stacks, whose frames are numbers of texts, the innermost first."""
    import pyarrow as pa
    import pyarrow.compute as pc

    begins = starts.slice(0, len(starts) - 1)
    sizes = pc.subtract(starts.slice(1), begins)
    of_perf = [_PERF.match(text) for text in texts]
    outer = _outermost(begins, sizes, values)
    is_perf = pa.array([found is not None for found in of_perf], pa.bool_())
    if len(outer) and pc.all(is_perf.take(outer).fill_null(False)).as_py():
        told = _Told(
            [int(found[2]) if found and found[2] != "?" else None for found in of_perf],
            [int(found[3]) if found and found[3] else None for found in of_perf],
            [found[1] if found else None for found in of_perf],
        )
        columns = [column.take(outer) for column in told.columns()]
        kept = pc.subtract(sizes, 1)
    else:
        *columns, kept = _py_spy(texts, begins, sizes, values)
    process, thread, command = columns
    some = pc.any(pc.not_equal(kept, sizes)).as_py()
    off = _no_code(begins, sizes, values, kept) if some else pa.array([], pa.int64())
    return Roots(process, thread, command, kept, off)


class _Told(NamedTuple):
    """What each frame would say of the stacks around it."""

    process: list[int | None]
    thread: list[int | None]
    command: list[str | None]

    def columns(self) -> list[pa.Array]:
        import pyarrow as pa

        kinds = (pa.int64(), pa.int64(), pa.string())
        return [pa.array(values, kind) for values, kind in zip(self, kinds, strict=True)]


def _outermost(begins: pa.Array, kept: pa.Array, values: pa.Array) -> pa.Array:
    """The outermost frame of each stack that is not taken off yet; NULL where none is left."""
    import pyarrow as pa
    import pyarrow.compute as pc

    at = pc.subtract(pc.add(begins, kept), 1)
    return values.take(pc.if_else(pc.greater(kept, 0), at, pa.scalar(None, pa.int64())))


def _py_spy(
    texts: list[str], begins: pa.Array, sizes: pa.Array, values: pa.Array
) -> tuple[pa.Array, pa.Array, pa.Array, pa.Array]:
    """Takes off processes, each in its parent, and then a thread: level by level, for all stacks at once.

    Command lines may have semicolons, so the frame of a process may be in several parts.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    of_process, of_thread = [_PROCESS.match(one) for one in texts], [_THREAD.match(one) for one in texts]
    told = _Told(
        [int(found[1]) if found else None for found in of_process],
        [int(found[1], 0) if found else None for found in of_thread],
        [_command(process, thread) for process, thread in zip(of_process, of_thread, strict=True)],
    )
    pids, tids, names = told.columns()
    closes = pa.array([text.endswith('"') for text in texts], pa.bool_())
    opens = pa.array([bool(one and not one[2].endswith('"')) for one in of_process], pa.bool_())
    count, kept = len(sizes), sizes
    process, thread = pa.nulls(count, pa.int64()), pa.nulls(count, pa.int64())
    command = pa.nulls(count, pa.string())
    inside = done = pa.repeat(pa.scalar(False), count)
    before = kept
    for _ in range(_DEEPEST):
        frame = _outermost(begins, kept, values)
        pid, tid, name = (
            pc.if_else(pc.or_(inside, done), pa.scalar(None, column.type), column.take(frame))
            for column in (pids, tids, names)
        )
        found = pc.or_(pc.is_valid(pid), pc.is_valid(tid))
        taken = pc.or_(found, pc.and_(inside, pc.is_valid(frame)))
        if not pc.any(taken).as_py():
            break
        process, thread = pc.coalesce(pid, process), pc.coalesce(tid, thread)
        command = pc.coalesce(name, command)
        kept = pc.subtract(kept, pc.cast(taken, pa.int64()))
        begun = pc.and_(pc.is_valid(pid), opens.take(frame).fill_null(False))
        before = pc.if_else(begun, kept, before)
        inside = pc.or_(begun, pc.and_(inside, pc.invert(closes.take(frame).fill_null(False))))
        done = pc.or_(done, pc.is_valid(tid))
    # A command line that never ends was cut: only its beginning is known to be no code.
    return process, thread, command, pc.if_else(inside, before, kept)


def _command(process: re.Match[str] | None, thread: re.Match[str] | None) -> str | None:
    if thread:
        return thread[2] or None
    return process[2].removesuffix('"') or None if process else None


def _no_code(begins: pa.Array, sizes: pa.Array, values: pa.Array, kept: pa.Array) -> pa.Array:
    """Frames that were taken off wherever they are."""
    import pyarrow as pa
    import pyarrow.compute as pc

    offsets = pa.concat_arrays([begins, pc.add(begins.slice(len(begins) - 1), sizes.slice(len(sizes) - 1))])
    parents = pc.list_parent_indices(pa.LargeListArray.from_arrays(offsets, values))
    depth = pc.subtract(pa.array(range(len(values)), pa.int64()), begins.take(parents))
    is_code = pc.less(depth, kept.take(parents))
    code = pc.unique(values.filter(is_code))
    off = pc.unique(values.filter(pc.invert(is_code)))
    return off.filter(pc.invert(pc.is_in(off, code)))
