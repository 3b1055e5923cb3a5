"""A run on one clock: matched collectives and exposed communication, by the clock of the reference rank.

A match is looked at once more here: nobody leaves an all-reduce before the last one came. Where ranks did by
more than the clocks may be wrong, the calls are not one collective.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from stepscope.records import dataclass
from stepscope.runs.clock_fit import ClockFit, clock_fit
from stepscope.runs.many import ManyRanks
from stepscope.runs.matching import TOGETHER, MatchedGroup, matched
from stepscope.store.arrow_sql import ask
from stepscope.units import counted

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Aligned", "aligned", "on_one_clock", "reference_time"]


@dataclass(frozen=True)
class Aligned:
    """Tables of a run on the reference clock."""

    calls: pa.Table
    """All calls: number (NULL if unmatched), rank, call, step, kind, backend, gid, dtype, bytes, from_rank,
    to_rank, arrival_ns, end_ns (both on the reference clock), dur_ns, exposed_ns, stream, error_ns,
    matched_by."""
    collectives: pa.Table
    """A row for each number: step, kind, backend, gid, dtype, bytes, ranks, start_ns, last_arrival_ns,
    end_ns, last_rank, wait_ns, transfer_ns, error_ns, matched_by."""
    exposed: pa.Table
    """Exposed parts: rank, step, call, number (NULL if unmatched), start_ns (on the reference clock),
    wait_ns, transfer_ns, dur_ns."""
    fit: ClockFit
    groups: Mapping[int, MatchedGroup]
    shifts: Mapping[int, int]
    notes: tuple[str, ...]


def aligned(run: ManyRanks) -> Aligned:
    """The run on one clock, worked out once."""
    found: Aligned = run.once("aligned", lambda: _aligned(run))
    return found


def on_one_clock(run: ManyRanks) -> pa.Table:
    """For joins as k: the clocks of the ranks, and what to add to their step numbers, as `shift`."""
    found = aligned(run)
    return _with_shifts(found.fit.table, found.shifts)


def _with_shifts(clocks: pa.Table, shifts: Mapping[int, int]) -> pa.Table:
    import pyarrow as pa

    moved = [shifts.get(rank, 0) for rank in clocks["rank"].to_pylist()]
    return clocks.append_column("shift", pa.array(moved, pa.int64()))


def reference_time(column: str) -> str:
    """SQL for a local time on the reference clock, where the table of `ClockFit` is joined as k."""
    return f"({column} + k.offset_ns + round(k.drift * ({column} - k.since_ns))::BIGINT)"


def _aligned(run: ManyRanks) -> Aligned:
    found, fit = matched(run), clock_fit(run)
    clocks = fit.table
    rows = ask(_ON_ONE_CLOCK, rows=found.calls, clocks=clocks)
    wrong = ask(_IMPOSSIBLE, rows=rows, supposed=_supposed(found.groups))
    calls = ask(_NUMBERED, rows=rows, wrong=wrong)
    collectives = ask(_COLLECTIVES, calls=calls)
    exposed = ask(
        _EXPOSED,
        stretches=run.stacked("exposed"),
        calls=calls.select(["rank", "call", "number", "arrival_ns"]),
        lasts=collectives.select(["number", "last_arrival_ns"]),
        clocks=_with_shifts(clocks, found.shifts),
    )
    notes = [*run.notes, *found.notes, *fit.notes]
    if wrong.num_rows:
        notes.append(
            f"{counted(wrong.num_rows, 'collective')} left out: by the clocks, ranks left before others "
            "came. Their calls are not the same collective, or are of groups that no profile names."
        )
    return Aligned(calls, collectives, exposed, fit, found.groups, found.shifts, tuple(notes))


def _supposed(groups: Mapping[int, MatchedGroup]) -> pa.Table:
    """Groups whose ranks follow from their calls alone."""
    import pyarrow as pa

    gids = [gid for gid, one in groups.items() if not one.recorded and one.name is None]
    return pa.table({"gid": pa.array(gids, pa.int64())})


_ON_ONE_CLOCK = f"""
SELECT r.id, r.rank, r.call, r.step, r.kind, r.backend, r.gid, r.dtype, r.bytes, r.from_rank, r.to_rank,
       {reference_time("r.start_ns")} AS arrival_ns, {reference_time("(r.start_ns + r.dur_ns)")} AS end_ns,
       r.dur_ns, r.exposed_ns, r.stream, k.error_ns, k.part, r.matched_by
