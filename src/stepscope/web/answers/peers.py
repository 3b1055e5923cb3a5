"""A collective on all of its ranks: who came when, and which event it is on each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stepscope.analyses._event_rows import Ref, reference, row_at, rows_at
from stepscope.runs.aligned import aligned
from stepscope.runs.matching import matched
from stepscope.store.arrow_sql import ask
from stepscope.store.places import places_of
from stepscope.web.numbers import whole

if TYPE_CHECKING:
    from stepscope.runs.many import ManyRanks
    from stepscope.store.trace import Trace
    from stepscope.web.opened import Opened

__all__ = ["peers"]

_MOST = 64
_TABLES = ("device_work", "annotations", "ops", "other_events")
"""Where a collective is recorded: as a kernel, or as a range of the host."""
_TOGETHER = """
    WITH known AS (
        SELECT number, rank, kind, bytes, arrival_ns, m.start_ns, m.dur_ns
        FROM calls c JOIN (SELECT rank, call, start_ns, dur_ns FROM matched) m USING (rank, call)
        WHERE number IS NOT NULL)
    SELECT rank, kind, bytes, start_ns, dur_ns, max(arrival_ns) OVER () - arrival_ns AS wait_ns
    FROM known
    WHERE number = (SELECT number FROM known
                    WHERE rank = $rank AND start_ns = $start_ns AND dur_ns = $dur_ns LIMIT 1)
    ORDER BY arrival_ns, rank
"""


def peers(opened: Opened, given: Mapping[str, str]) -> dict[str, Any]:
    """The ranks that did the collective of an `event` together, by arrival, and how long each waited.

    Of those in `shown`, which are open, it tells the event, too. No ranks: the event is no collective that
    could be matched.
    """
    key = opened.trace(given.get("trace")).key
    if opened.many is None:
        return {"ranks": [], "count": 0}
    rows = _together(opened.many, key, opened.trace(key).trace, whole(given, "event"))
    shown = {key, *given.get("shown", "").split(",")}
    told = [row for place, row in enumerate(rows) if place < _MOST or f"rank{row['rank']}" in shown]
    ranks = []
    for row in told:
        rank = f"rank{row['rank']}"
        ref = _recorded(opened.trace(rank).trace, row) if rank in shown else None
        ranks.append({"key": rank, "wait_ns": row["wait_ns"], "dur_ns": row["dur_ns"], "event": ref})
    return {
        "kind": rows[0]["kind"] if rows else None,
        "bytes": rows[0]["bytes"] if rows else None,
        "ranks": ranks,
        "count": len(rows),
    }


def _together(run: ManyRanks, key: str, trace: Trace, event: int) -> list[dict[str, Any]]:
    row = row_at(trace, places_of(trace).of(event))
    if row["start_ns"] is None or row["dur_ns"] is None:
        return []
    wanted = {
        "rank": int(key.removeprefix("rank")),
        "start_ns": trace.meta.base_ns + row["start_ns"],
        "dur_ns": row["dur_ns"],
    }
    found = ask(_TOGETHER, wanted, calls=aligned(run).calls, matched=matched(run).calls)
    rows: list[dict[str, Any]] = found.to_pylist()
    return rows


def _recorded(trace: Trace, row: Mapping[str, Any]) -> Ref | None:
    """The event of a call on its rank."""
    where = "t.start_ns = $start_ns AND t.dur_ns = $dur_ns"
    wanted = {"start_ns": row["start_ns"] - trace.meta.base_ns, "dur_ns": row["dur_ns"]}
    for table in _TABLES:
        if trace.has(table) and (found := rows_at(trace, table, where, **wanted)):
            best = max(found, key=lambda one: reference(one)["kind"] == "communication")
            return reference(best)
    return None
