"""The timeline of a trace at every width of a pixel: made once, then read in tiles.

A *track* is a thread of the host or a stream of a device; its *lanes* are rows of boxes that do not overlap:
on a host thread the nesting depth of calls (Python frames, operators, runtime calls and ranges together), on
a stream one lane, and more where work overlaps.

At level 0 every event is a box. At level k boxes are made for pixels of `WIDTH_NS * 4**(k - 1)` ns: an event
that is at least so long is a box of its own; shorter ones of a lane that begin in the same pixel are one box
that says how many they are, how long they are together, and the name that takes most of the time.

A tile is a track at one level for `TILE_PIXELS` pixels. Its bytes, little-endian, columns one after another
for n boxes (each column starts at a multiple of its size, because the wide ones come first):

    header    4 × uint32   n, lanes, level, 0
    start     float64      ns after the trace's base time
    dur       float64      ns; of a merged box from the first start to the last end in it
    busy      float64      ns in which one of its events runs; `dur` of a single event
    event     float64      the event's number; of a merged box that of its longest event
    name      uint32       row of `names`; of a merged box the name with the most time
    count     uint32       events in it; 1 is a single event
    lane      uint16
    kind      uint8        place in KINDS

Boxes are sorted by lane, then start. A box that reaches into the tile from the left is in it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from stepscope import _native, interrupts
from stepscope.errors import StepscopeError
from stepscope.memory import release_freed
from stepscope.records import dataclass
from stepscope.store.columns import view
from stepscope.store.layout import locked
from stepscope.store.sums import say
from stepscope.store.timeline_files import TILE_PIXELS, WIDTH_NS, kept, make_aside, make_in, was_kept
from stepscope.store.timeline_sweeps import KINDS, TrackSweeps
from stepscope.store.track_names import TrackName, track_names

if TYPE_CHECKING:
    from stepscope.store.trace import Trace
    from stepscope.streams import Progress

__all__ = [
    "KINDS",
    "TILE_PIXELS",
    "WIDTH_NS",
    "FoundEvent",
    "Timeline",
    "Track",
    "begin_timeline",
    "names_in_tile",
    "prepare_timeline",
    "tile_ns",
    "timeline_of",
]

Found = TypeVar("Found")

_TOP_LEVEL = 20
_DOING = "drawing the timeline"
_FAR = 2**62


def tile_ns(level: int) -> int:
    """How long a tile of a level is."""
    return WIDTH_NS * TILE_PIXELS << 2 * max(level - 1, 0)


def names_in_tile(tile: bytes) -> set[int]:
    """The numbers of the names that its boxes have."""
    boxes = int.from_bytes(tile[:4], "little")
    return set(memoryview(tile)[16 + 32 * boxes : 16 + 36 * boxes].cast("I"))


@dataclass(frozen=True, slots=True)
class Track:
    """A row of the timeline, before it is unfolded into its lanes."""

    id: int
    """The number of its thread in `threads`."""
    side: str
    """`host` or `device`."""
    group: str
    """The process or device that it belongs to, as people call it: `python (pid 4711)`, `GPU 0`."""
    label: str
    """`thread 4711`, `stream 7`."""
    lanes: int
    events: int
    first_ns: int
    last_ns: int
    done: bool = True
    """Whether all of it is made; until then the figures are what is known so far."""


class FoundEvent(NamedTuple):
    """An event that was searched for."""

    track: int
    event: int
    start_ns: int
    dur_ns: int
    name: int
    lane: int
    kind: int


class Timeline:
    """The tracks of a trace and their tiles, read from files that are not loaded as a whole.

    It is made in a thread of its own and can be read meanwhile: what is made so far is seen.
    """

    def __init__(self, trace: Trace, progress: Progress | None = None) -> None:
        self._trace = trace.reading(None)
        self._progress = progress
        self._names: dict[int, TrackName] = {}
        self._rows: dict[int, int] = {}
        self._starts = (0, 0)
        self._swept = 0
        self._file: _native.TimelineFile | None = None
        self._problem: Exception | None = None
        self._begun, self._whole = threading.Event(), threading.Event()
        self._making = threading.Lock()
        threading.Thread(target=self._open, name="timeline", daemon=True).start()

    @property
    def made(self) -> float:
        """The share of it that is made."""
        if self._whole.is_set():
            return 1.0
        return min(0.999, self._swept / max(1, sum(self._rows.values())))

    @property
    def span_ns(self) -> tuple[int, int]:
        """The first start and the last end, as far as known."""
        found = [(first, last) for _, done, _, events, first, last in self._told() if done and events]
        if not self._whole.is_set():
            found.append(self._starts)
        return (min(first for first, _ in found), max(last for _, last in found)) if found else (0, 0)

    @property
    def levels(self) -> int:
        """How many there are; at the last one the whole trace is narrower than a tile."""
        first, last = self.span_ns
        level = 1
        while level < _TOP_LEVEL and (WIDTH_NS * TILE_PIXELS) << (2 * level - 2) < last - first:
            level += 1
        return level + 1

    def wait(self) -> Timeline:
        """Returns when all of it is made; raises what went wrong."""
        self._whole.wait()
        self._told()
        return self

    def tracks(self) -> list[Track]:
        """Devices first, then threads of the host with the most events."""
        told = {track: about for track, *about in self._told()}
        found = []
        for track in {**self._rows, **told}:
            name = self._names[track]
            known = (track, name.side, name.group, name.label)
            done, lanes, events, first, last = told.get(track, (False, 0, 0, 0, 0))
            if not done:
                rows = self._rows.get(track, 0)
                found.append(Track(*known, max(1, lanes), rows, *self._starts, done=False))
            elif events:
                found.append(Track(*known, lanes, events, first, last))
        return sorted(
            found, key=lambda one: (one.side, one.group if one.side == "device" else "", -one.events)
        )

    def tile(self, track: int, level: int, index: int) -> bytes:
        """The boxes of a track at a level from pixel `index * TILE_PIXELS`; level 0 has tiles as level 1."""
        if not 0 <= level <= _TOP_LEVEL or abs(index) >= _FAR or not 0 <= track < 2**31:
            raise StepscopeError(f"there is no tile {track}:{level}:{index}", hint="see /api/tracks")
        return self._undamaged(lambda file: file.tile(track, level, index))

    def find(
        self, names: Sequence[int], after_ns: int, *, back: bool = False, event: int | None = None
    ) -> FoundEvent | None:
        """The next event with one of the names, or the one before, by start and then by number.

        It starts after the time; or, where an event is given that starts then, it comes after that one.
        """
        import pyarrow as pa

        wanted = view(pa.array(sorted(set(names)), pa.int64()))
        passed = -_FAR if back else _FAR
        place = min(max(passed if event is None else event, -_FAR), _FAR)
        time = min(max(after_ns, -_FAR), _FAR)
        found = self._undamaged(lambda file: file.find(wanted, time, place, back))
        return FoundEvent(*found) if found else None

    def _told(self) -> list[tuple[int, bool, int, int, int, int]]:
        return self._ready().tracks()

    def _undamaged(self, read: Callable[[_native.TimelineFile], Found]) -> Found:
        """Reads, if need be from a timeline that was made again."""
        file = self._ready()
        try:
            return read(file)
        except _native.TimelineDamaged:
            with self._making:
                if self._file is file:
                    self._make()
            return read(self._ready())

    def _ready(self) -> _native.TimelineFile:
        """The file, once there is one; raises what went wrong."""
        self._begun.wait()
        if self._problem or self._file is None:
            raise self._problem or StepscopeError("there is no timeline")
        return self._file

    # ------------------------------------------------ making

    def _open(self) -> None:
        try:
            self._names = _names_once(self._trace)
            with self._making:
                self._file = kept(self._trace.folder)
                if self._file is None:
                    self._make()
        except Exception as error:  # noqa: BLE001 - raised again where somebody asks
            interrupts.pass_on()
            self._problem = error
        finally:
            self._whole.set()
            self._begun.set()
            release_freed()
            if self._progress:
                self._progress(_DOING, 1.0, 0, 0)

    def _make(self) -> None:
        """In the store, or in a temporary place beside a read-only one."""
        self._trace.check_stored()  # what is made of damaged tables would be wrong for good
        folder, before = self._trace.folder, self._file
        try:
            with locked(folder):
                found = kept(folder) if before is None else None
                if found is not None:  # another process was faster
                    self._file = found
                    return
                if was_kept(folder):
                    say(f"the timeline of the store {folder} is damaged: it is made again")
                make_in(folder, self._fill)
        except OSError as refused:
            try:
                make_aside(self._fill)
            except OSError as error:
                raise StepscopeError(
                    f"no place for the timeline: {refused}; {error}",
                    hint="free some space, or set TMPDIR to a folder with space",
                ) from error

    def _fill(self, file: _native.TimelineFile) -> None:
        sweeps = TrackSweeps(self._trace)
        self._rows, self._starts, self._swept = sweeps.rows, sweeps.starts or (0, 0), 0
        self._file = file
        self._begun.set()
        # Devices are seen before all, then what is small where not all fits.
        order = sorted(self._rows, key=lambda track: self._rows[track])
        sides = ([track for track in order if self._names[track].side == side] for side in ("device", "host"))
        sweeps.sweep(file, list(sides), self._note)

    def _note(self, rows: int) -> None:
        self._swept += rows
        if self._progress:
            self._progress(_DOING, self.made, 0, self._swept)


def prepare_timeline(trace: Trace) -> None:
    """Works out what a timeline needs before its first track: of a large trace that takes about a second."""
    import pyarrow.compute
    import pyarrow.parquet  # noqa: F401 - takes time when it is first needed

    _names_once(trace.reading(None))


def _names_once(trace: Trace) -> dict[int, TrackName]:
    found: dict[int, TrackName] = trace.once("track names", lambda: track_names(trace))
    return found


def begin_timeline(trace: Trace, progress: Progress | None = None) -> Timeline:
    """The timeline of a trace, which may still be in the making."""
    found: Timeline = trace.once("timeline", lambda: Timeline(trace, progress))
    return found


def timeline_of(trace: Trace, progress: Progress | None = None) -> Timeline:
    """The timeline of a trace; it is made at the first time, and kept in the store."""
    return begin_timeline(trace, progress).wait()
