"""Durations of device work that cannot be, found and clipped while a profile is stored.

Some profiles hold a handful of kernels that last seconds among tens of thousands that last microseconds. A
stream runs its work in order, so what gives them away is later work of their own stream that began and ended
while they "ran". Programmatic dependent launch lets the next kernel begin early, but not end; so it takes
several such, and a clear case. Collectives are left alone: they may wait for others as long as they like.

A profile without such work pays for one look at its longest durations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

from stepscope.records import dataclass
from stepscope.schema import COMMUNICATION_KERNEL

if TYPE_CHECKING:
    import pyarrow as pa

    from stepscope.store.links import Staged

__all__ = ["NameKinds", "impossible_durations"]

LEAST_NS = 100_000
"""Shorter work is not looked at: clipping it would change no figure that matters."""
FAR_NS = 1_000_000
FAR_PIECES = 4
"""Overlap, and pieces of later work that were done meanwhile, that no stream allows."""
FEW = 50
"""At most one piece in so many is impossible; where there are more, the stream is none that runs in order."""
EQUALS = 3
"""So many pieces with the same name, shape and size say how long one takes."""
EQUALS_PIECES = 2
BEYOND_EQUALS = 100
LIKE_EQUALS = 10
"""Work that its equals resemble so far is not impossible, however it overlaps."""
MOST_SUSPECTS = 512
_LINKED = ("start_ns", "dur_ns", "correlation")


@dataclass(slots=True)
class NameKinds:
    """What names say that bears on durations."""

    communicating: set[int] = field(default_factory=set)
    """Numbers of names of communication kernels."""
    in_order: bool = True
    """Whether a stream in the profile is one queue: AMD's profiles name hardware queues, and streams share
    these."""

    def add(self, numbers: Sequence[int], names: pa.Array | Sequence[str]) -> None:
        """Notes further names."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if not len(numbers):
            return
        texts = names if isinstance(names, pa.Array) else pa.array(names, pa.string())
        talks = pc.match_substring_regex(texts, COMMUNICATION_KERNEL, ignore_case=True)
        self.communicating.update(numbers[at] for at in pc.indices_nonzero(talks).to_pylist())
        self.in_order = self.in_order and not pc.any(pc.starts_with(texts, "hipLaunch")).as_py()


@dataclass(frozen=True, slots=True)
class _Suspect:
    """Work that overlaps later work of its stream."""

    piece: int
    row: int
    thread: int
    look: tuple[int | None, int, int | None]
    """Name, skeleton and bytes: work that has the same should last as long."""
    dur_ns: int
    until_next_ns: int
    """How long after its start the next work of its stream began that another call launched."""
    done_meanwhile: int
    """How many pieces of such work were done before it ended."""


def impossible_durations(work: Staged, kinds: Callable[[], NameKinds]) -> dict[int, pa.Array]:
    """The durations of those pieces of staged work that hold impossible ones, these clipped."""
    suspects = [one for thread in work.runs for one in _suspects(work, thread)]
    if not suspects:
        return {}
    known = kinds()
    suspects = [one for one in suspects if one.look[0] not in known.communicating]
    usual = _usual(work, {one.look for one in suspects})
    clips = {one: one.until_next_ns for one in suspects if known.in_order and _is_far(one, usual[one.look])}
    clips = _only_few(clips, work)
    for one in suspects:
        length = usual[one.look]
        if length is not None and (one in clips or _is_beyond(one, length)):
            clips[one] = length
    return _clipped(work, clips)


def _is_far(one: _Suspect, usual_ns: int | None) -> bool:
    if usual_ns is not None and one.dur_ns < LIKE_EQUALS * usual_ns:
        return False
    return one.done_meanwhile >= FAR_PIECES and one.dur_ns - one.until_next_ns >= FAR_NS


def _is_beyond(one: _Suspect, usual_ns: int) -> bool:
    return one.done_meanwhile >= EQUALS_PIECES and one.dur_ns >= BEYOND_EQUALS * max(1, usual_ns)


