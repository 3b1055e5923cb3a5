"""The sweep that makes a timeline: the events of each track in order of start, from all tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stepscope import _native
from stepscope.schema import COMMUNICATION_KERNEL, COPIES, FILLS, NOT_HOST
from stepscope.store.columns import view
from stepscope.store.sums import StoreFiles
from stepscope.store.tree import OPEN_RUNS, stretch
from stepscope.threads import BackgroundWorker

if TYPE_CHECKING:
    import pyarrow as pa

    from stepscope.store.trace import Trace

__all__ = ["KINDS", "TrackSweeps"]

KINDS = (
    "python_frame",
    "op",
    "launch",
    "annotation",
    "kernel",
    "copy",
    "fill",
    "communication",
    "other",
)
"""What a box can be; its colour is chosen by this and its name."""

_KIND = {name: place for place, name in enumerate(KINDS)}
_ONE_KIND = {"python_frames": "python_frame", "ops": "op", "launches": "launch", "collector_pauses": "other"}
_BY_SKELETON = ("annotations", "device_work", "other_events")
_LINKED = ("ops", "launches", "device_work")
"""Tables that `runs` does not tell of: they are written when all else has been read."""
_COLUMNS = ["event", "start_ns", "dur_ns", "name"]
_RANGES, _OTHERS = 16, 32  # groups of lanes of a device, beside its work; see native/timeline.hpp
_NO_BOX = 255
_FOREVER = 2**63 - 1


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Rows of one thread, sorted by time, in a row group."""

    table: str
    group: int
    first: int
    rows: int
    start: int


class TrackSweeps:
    """The events of a trace by track, and their sweeps."""

    def __init__(self, trace: Trace) -> None:
        import pyarrow.parquet as pq

        self._files = {
            name: pq.ParquetFile(trace.folder / f"{name}.parquet") for name in (*_ONE_KIND, *_BY_SKELETON)
        }
        self._kinds = _kinds_of(trace)
        self._stretches: defaultdict[int, list[_Stretch]] = defaultdict(list)
        _add_told(trace, self._files, self._stretches)
        for name in _LINKED:
            for group in range(self._files[name].num_row_groups):
                _add_found(self._files[name], name, group, self._stretches)

    @property
    def rows(self) -> dict[int, int]:
        """How many rows each track has; those without a duration are no events of it."""
        return {track: sum(one.rows for one in some) for track, some in self._stretches.items()}

    @property
    def starts(self) -> tuple[int, int] | None:
        """The first and the last start of all, as far as the files tell without being read."""
        found = []
        for file in self._files.values():
            place = file.schema_arrow.get_field_index("start_ns")
            for group in range(file.num_row_groups):
                told = file.metadata.row_group(group).column(place).statistics
                if told is not None and told.has_min_max:
                    found += [told.min, told.max]
        return (min(found), max(found)) if found else None

    def sweep(self, into: _native.TimelineFile, tracks: list[int], done: Callable[[int], None]) -> None:
        """Makes some tracks, one after the other; `done` is told the rows read."""
        with ExitStack() as closing:
            for file in self._files.values():
                closing.callback(file.close)
            reading = closing.enter_context(BackgroundWorker(ahead=OPEN_RUNS))
            for track in tracks:
                self._sweep_track(_native.TimelineSweep(into, self._kinds, track), track, reading, done)

    def _sweep_track(
        self,
        sweep: _native.TimelineSweep,
        track: int,
        reading: BackgroundWorker,
        done: Callable[[int], None],
    ) -> None:
        """Merges the stretches of a track; one is opened only when the sweep gets near its first event."""
        waiting = sorted(self._stretches[track], key=lambda one: one.start, reverse=True)
        pieces: dict[int, Iterator[Any]] = {}
        while True:
            hungry = sweep.advance(waiting[-1].start if waiting else _FOREVER)
            if hungry >= 0:
                piece = next(pieces[hungry], None)
                if piece is None:
                    sweep.end_run(hungry)
                    del pieces[hungry]
                else:
                    sweep.give(hungry, *piece)
                    done(len(piece[0][0]))
            elif waiting:
                pieces[sweep.add_run()] = reading.ahead(self._pieces(waiting.pop()))
            else:
                break
        sweep.finish()

    def _pieces(self, of: _Stretch) -> Iterator[tuple[list[memoryview], int, memoryview | None]]:
        told = of.table in _BY_SKELETON
        kind = _NO_BOX if told else _KIND[_ONE_KIND[of.table]]
        columns = [*_COLUMNS, "skeleton"] if told else _COLUMNS
        for piece in stretch(self._files[of.table], of.group, of.first, of.rows, columns):
            skeleton = view(piece["skeleton"]) if told else None
            yield [view(piece[name]) for name in _COLUMNS], kind, skeleton


def _kinds_of(trace: Trace) -> _native.TimelineKinds:
    """What events are, by their skeletons; communication is told by the names of kernels."""
    import pyarrow.compute as pc

    files = StoreFiles(trace.folder)
    skeletons = files.arrow("skeletons").read_all()
    columns = (skeletons[name].to_pylist() for name in ("id", "phase", "category", "stored_in"))
    of_skeleton = bytearray([_NO_BOX]) * (max(skeletons["id"].to_pylist(), default=-1) + 1)
    for number, phase, category, table in zip(*columns, strict=True):
        if phase == "X" and table in _BY_SKELETON:
            of_skeleton[number] = _kind_of(table, category)
    names = files.arrow("names").read_all()
    talks = pc.match_substring_regex(names["text"], COMMUNICATION_KERNEL, ignore_case=True)
    found = names["id"].filter(pc.fill_null(talks, fill_value=False)).to_pylist()
    communication = bytearray(max(found, default=-1) + 1)
    for number in found:
        communication[number] = 1
    return _native.TimelineKinds(bytes(of_skeleton), bytes(communication))


def _kind_of(table: str, category: str | None) -> int:
    if table == "device_work":
        return _KIND["copy" if category in COPIES else "fill" if category in FILLS else "kernel"]
    if table == "annotations":
        return _KIND["annotation"] + _RANGES * (category in NOT_HOST)
    return _KIND["other"] + _OTHERS * (category in NOT_HOST)


def _add_told(trace: Trace, files: dict[str, Any], found: defaultdict[int, list[_Stretch]]) -> None:
    """The stretches that the store lists."""
    stored = StoreFiles(trace.folder).arrow("runs").read_all()
    for name, group, thread, first, rows, start in zip(*(c.to_pylist() for c in stored.columns), strict=True):
        if name in files and name not in _LINKED:
            found[thread].append(_Stretch(name, group, first, rows, _native.NULL if start is None else start))


def _add_found(file: Any, name: str, group: int, found: defaultdict[int, list[_Stretch]]) -> None:
    """The stretches of a row group: they end where the thread changes, or time goes back."""
    import pyarrow.compute as pc

    columns = file.read_row_group(group, columns=["thread", "start_ns"])
    threads, starts = columns["thread"].combine_chunks(), columns["start_ns"].combine_chunks()
    starts = pc.fill_null(starts, fill_value=_native.NULL)
    changes = pc.or_(pc.not_equal(threads[1:], threads[:-1]), pc.less(starts[1:], starts[:-1]))
    begins = [0, *_places(changes)]
    for first, end in zip(begins, [*begins[1:], len(threads)], strict=True):
        one = _Stretch(name, group, first, end - first, starts[first].as_py())
        found[threads[first].as_py()].append(one)


def _places(changes: pa.Array) -> list[int]:
    import pyarrow.compute as pc

    return [place + 1 for place in pc.indices_nonzero(changes).to_pylist()]
