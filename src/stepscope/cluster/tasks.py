"""What a worker does for one rank: it is told names, paths and options, and gives bytes."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.errors import StepscopeError
from stepscope.records import dataclass
from stepscope.runs.needs import needed_by_analysis
from stepscope.store import cache
from stepscope.tables import Table

if TYPE_CHECKING:
    from stepscope.runs import Pass, RankRecord
    from stepscope.store.trace import Trace

__all__ = ["RankTask", "done", "read_table", "written_table"]

_NOTES, _ROW = b"stepscope.notes", b"stepscope.row"
_TIDY = 32


@dataclass(frozen=True, slots=True)
class RankTask:
    """The summary of a rank, or one of its tables."""

    record: RankRecord
    """The rank: where its profiles lie, and what the capture wrote about it."""
    store: str | None = None
    """Where stores are kept; None for the cache of whoever does it."""
    table: str = ""
    """The analysis that is asked for; empty for the summary."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the analysis."""

    @property
    def rank(self) -> int:
        """The rank that it is about."""
        return self.record.rank

    @property
    def passes(self) -> tuple[Pass, ...]:
        """The profiles that it reads: for a table one of them, the full one if only that can tell."""
        if not self.table:
            return () if self.record.summaries else self.record.spans
        full = self.record.named("full") if needed_by_analysis(self.table, self.options) else None
        return (full,) if full else self.record.spans[-1:]

    @property
    def sources(self) -> tuple[str, ...]:
        """All files and addresses that it reads."""
        summaries = () if self.table else self.record.summaries
        beside = dict.fromkeys(word for one in self.passes for word in self.record.also(one))
        return (*summaries, *(one.word for one in self.passes), *beside)

    @property
    def source(self) -> str:
        """The first of them."""
        return next(iter(self.sources), "")


_stores_made = [0]


def done(task: RankTask) -> bytes:
    """Opens the store of the rank's profile, or makes it, and gives what was asked for."""
    if task.table:
        if not task.passes:
            raise StepscopeError(f"rank {task.rank} has a summary and no profile", hint="take another rank")
        return written_table(_opened(task, task.passes[0]).table(task.table, **task.options))
    from stepscope.runs.summarizing import summary_of
    from stepscope.runs.summary import written_summary

    return written_summary(summary_of(task.record, lambda one: _opened(task, one)))


def _opened(task: RankTask, one: Pass) -> Trace:
    """The trace of a profile. The cache is tidied now and then, not for each of a thousand ranks."""
    from stepscope.opening import open_trace

    where = Path(task.store) if task.store else cache.root()
    trace = open_trace(one.word, also=task.record.also(one), store=where)
    trace.measured = task.record.measured
    _stores_made[0] += 1
    if task.store is None and _stores_made[0] % _TIDY == 0:
        cache.evict(where, keep=trace.folder)
    return trace


def written_table(table: Table[Any]) -> bytes:
    """A table, its notes and what its rows are called, in Arrow's format for streams."""
    import pyarrow as pa

    told = {_NOTES: json.dumps(table.notes).encode(), _ROW: table.row.__name__.encode()}
    arrow = table.arrow.replace_schema_metadata(told)
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, arrow.schema, options=options) as writer:
        writer.write_table(arrow)
    return bytes(sink.getvalue())


def read_table(payload: bytes, row: type) -> Table[Any]:
    """A table that was written; its rows are of that class, or of one that an option adds columns to."""
    import pyarrow as pa

    with pa.ipc.open_stream(payload) as reader:
        found = reader.read_all()
    told = found.schema.metadata or {}
    name = told.get(_ROW, b"").decode()
    kind = row if name == row.__name__ else vars(sys.modules[row.__module__]).get(name)
    if not isinstance(kind, type) or not issubclass(kind, row):
        raise TypeError(f"rows of the kind {name!r} are none of {row.__name__}")
    return Table(kind, found.replace_schema_metadata(None), json.loads(told.get(_NOTES, b"[]")))
