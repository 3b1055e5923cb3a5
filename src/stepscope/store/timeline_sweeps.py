"""The sweep that makes a timeline: the events of each track in order of start, from all tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from heapq import heappop, heappush
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from stepscope import _native
from stepscope.schema import COMMUNICATION_KERNEL, COPIES, FILLS, NOT_HOST
from stepscope.store.columns import view
from stepscope.store.stretches import Stretch, merge_runs, read_stretch, stretches_by_thread
from stepscope.store.tree import OPEN_RUNS
from stepscope.threads import BackgroundWorker

if TYPE_CHECKING:
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
_COLUMNS = ["event", "start_ns", "dur_ns", "name"]
_RANGES, _OTHERS = 16, 32  # groups of lanes of a device, beside its work; see native/timeline.hpp
_NO_BOX = 255
_FOREVER = (1 << 63) - 1
_OPEN_GROUPS = 16
"""So many row groups are held at a time, up to 6 MB each."""
_READ_BYTES = 1 << 16
"""So much of a column is read at once: where many row groups are open, their columns do not lie in memory."""
_HELD_ROWS = 1 << 19
"""So many rows of a track are held at a time where more row groups have to be open, and as many ahead."""
_FEWEST_ROWS = 1 << 12
"""So many of a row group are; to read 60 million events in no order at all takes 0.5 GB then."""
_LANES = 3 * 4096
"""So many a track has at most; see native/timeline.hpp."""
_MOST_LANES = 8 * _LANES
"""So many are merged at a time at most, 4 kB each."""

_Given = tuple[list[memoryview], int, memoryview | None]
"""Columns of rows, and what they are: all the same, or by their skeletons."""


class _RowGroup(NamedTuple):
    """A row group, and where the rows of some tracks lie in it."""

    first: int
    """When the first of these rows starts."""
    last: int
    """When the last row of the group starts."""
    table: str
    number: int
    of: list[tuple[int, Stretch]]


class TrackSweeps:
    """The events of a trace by track, and their sweeps."""

    def __init__(self, trace: Trace) -> None:
        import pyarrow.parquet as pq

        self._files = {
            name: pq.ParquetFile(trace.folder / f"{name}.parquet", pre_buffer=False, buffer_size=_READ_BYTES)
            for name in (*_ONE_KIND, *_BY_SKELETON)
        }
        self._kinds = _kinds_of(trace)
        self._starts = dict(_starts_told(self._files))
        self._stretches = stretches_by_thread(trace.folder, self._files)
        self.rows = {track: sum(one.rows for one in some) for track, some in self._stretches.items()}
        """How many rows each track has; those without a duration are no events of it."""

    @property
    def starts(self) -> tuple[int, int] | None:
        """The first and the last start of all, as far as the files tell without being read."""
        told = self._starts.values()
        return (min(first for first, _ in told), max(last for _, last in told)) if told else None

    def sweep(self, into: _native.TimelineFile, order: list[list[int]], done: Callable[[int], None]) -> None:
        """Makes some tracks after others; `done` is told the rows read."""
        with ExitStack() as closing:
            for file in self._files.values():
                closing.callback(file.close)
            reading = closing.enter_context(BackgroundWorker(ahead=OPEN_RUNS))
            mergers = _native.LaneMergers(into, sum(self.rows.values()))
            for tracks in order:
                self._sweep_some(tracks, mergers, reading, done)
            mergers.finish()

    def _sweep_some(
        self,
        tracks: list[int],
        mergers: _native.LaneMergers,
        reading: BackgroundWorker,
        done: Callable[[int], None],
    ) -> None:
        """Together, so that each row group is read once; in halves where too much would be held at a time."""
        groups = self._row_groups(tracks)
        lanes = sum(min(self.rows[track], _LANES) for track in tracks)
        if _open_at_once(groups) <= _OPEN_GROUPS and lanes <= _MOST_LANES:
            self._sweep_together(groups, mergers, reading, done)
        elif len(tracks) == 1:
            sweep = _native.TimelineSweep(mergers, self._kinds, tracks[0])
            self._sweep_alone(sweep, groups, reading, done)
        else:
            half = len(tracks) // 2
            self._sweep_some(tracks[:half], mergers, reading, done)
            self._sweep_some(tracks[half:], mergers, reading, done)

    def _row_groups(self, tracks: list[int]) -> list[_RowGroup]:
        """The row groups that have rows of some tracks, by start."""
        found: defaultdict[tuple[str, int], list[tuple[int, Stretch]]] = defaultdict(list)
        for track in tracks:
            for one in self._stretches[track]:
                found[one.table, one.group].append((track, one))
        groups = []
        for (table, number), of in found.items():
            first = min(one.start for _, one in of)
            _, last = self._starts.get((table, number), (first, first))
            groups.append(_RowGroup(first, last, table, number, of))
        return sorted(groups, key=lambda group: group.first)

    def _sweep_together(
        self,
        groups: list[_RowGroup],
        mergers: _native.LaneMergers,
        reading: BackgroundWorker,
        done: Callable[[int], None],
    ) -> None:
        """Gives all rows of a group to their tracks, which go on as far as their next rows allow."""
        starts: defaultdict[int, list[int]] = defaultdict(list)
        for group in groups:
            for track, one in group.of:
                starts[track].append(one.start)
        sweeps = {track: _native.TimelineSweep(mergers, self._kinds, track) for track in starts}
        until = {
            track: list(accumulate(reversed(some[1:]), min, initial=_FOREVER))
            for track, some in starts.items()
        }
        for given in reading.ahead(self._whole(group) for group in groups):
            for track, rows in given:
                sweep = sweeps[track]
                run = sweep.add_run()
                sweep.give(run, *rows)
                sweep.end_run(run)
                sweep.advance(until[track].pop())
                if not until[track]:
                    sweeps.pop(track).finish()
            done(sum(len(columns[0]) for _, (columns, _, _) in given))

    def _whole(self, group: _RowGroup) -> list[tuple[int, _Given]]:
        rows = self._files[group.table].read_row_group(
            group.number, columns=_columns_of(group.table), use_threads=False
        )
        columns, kind, skeleton = _given(group.table, rows)
        found = []
        for track, one in group.of:
            part = slice(one.first, one.first + one.rows)
            found.append((track, ([c[part] for c in columns], kind, skeleton[part] if skeleton else None)))
        return found

    def _sweep_alone(
        self,
        sweep: _native.TimelineSweep,
        groups: list[_RowGroup],
        reading: BackgroundWorker,
        done: Callable[[int], None],
    ) -> None:
        """Merges the stretches of one track, of which no more than a piece each is held."""
        rows = max(_FEWEST_ROWS, _HELD_ROWS // _open_at_once(groups))

        def pieces(of: Stretch) -> Iterator[_Given]:
            for piece in read_stretch(self._files[of.table], of, _columns_of(of.table), rows):
                yield _given(of.table, piece)

        def opened(stretch: Stretch) -> tuple[int, Iterator[Any]]:
            return sweep.add_run(), reading.ahead(pieces(stretch))

        def given(piece: Any) -> None:
            if piece is not None:
                done(len(piece[0][0]))

        merge_runs(sweep, [one for group in groups for _, one in group.of], opened, given)
        sweep.finish()


def _starts_told(files: dict[str, Any]) -> Iterator[tuple[tuple[str, int], tuple[int, int]]]:
    """The first and the last start in each row group of each table, where any row has one."""
    for name, file in files.items():
        place, about = file.schema_arrow.get_field_index("start_ns"), file.metadata
        for group in range(about.num_row_groups):
            told = about.row_group(group).column(place).statistics
            if told is not None and told.has_min_max:
                yield (name, group), (told.min, told.max)


def _columns_of(table: str) -> list[str]:
    return [*_COLUMNS, "skeleton"] if table in _BY_SKELETON else _COLUMNS


def _given(table: str, rows: Any) -> _Given:
    told = table in _BY_SKELETON
    kind = _NO_BOX if told else _KIND[_ONE_KIND[table]]
    return [view(rows[name]) for name in _COLUMNS], kind, view(rows["skeleton"]) if told else None


def _open_at_once(groups: list[_RowGroup]) -> int:
    """How many row groups have rows that are not swept yet, at most."""
    ends: list[int] = []
    most = 0
    for group in groups:
        while ends and ends[0] < group.first:
            heappop(ends)
        heappush(ends, group.last)
        most = max(most, len(ends))
    return most


def _kinds_of(trace: Trace) -> _native.TimelineKinds:
    """What events are, by their skeletons; communication is told by the names of kernels."""
    import pyarrow.compute as pc

    skeletons = trace.dictionary("skeletons")
    columns = (skeletons[name].to_pylist() for name in ("id", "phase", "category", "stored_in"))
    of_skeleton = bytearray([_NO_BOX]) * (max(skeletons["id"].to_pylist(), default=-1) + 1)
    for number, phase, category, table in zip(*columns, strict=True):
        if phase == "X" and table in _BY_SKELETON:
            of_skeleton[number] = _kind_of(table, category)
    names = trace.dictionary("names")
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
