"""How late the last rank of each collective was, what it did differently before, and who waited for it.

Ranks are compared since they were last together: since the last collective that blocked all of them, and that
all of them left. The time from there to the arrival at the next is a rank's own, by cause, or exposed
communication in others. The median of the others is what the last one is held against.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.records import dataclass
from stepscope.runs._stages import across_stages
from stepscope.runs.aligned import Aligned, aligned, on_one_clock, reference_time
from stepscope.runs.many import ManyRanks
from stepscope.runs.matching import TOGETHER
from stepscope.runs.summary import CAUSES
from stepscope.store.arrow_sql import ask

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Lateness", "lateness"]

_AT_ONCE_NS = 20_000
_SOON = 20
"""A kernel that waited in its queue begins so soon after the one ahead of it, or in so small a part, a
twentieth, of what it then waits for the last rank."""
_ENOUGH = 64
"""Of larger groups every so manieth rank is what the last one is held against: so many tell a median."""


@dataclass(frozen=True)
class Lateness:
    """Tables about the late collectives of a run: those with a lateness above the error of the clocks."""

    late: pa.Table
    """number, step, gid, last_rank, since (the collective that they left together, or NULL), since_ns (when
    the last rank left that), last_arrival_ns, late_ns; for each cause by how much the last rank spent more
    than the others, as `NAME_ns`, and `away_ns`, the same of time that was not its own; cost_ns and
    exposed_cost_ns, what the others waited, each moment once."""
    waits: pa.Table
    """Exposed waiting of last ranks meanwhile: number, other (the collective that it waited in), wait_ns."""
    all_of: pa.Table
    """For each rank the number of collectives that it took part in, in steps: rank, collectives."""


def lateness(run: ManyRanks) -> Lateness:
    """The lateness of a run, worked out once."""
    found: Lateness = run.once("lateness", lambda: _lateness(run, aligned(run)))
    return found


def _lateness(run: ManyRanks, found: Aligned) -> Lateness:
    calls = found.calls.select(["number", "rank", "arrival_ns", "end_ns", "kind"])
    together = _together(found)
    spent = ask(
        _SPENT,
        together=together,
        calls=calls,
        pieces=run.stacked("pieces"),
        clocks=on_one_clock(run),
        steps=run.stacked("steps"),
    )
    late = ask(_LATE, spent=spent, together=together)
    costs = ask(_COSTS, calls=calls, late=late, collectives=found.collectives, exposed=found.exposed)
    late = ask(
        "SELECT * FROM late JOIN costs USING (number) ORDER BY last_arrival_ns, number",
        late=late,
        costs=costs,
    )
    waits = ask(_WAITS, late=late, spent=spent.select(["number", "rank", "since_ns", "arrival_ns"]),
                exposed=found.exposed)  # fmt: skip
    all_of = ask(
        "SELECT rank, count(*) AS collectives FROM calls WHERE number IS NOT NULL AND step IS NOT NULL "
        "AND kind <> 'send-receive' GROUP BY rank ORDER BY rank",
        calls=found.calls,
    )
    return Lateness(late, waits, all_of)


def _together(found: Aligned) -> pa.Table:
    """The collectives that somebody can be late for, each with the last one that all left together before.

    Where ranks ask for a collective long before the one ahead of it in the queue has ended, they are not held
    up by that one: the work of some goes on while it runs. Then it is the same as for the one ahead.
    """
    import pyarrow as pa

    rows = ask(
        _TOGETHER,
        collectives=found.collectives,
        exposed=found.exposed,
        larger=_larger(found),
        across=_column("gid", across_stages(found)),
        queued=ask(_QUEUED, calls=found.calls, collectives=found.collectives),
    )
    since: dict[int, int | None] = {}
    for number, last, ahead in zip(
        *(rows[name].to_pylist() for name in ("number", "since", "ahead")), strict=True
    ):
        since[number] = since.get(ahead, last) if ahead is not None else last
    resolved = pa.array(since.values(), pa.int64())
    rows = rows.set_column(rows.column_names.index("since"), "since", resolved)
    return ask("SELECT * EXCLUDE (judged, ahead) FROM rows WHERE judged", rows=rows)


def _column(name: str, values: list[int]) -> pa.Table:
    import pyarrow as pa

    return pa.table({name: pa.array(values, pa.int64())})


def _larger(found: Aligned) -> pa.Table:
    """For each group those that have all of its ranks, itself among them."""
    import pyarrow as pa

    sets = {gid: frozenset(group.ranks) for gid, group in found.groups.items()}
    distinct = {ranks: [gid for gid in sets if sets[gid] == ranks] for ranks in set(sets.values())}
    pairs = [
        (gid, other)
        for ranks, gids in distinct.items()
        for more, others in distinct.items()
        if len(ranks) <= len(more) and ranks <= more
        for gid in gids
        for other in others
    ]
    return pa.table(
        {
            "gid": pa.array([gid for gid, _ in pairs], pa.int64()),
            "other": pa.array([other for _, other in pairs], pa.int64()),
        }
    )


# Which collective is right ahead of another one in the queues of most ranks but the last.
_QUEUED = f"""
WITH before AS (
    SELECT number, rank, arrival_ns, lag(number) OVER queue AS ahead, lag(end_ns) OVER queue AS free_ns
    FROM calls WINDOW queue AS (PARTITION BY rank, stream ORDER BY arrival_ns, call))
