"""What host threads did, instant by instant, as far as the kinds of their events tell."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from stepscope import _native
from stepscope.schema import COMMUNICATION_RANGE, DATALOADER_RANGE, NOT_HOST
from stepscope.store.columns import view
from stepscope.store.stretches import read_stretch, stretches_by_thread

if TYPE_CHECKING:
    from stepscope.store.trace import Trace

__all__ = ["ALLOCATION", "WAIT", "HostKind", "host_time"]


class HostKind(StrEnum):
    """In this order: an instant belongs to the first of which an event is open."""

    DATALOADER = "dataloader"
    SYNCHRONISING_CALL = "synchronising call"
    ALLOCATION_CALL = "allocation call"
    RUNTIME_CALL = "other runtime call"
    OP = "host op"
    COMMUNICATION = "host communication"
    PYTHON = "Python between ops"


_DATALOADER, WAIT, ALLOCATION, _RUNTIME, _OP, _COMMUNICATION, _PYTHON = range(len(HostKind))

# Ranges are Python, for someone's code opened them, but for those whose names say that they load data or that
# libraries of the host talk to other ranks in them. These may be in whatever table.
_EVENTS = f"""
    WITH told AS (
             SELECT id, {_DATALOADER} AS meaning FROM stored.names
             WHERE regexp_matches(text, '{DATALOADER_RANGE}')
             UNION ALL
             SELECT id, {_COMMUNICATION} FROM stored.names
             WHERE regexp_matches(text, '{COMMUNICATION_RANGE}')),
         host AS (SELECT id FROM stored.skeletons
                  WHERE phase = 'X' AND (category IS NULL OR NOT list_contains($not_host, category))),
         wanted AS (SELECT unnest($threads::INT[]) AS thread),
         ranged AS (
             SELECT thread, start_ns, dur_ns, name, {_PYTHON} AS kind
             FROM stored.annotations SEMI JOIN host ON skeleton = id
             UNION ALL
             SELECT thread, start_ns, dur_ns, name, {_OP} FROM stored.ops
             UNION ALL
             SELECT thread, start_ns, dur_ns, name, NULL
             FROM stored.other_events SEMI JOIN host ON skeleton = id),
         events AS (
             SELECT r.thread, r.start_ns, r.dur_ns, coalesce(t.meaning, r.kind) AS kind
             FROM ranged r LEFT JOIN told t ON t.id = r.name WHERE coalesce(t.meaning, r.kind) IS NOT NULL
             UNION ALL
             SELECT thread, start_ns, dur_ns, {_RUNTIME} FROM stored.launches)
    SELECT thread, start_ns + $base AS start_ns, dur_ns, kind::BIGINT AS kind
    FROM events SEMI JOIN wanted USING (thread) WHERE dur_ns > 0
"""


def host_time(
    trace: Trace, threads: Collection[int], given_by: Mapping[int, int], windows: tuple[list[int], list[int]]
) -> _native.HostTime:
    """What some threads did inside the windows, all in ns since the epoch.

    Which runtime calls wait and which allocate is for the caller to add; then it is to be built.
    """
    found = _native.HostTime(*windows)
    for thread in threads:
        if thread in given_by:
            found.hand(thread, given_by[thread])
    wanted = sorted({*threads, *(given_by[thread] for thread in threads if thread in given_by)})
    given: dict[str, Any] = {"threads": wanted, "not_host": list(NOT_HOST), "base": trace.meta.base_ns}
    for batch in trace.reading(None).batches(_EVENTS, **given):
        found.add(*(view(column) for column in batch.columns))
    _add_frames(trace, found, wanted)
    return found


def _add_frames(trace: Trace, found: _native.HostTime, threads: Collection[int]) -> None:
    """Adds the Python frames: mostly more than all other events, so they are read as they lie."""
    import pyarrow.parquet as pq

    if not trace.has("python_frames"):
        return
    trace.check_stored(["python_frames"])
    stretches = stretches_by_thread(trace.folder, ("python_frames",))
    with pq.ParquetFile(trace.folder / "python_frames.parquet") as file:
        for thread in threads:
            for one in stretches.get(thread, ()):
                for piece in read_stretch(file, one, ["start_ns", "dur_ns"]):
                    times = view(piece["start_ns"]), view(piece["dur_ns"])
                    found.add_of_thread(thread, *times, _PYTHON, trace.meta.base_ns)