def _only_few(clips: dict[_Suspect, int], work: Staged) -> dict[_Suspect, int]:
    """Without those of streams that have too many."""
    threads = [one.thread for one in clips]
    rows = {thread: sum(work.rows_of(number) for number in _numbers(work, thread)) for thread in set(threads)}
    return {
        one: length
        for one, length in clips.items()
        if threads.count(one.thread) <= max(1, rows[one.thread] // FEW)
    }


def _numbers(work: Staged, thread: int) -> list[int]:
    """The pieces of one thread."""
    return [number for _, pieces in work.runs[thread] for number in pieces]


def _suspects(work: Staged, thread: int) -> Iterator[_Suspect]:
    """Long work of a stream that had not ended when the work after the next began."""
    places = [
        (number, row)
        for number in _numbers(work, thread)
        if work.longest_ns[number] >= LEAST_NS
        for row in _long_and_overlapping(work.piece(number, "start_ns", "dur_ns"))
    ]
    if len(places) > MOST_SUSPECTS:
        return
    for number, row in places:
        piece = work.piece(number)
        start, dur = piece["start_ns"][row].as_py(), piece["dur_ns"][row].as_py()
        later = [
            _done_meanwhile(work.piece(other, *_LINKED), start, start + dur, piece["correlation"][row])
            for other in _numbers(work, thread)
        ]
        done = sum(count for count, _ in later)
        if done >= EQUALS_PIECES:
            look = (piece["name"][row].as_py(), piece["skeleton"][row].as_py(), piece["bytes"][row].as_py())
            first = min(begun for count, begun in later if count)
            yield _Suspect(number, row, thread, look, dur, first - start, done)


def _long_and_overlapping(piece: pa.RecordBatch) -> list[int]:
    """Rows that last long and were not done when the second row after them began, or are the last two."""
    import pyarrow as pa
    import pyarrow.compute as pc

    ends = pc.add(piece["start_ns"], piece["dur_ns"])
    always = pa.nulls(min(2, piece.num_rows), pa.int64()).fill_null(-(2**63))
    begun = pa.concat_arrays([piece["start_ns"].slice(2), always])
    found = pc.and_(pc.greater_equal(piece["dur_ns"], LEAST_NS), pc.greater(ends, begun))
    rows: list[int] = pc.indices_nonzero(found.fill_null(False)).to_pylist()
    return rows


def _done_meanwhile(piece: pa.RecordBatch, start: int, end: int, correlation: Any) -> tuple[int, int]:
    """How many rows that another call launched ran between two instants, and when the first began."""
    import pyarrow.compute as pc

    starts = piece["start_ns"]
    if starts[-1].as_py() is None or starts[-1].as_py() <= start or (starts[0].as_py() or start) >= end:
        return 0, 0
    inside = pc.and_(pc.greater(starts, start), pc.less_equal(pc.add(starts, piece["dur_ns"]), end))
    if correlation.is_valid:
        inside = pc.and_(inside, pc.not_equal(piece["correlation"], correlation).fill_null(True))
    begun = starts.filter(inside)
    return len(begun), begun[0].as_py() if len(begun) else 0


def _usual(work: Staged, looks: set[Any]) -> dict[Any, int | None]:
    """How long work with these looks usually takes: the median; None with too few."""
    import pyarrow as pa
    import pyarrow.compute as pc

    columns = ["name", "skeleton", "bytes", "dur_ns"]
    names = pa.array([name for name, _, _ in looks], pa.int32())
    alike = (
        pa.concat_tables(
            pa.table({name: rows[name] for name in columns})
            for piece in work.pieces(*columns)
            if (rows := piece.filter(pc.is_in(piece["name"], names))).num_rows
        )
        if looks
        else pa.table({})
    )
    found: dict[Any, int | None] = {}
    for name, skeleton, size in looks:
        same = pc.and_(pc.equal(alike["name"], name), pc.equal(alike["skeleton"], skeleton))
        sizes = pc.is_null(alike["bytes"]) if size is None else pc.equal(alike["bytes"], size)
        durations = alike["dur_ns"].filter(pc.and_kleene(same, sizes)).drop_null()
        median = pc.quantile(durations, q=0.5, interpolation="lower")[0].as_py() if len(durations) else None
        found[name, skeleton, size] = median if len(durations) > EQUALS else None
    return found


def _clipped(work: Staged, clips: dict[_Suspect, int]) -> dict[int, pa.Array]:
    import pyarrow as pa
    import pyarrow.compute as pc

    found: dict[int, pa.Array] = {}
    for number in {one.piece for one in clips}:
        piece = work.piece(number)
        rows = sorted(
            (one.row, min(length, one.dur_ns)) for one, length in clips.items() if one.piece == number
        )
        places = pa.array([row for row, _ in rows], pa.int64())
        chosen = pc.is_in(pa.array(range(piece.num_rows), pa.int64()), places)
        lengths = pa.array([length for _, length in rows], pa.int64())
        found[number] = pc.replace_with_mask(piece["dur_ns"], chosen, lengths)
    return found
