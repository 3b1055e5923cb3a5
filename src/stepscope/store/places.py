"""Where an event is: which stretch of which table holds it, and what lies around it.

Tables are sorted by thread and time, and questions about one event come with its number alone. An index of
all stretches (a row group's rows of one thread) says of each from which to which number, start and end its
events go. It is small, is made once for an open trace by reading four columns, and leaves a row group or two
to look into, whatever the size of the trace.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from stepscope.errors import StepscopeError
from stepscope.records import dataclass
from stepscope.schema import NOT_HOST, STORED
from stepscope.store.tree import host_skeletons

if TYPE_CHECKING:
    import pyarrow as pa

    from stepscope.store.trace import Trace

__all__ = ["HOST_EVENTS", "HOST_TABLES", "EventPlaces", "Place", "places_of"]

HOST_TABLES = ("python_frames", "ops", "launches", "annotations", "other_events")
"""The tables of what nests on the threads of the host."""
_TABLES = tuple(table.name for table in STORED)
_MIXED = ("annotations", "other_events")
"""Tables that hold events of the host and of devices."""
_KEPT = 24
"""So many row groups of a few columns are held: some 4 MB each."""
_OF_HOST = (
    "SELECT id FROM stored.skeletons WHERE phase = 'X' "
    f"AND (category IS NULL OR category NOT IN ({', '.join(repr(one) for one in NOT_HOST)}))"
)
HOST_EVENTS = "host_events AS ({})".format(
    " UNION ALL ".join(
        f"SELECT event, thread, name, start_ns, dur_ns, {number} AS stored_in FROM stored.{table}"
        + (f" WHERE skeleton IN ({_OF_HOST})" if table in _MIXED else "")
        for number, table in enumerate(HOST_TABLES)
    )
)
"""SQL of a table with all events that nest on threads of the host; `stored_in` is a place in HOST_TABLES."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where an event is stored, and when it was."""

    event: int
    table: str
    thread: int
    start_ns: int | None


