"""The sweep that makes a timeline: the events of each track in order of start, from all tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from stepscope import _native
from stepscope.schema import COMMUNICATION_KERNEL, COPIES, FILLS, NOT_HOST
from stepscope.store.columns import view
from stepscope.store.stretches import Stretch, merge_runs, read_stretch, stretches_by_thread
from stepscope.store.sums import StoreFiles
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


class TrackSweeps:
    """The events of a trace by track, and their sweeps."""

    def __init__(self, trace: Trace) -> None:
        import pyarrow.parquet as pq

        self._files = {
            name: pq.ParquetFile(trace.folder / f"{name}.parquet") for name in (*_ONE_KIND, *_BY_SKELETON)
        }
        self._kinds = _kinds_of(trace)
        self._stretches = stretches_by_thread(trace.folder, self._files)

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
        """Merges the stretches of a track."""

        def opened(stretch: Stretch) -> tuple[int, Iterator[Any]]:
            return sweep.add_run(), reading.ahead(self._pieces(stretch))

        def given(piece: Any) -> None:
            if piece is not None:
                done(len(piece[0][0]))

        merge_runs(sweep, self._stretches[track], opened, given)
        sweep.finish()

    def _pieces(self, of: Stretch) -> Iterator[tuple[list[memoryview], int, memoryview | None]]:
        told = of.table in _BY_SKELETON
        kind = _NO_BOX if told else _KIND[_ONE_KIND[of.table]]
        columns = [*_COLUMNS, "skeleton"] if told else _COLUMNS
        for piece in read_stretch(self._files[of.table], of, columns):
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