SELECT b.number, min(ahead) AS ahead FROM before b JOIN collectives c USING (number)
WHERE b.rank <> c.last_rank GROUP BY b.number
HAVING median(b.arrival_ns - free_ns)
        <= greatest({_AT_ONCE_NS}, any_value(c.last_arrival_ns - c.start_ns) // {_SOON})
    AND min(ahead) = max(ahead) AND count(ahead) = count(*)
"""
_TOGETHER = f"""
WITH blocked AS (
    SELECT number FROM collectives JOIN (
        SELECT number, count(DISTINCT rank) AS n FROM exposed WHERE number IS NOT NULL
        GROUP BY number) USING (number)
    WHERE kind IN {TOGETHER} AND n = ranks),
left_together AS (
    SELECT s.gid, c.last_arrival_ns AS moment, max(c.number) AS since
    FROM collectives c JOIN blocked USING (number) JOIN larger s ON s.other = c.gid GROUP BY s.gid, moment),
asked AS (
    SELECT number, step, gid, start_ns, last_rank, last_arrival_ns, error_ns, ranks,
           step IS NOT NULL AND last_arrival_ns - start_ns > error_ns
               AND gid NOT IN (SELECT gid FROM across) AS judged
    FROM collectives WHERE kind <> 'send-receive')
SELECT a.*, p.since, q.ahead FROM asked a ASOF LEFT JOIN left_together p
    ON p.gid = a.gid AND a.start_ns > p.moment
    LEFT JOIN queued q ON q.number = a.number ORDER BY a.number
"""
_NAMES = tuple(f"{cause}_ns" for cause in CAUSES)
_BEFORE = ", ".join(
    f"sum({name}) OVER (PARTITION BY rank ORDER BY start_ns ROWS UNBOUNDED PRECEDING) - {name} "
    f"AS before_{name}"
    for name in _NAMES
)
_BETWEEN = ", ".join(
    f"coalesce(b.before_{name} + round(b.{name} * {{b}})::BIGINT, 0)"
    f" - coalesce(a.before_{name} + round(a.{name} * {{a}})::BIGINT, 0) AS {name}"
    for name in _NAMES
).format(
    a="least(1.0, (w.since_ns - a.start_ns) / greatest(1, a.dur_ns))",
    b="least(1.0, (w.arrival_ns - b.start_ns) / greatest(1, b.dur_ns))",
)
_OWN = " + ".join(_NAMES)
# What each member spent between the collective that they left together, and its arrival at this one.
_SPENT = f"""
WITH firsts AS (
    SELECT rank, min({reference_time("start_ns")}) AS first FROM steps JOIN clocks k USING (rank)
    GROUP BY rank),
begun AS (
    SELECT number, max(first) AS first FROM calls JOIN together USING (number) JOIN firsts USING (rank)
    GROUP BY number),
windows AS (
    SELECT t.number, c.rank, c.arrival_ns,
           least(c.arrival_ns, coalesce(p.end_ns, begun.first, c.arrival_ns)) AS since_ns
    FROM together t JOIN calls c USING (number) LEFT JOIN begun ON begun.number = t.number
        LEFT JOIN calls p ON p.number = t.since AND p.rank = c.rank
    WHERE c.rank = t.last_rank OR t.ranks <= {_ENOUGH} OR hash(c.rank) % (t.ranks // {_ENOUGH}) = 0),
sums AS (
    SELECT rank, {reference_time("start_ns")} AS start_ns, dur_ns, {", ".join(_NAMES)}, {_BEFORE}
    FROM pieces JOIN clocks k USING (rank) WHERE rank IN (SELECT rank FROM windows))
SELECT w.number, w.rank, w.since_ns, w.arrival_ns, {_BETWEEN}
FROM windows w ASOF LEFT JOIN sums a ON a.rank = w.rank AND w.since_ns >= a.start_ns
    ASOF LEFT JOIN sums b ON b.rank = w.rank AND w.arrival_ns >= b.start_ns
"""
_MORE = ", ".join(
    f"(any_value({name}) FILTER (rank = last_rank) - median({name}) FILTER (rank <> last_rank))::BIGINT "
    f"AS {name}"
    for name in (*_NAMES, "away_ns")
)
_LATE = f"""
WITH whole AS (
    SELECT *, arrival_ns - since_ns - ({_OWN}) AS away_ns FROM spent JOIN together USING (number))
SELECT number, any_value(step) AS step, any_value(gid) AS gid, any_value(last_rank) AS last_rank,
       any_value(since) AS since, any_value(last_arrival_ns) AS last_arrival_ns,
       any_value(since_ns) FILTER (rank = last_rank) AS since_ns,
       round(any_value(last_arrival_ns - start_ns)
             - median(arrival_ns - start_ns) FILTER (rank <> last_rank))::BIGINT AS late_ns, {_MORE}
FROM whole GROUP BY number HAVING late_ns > any_value(error_ns) ORDER BY number
"""
# Where a rank waits in two collectives at once, the time counts for the one whose last member comes last.
_COSTS = """
WITH waiting AS (
    SELECT c.number, c.rank, c.arrival_ns AS since, least(c.end_ns, l.last_arrival_ns) AS until
    FROM calls c JOIN collectives l USING (number) WHERE c.kind <> 'send-receive' AND c.rank <> l.last_rank),
once AS (
    SELECT number, rank, least(until, coalesce(min(since) OVER (
               PARTITION BY rank ORDER BY until DESC, number DESC
               ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), until)) - since AS wait_ns
    FROM waiting),
alone AS (
    SELECT e.number, sum(e.wait_ns)::BIGINT AS exposed_cost_ns FROM exposed e JOIN late l USING (number)
    WHERE e.rank <> l.last_rank GROUP BY e.number)
SELECT number, sum(greatest(0, wait_ns))::BIGINT AS cost_ns,
       coalesce(any_value(exposed_cost_ns), 0) AS exposed_cost_ns
FROM once JOIN (SELECT number FROM late) USING (number) LEFT JOIN alone USING (number) GROUP BY number
"""
_WAITS = """
SELECT l.number, e.number AS other, sum(e.wait_ns)::BIGINT AS wait_ns
FROM late l JOIN spent s ON s.number = l.number AND s.rank = l.last_rank
    JOIN exposed e ON e.rank = l.last_rank AND e.start_ns >= s.since_ns AND e.start_ns < s.arrival_ns
WHERE l.away_ns > 0 AND e.wait_ns > 0 AND e.number <> l.number
GROUP BY l.number, e.number ORDER BY l.number, e.number
"""