class EventPlaces:
    """The stretches of a trace's tables."""

    def __init__(self, trace: Trace) -> None:
        import pyarrow as pa

        trace.check_stored()  # the files are read here without asking the database
        self._folder = trace.folder
        self._files: dict[str, Any] = {}
        self._kept: dict[tuple[str, int, tuple[str, ...]], pa.Table] = {}
        self._reading = threading.Lock()
        self._host = host_skeletons(trace.folder)
        found = [
            part
            for name in _TABLES
            if trace.has(name)
            for group in range(self._file(name).num_row_groups)
            for part in [self._summed(name, group)]
        ]
        self._stretches: pa.Table | None = pa.concat_tables(found).combine_chunks() if found else None

    def of(self, event: int, tables: tuple[str, ...] = _TABLES) -> Place:
        """The place of an event; an error for a number that no event has."""
        found = self.known(event, tables)
        if found is None:
            raise StepscopeError(
                f"there is no event {event}", hint="events are numbered as in the profile, from 0"
            )
        return found

    def known(self, event: int | None, tables: tuple[str, ...] = _TABLES) -> Place | None:
        """The same; None for a number that no event of these tables has."""
        import pyarrow.compute as pc

        if event is None or self._stretches is None or not 0 <= event < 2**63:
            return None
        rows = self._stretches
        may = pc.and_(pc.less_equal(rows["event_min"], event), pc.greater_equal(rows["event_max"], event))
        for table, group in _groups(rows.filter(may)):
            if table not in tables:
                continue
            with self._reading:
                whole = self._read(table, group, ("event", "thread", "start_ns"))
            row = pc.index(whole["event"], event).as_py()
            if row >= 0:
                return Place(event, table, whole["thread"][row].as_py(), whole["start_ns"][row].as_py())
        return None

    def around(self, thread: int, start_ns: int, end_ns: int) -> list[dict[str, Any]]:
        """The host's events of a thread that last from `start_ns` or before to `end_ns` or after.

        The outermost comes first. A row has event, name (its number), start_ns, dur_ns and table.
        """
        import pyarrow.compute as pc

        if self._stretches is None:
            return []
        rows = self._stretches
        may = pc.and_(
            pc.less_equal(rows["start_ns_min"], start_ns), pc.greater_equal(rows["end_max"], end_ns)
        )
        found: list[dict[str, Any]] = []
        with self._reading:
            for table, group in _groups(rows.filter(pc.and_(may, pc.equal(rows["thread"], thread)))):
                if table in HOST_TABLES:
                    found += self._open(table, group, thread, start_ns, end_ns)
        return sorted(found, key=lambda one: (one["start_ns"], -one["dur_ns"], one["event"]))

    def threads_between(self, start_ns: int, end_ns: int) -> list[int]:
        """The threads that may have host events there, those with the most first."""
        import pyarrow.compute as pc

        if self._stretches is None:
            return []
        rows = self._stretches
        may = pc.and_(pc.less(rows["start_ns_min"], end_ns), pc.greater(rows["end_max"], start_ns))
        host = pc.is_in(rows["table"], _texts(HOST_TABLES))
        here = rows.filter(pc.and_(may, host)).group_by("thread").aggregate([("event_count", "sum")])
        order = [("event_count_sum", "descending"), ("thread", "ascending")]
        found: list[int] = here.sort_by(order)["thread"].to_pylist()
        return found

    def rows_between(self, thread: int, start_ns: int, end_ns: int) -> int:
        """About so many host events of a thread begin there: those of the stretches that lie in it."""
        import pyarrow.compute as pc

        if self._stretches is None:
            return 0
        rows = self._stretches
        may = pc.and_(pc.greater_equal(rows["start_ns_min"], start_ns), pc.less(rows["start_ns_max"], end_ns))
        here = rows.filter(pc.and_(may, pc.equal(rows["thread"], thread)))
        return int(pc.sum(here["event_count"]).as_py() or 0)

    def _open(self, table: str, group: int, thread: int, start_ns: int, end_ns: int) -> list[dict[str, Any]]:
        import pyarrow.compute as pc

        columns = ["event", "name", "thread", "start_ns", "dur_ns"]
        columns += ["skeleton"] if table in _MIXED else []
        whole = self._read(table, group, tuple(columns))
        wide = pc.and_(
            pc.less_equal(whole["start_ns"], start_ns),
            pc.greater_equal(pc.add(whole["start_ns"], whole["dur_ns"]), end_ns),
        )
        rows = whole.filter(pc.and_(wide, pc.equal(whole["thread"], thread)))
        if table in _MIXED:
            rows = rows.filter(pc.is_in(rows["skeleton"], self._host))
        kept = rows.select(["event", "name", "start_ns", "dur_ns"]).to_pylist()
        return [{**row, "table": table} for row in kept]

    def _read(self, table: str, group: int, columns: tuple[str, ...]) -> pa.Table:
        """Columns of a row group; the last few stay, for one looks at events that are near each other."""
        key = (table, group, columns)
        found = self._kept.pop(key, None)
        if found is None:
            found = self._file(table).read_row_group(group, columns=list(columns))
        self._kept[key] = found
        if len(self._kept) > _KEPT:
            del self._kept[next(iter(self._kept))]
        return found

    def _file(self, name: str) -> Any:
        import pyarrow.parquet as pq

        if name not in self._files:
            self._files[name] = pq.ParquetFile(self._folder / f"{name}.parquet")
        return self._files[name]

    def _summed(self, table: str, group: int) -> pa.Table:
        """The stretches of one row group, one for each thread in it."""
        import pyarrow as pa
        import pyarrow.compute as pc

        columns = ["event", "thread", "start_ns", "dur_ns"]
        rows = self._file(table).read_row_group(group, columns=columns)
        # Times at the end of what a number can hold are believed to be no longer than that.
        dur = pc.min_element_wise(
            pc.fill_null(rows["dur_ns"], 0), pc.subtract(2**62, pc.abs(rows["start_ns"]))
        )
        rows = rows.append_column("end", pc.add(rows["start_ns"], dur))
        figures = [("event", "min"), ("event", "max"), ("event", "count")]
        figures += [("start_ns", "min"), ("start_ns", "max"), ("end", "max")]
        summed = rows.group_by("thread").aggregate(figures)
        return summed.append_column(
            "group", pa.repeat(pa.scalar(group, pa.int64()), summed.num_rows)
        ).append_column("table", pa.repeat(pa.scalar(table), summed.num_rows))


def _texts(texts: tuple[str, ...]) -> pa.Array:
    """Texts for Arrow."""
    import pyarrow as pa

    return pa.array(texts, pa.string())


def _groups(rows: pa.Table) -> list[tuple[str, int]]:
    """The row groups that some stretches are in."""
    return sorted(set(zip(rows["table"].to_pylist(), rows["group"].to_pylist(), strict=True)))


def places_of(trace: Trace) -> EventPlaces:
    """The index of a trace, made once."""
    found: EventPlaces = trace.once("places of events", lambda: EventPlaces(trace))
    return found
