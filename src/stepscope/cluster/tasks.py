"""What a worker does for one rank: it is told names, paths and options, and gives bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

    from stepscope.runs import RankRecord
    from stepscope.tables import Table

__all__ = ["RankTask", "done", "read_table", "written_table"]

_NOTES = b"stepscope.notes"


@dataclass(frozen=True, slots=True)
class RankTask:
    """The summary of a rank, or one of its tables."""

    record: RankRecord
    source: str
    """Its profile: a path or URL, as the worker is to open it."""
    also: tuple[str, ...] = ()
    """Files whose rows are added to the profile."""
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


def done(task: RankTask) -> bytes:
    """Opens the store of the rank's profile, or makes it, and gives what was asked for."""
    from stepscope.opening import open_trace

    trace = open_trace(task.source, also=task.also, store=task.store)
    trace.measured = task.record.measured
    if task.table:
        return written_table(trace.table(task.table, **task.options))
    from stepscope.runs.summarizing import summarize
    from stepscope.runs.summary import written_summary

    return written_summary(summarize(trace, task.record))


def written_table(table: Table[Any]) -> bytes:
    """A table and its notes in Arrow's format for streams."""
    import pyarrow as pa

    told = table.arrow.replace_schema_metadata({_NOTES: json.dumps(table.notes).encode()})
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, told.schema, options=options) as writer:
        writer.write_table(told)
    return bytes(sink.getvalue())


def read_table(payload: bytes) -> tuple[pa.Table, tuple[str, ...]]:
    """The columns of a table that a worker gave, and its notes."""
    import pyarrow as pa

    with pa.ipc.open_stream(payload) as reader:
        found = reader.read_all()
    notes = json.loads((found.schema.metadata or {}).get(_NOTES, b"[]"))
    return found.replace_schema_metadata(None), tuple(notes)