FROM rows r JOIN clocks k USING (rank)
"""
# Of a group whose match fails now and then, those times; of one where it often does, all that order tells.
# Who is in a group that no profile names must leave it together.
_IMPOSSIBLE = f"""
WITH met AS (
    SELECT id, gid, kind, matched_by, max(arrival_ns) - min(end_ns) AS early, min(dur_ns) AS shortest,
           max(end_ns) - min(end_ns) AS spread, 4 * max(error_ns) + 10000 AS unsure,
           min(part) <> max(part) AS apart
    FROM rows WHERE id IS NOT NULL GROUP BY id, gid, kind, matched_by),
judged AS (SELECT *, early > greatest(unsure, shortest // 2) AND kind IN {TOGETHER} AS wrong FROM met),
often AS (
    SELECT gid, kind, matched_by, avg(CASE WHEN wrong THEN 1 ELSE 0 END) AS share,
           kind IN {TOGETHER} AND gid IN (SELECT gid FROM supposed)
               AND median(spread) > greatest(20000, median(shortest) / 2) AS never
    FROM judged GROUP BY gid, kind, matched_by)
SELECT id FROM judged JOIN often USING (gid, kind, matched_by)
WHERE wrong OR apart OR never OR (matched_by = 'order' AND share > 0.2) ORDER BY id
"""
_NUMBERED = """
WITH kept AS (
    SELECT id, min(arrival_ns) AS start_ns FROM rows
    WHERE id IS NOT NULL AND id NOT IN (SELECT id FROM wrong) GROUP BY id),
numbers AS (SELECT id, row_number() OVER (ORDER BY start_ns, id) - 1 AS number FROM kept)
SELECT number, rows.* EXCLUDE (id) FROM rows LEFT JOIN numbers USING (id)
"""
_COLLECTIVES = """
WITH lasts AS (
    SELECT number, max(arrival_ns) AS last FROM calls WHERE number IS NOT NULL GROUP BY number)
SELECT number, quantile_disc(step, 0.5) AS step, any_value(kind) AS kind, min(backend) AS backend,
       any_value(gid) AS gid, min(dtype) AS dtype, max(bytes) AS bytes, count(*) AS ranks,
       min(arrival_ns) AS start_ns, any_value(last) AS last_arrival_ns, max(end_ns) AS end_ns,
       min(rank) FILTER (arrival_ns = last) AS last_rank, sum(last - arrival_ns)::BIGINT AS wait_ns,
       greatest(0, max(end_ns) - any_value(last)) AS transfer_ns, max(error_ns) AS error_ns,
       any_value(matched_by) AS matched_by
FROM calls JOIN lasts USING (number) GROUP BY number ORDER BY number
"""
_EXPOSED = f"""
WITH parts AS (
    SELECT p.rank, p.call, p.dur_ns, {reference_time("p.start_ns")} AS since,
           {reference_time("(p.start_ns + p.dur_ns)")} AS until, p.step + k.shift AS step
    FROM stretches p JOIN clocks k USING (rank)),
waits AS (
    SELECT p.rank, p.step, p.call, c.number, p.since, p.dur_ns,
           least(p.dur_ns, greatest(0, least(until, last_arrival_ns) - greatest(since, arrival_ns)))
               AS wait_ns
    FROM parts p LEFT JOIN calls c ON c.rank = p.rank AND c.call = p.call
        LEFT JOIN lasts l ON l.number = c.number)
SELECT rank, step, call, number, since AS start_ns, CASE WHEN number IS NOT NULL THEN wait_ns END AS wait_ns,
       CASE WHEN number IS NOT NULL THEN dur_ns - wait_ns END AS transfer_ns, dur_ns
FROM waits
"""
