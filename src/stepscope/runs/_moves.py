"""What each rank of a run does one after the other, as the play of all ranks together needs it.

A rank takes its own time, arrives at collectives, and waits for them. Own time is cut at arrivals, so that a
change of it moves what follows. All in SQL: a large run has millions of moves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING

from stepscope.records import dataclass
from stepscope.runs.aligned import reference_time
from stepscope.runs.many import ManyRanks
from stepscope.runs.summary import CAUSES
from stepscope.store.arrow_sql import ask

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Move", "Moves", "moves_of", "shift_table"]

QUEUED_NS = 10_000
"""A call that begins so soon after the one before it on its stream waited for that one alone."""
AT_ONCE = 64
"""So many ranks are looked at together, at least: their tables fit into memory many times."""
CALLS_AT_ONCE = 100_000
"""Of ranks with few calls so many are taken that they make these: planning a query costs more than rows."""


class Move(IntEnum):
    """What a rank does next; the numbers are those of the native play."""

    OWN = 0
    ARRIVE = 1
    WAIT = 2
    CUT = 3
    MARK = 4


@dataclass(frozen=True, slots=True)
class Moves:
    """The moves of all ranks, and the calls that they make."""

    ranks: pa.Table
    """`place` (0, 1, …), `rank` and `start_ns` (when it begins, on the reference clock)."""
    moves: pa.Table
    """In order: `place` of the rank, `move`, `target` (a call), `time`, `piece` (of own time) and `step`."""
    calls: pa.Table
    """`place` and `rank`, `collective`, `previous`, `gap`, `tail` and `dur`, in the order of targets."""
    pieces: pa.Table
    """The own time: `rank`, `step`, `dur_ns` and the causes."""


_SHIFTED = """
SELECT g.* REPLACE (g.step + coalesce(s.shift, 0) AS step) FROM given g LEFT JOIN shifts s USING (rank)
"""

# A range of gloo ends when its thread gets to say so, which may be after the program went on: what counts is
# that the last rank had arrived.
_INTERVALS = """
WITH waits AS (
    SELECT e.rank, e.step, e.start_ns, e.start_ns + e.dur_ns AS end_ns, e.call,
           c.start_ns + c.dur_ns AS call_end,
           CASE WHEN c.backend <> 'device' THEN l.last_ns END AS last_ns,
           lead(e.start_ns) OVER (PARTITION BY e.rank ORDER BY e.start_ns) AS next_start
    FROM exposed e JOIN calls c ON c.rank = e.rank AND c.call = e.call
        LEFT JOIN lasts l ON l.rank = e.rank AND l.call = e.call
    WHERE e.dur_ns > 0),
spans AS (
    SELECT rank, start_ns, start_ns + dur_ns AS end_ns, 0 AS move, NULL::BIGINT AS call, dur_ns AS time, piece
    FROM pieces WHERE dur_ns > 0
    UNION ALL
    SELECT w.rank, w.start_ns, w.end_ns,
           CASE WHEN w.end_ns >= call_end OR last_ns <= w.end_ns THEN 2
                WHEN w.end_ns >= s.end_ns AND next_start = w.end_ns THEN 3 ELSE 0 END AS kind,
           CASE WHEN kind = 0 THEN NULL ELSE call END,
           CASE kind WHEN 0 THEN w.end_ns - w.start_ns
                     WHEN 3 THEN (w.end_ns - w.start_ns) * 1000000 // (call_end - w.start_ns)
                     ELSE greatest(0, call_end - w.end_ns) END, NULL
    FROM waits w JOIN steps s ON s.rank = w.rank AND s.step = w.step)
SELECT * FROM spans
UNION ALL
SELECT rank, end_ns, next_start, 0, NULL, next_start - end_ns, NULL
FROM (SELECT rank, max(end_ns) OVER before AS end_ns, start_ns AS next_start FROM spans
      WINDOW before AS (
          PARTITION BY rank ORDER BY start_ns, end_ns ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING))
WHERE next_start > end_ns
"""

_CALLS = f"""
WITH placed AS (
    SELECT c.rank, c.call, c.stream, c.start_ns, c.start_ns + c.dur_ns AS end_ns, c.dur_ns,
           i.start_ns AS span_start, i.move AS span_move
    FROM calls c ASOF JOIN intervals i ON c.rank = i.rank AND c.start_ns >= i.start_ns
    WHERE c.start_ns < i.end_ns),
numbered AS (SELECT *, row_number() OVER (ORDER BY rank, start_ns, call) - 1 AS target FROM placed),
queued AS (
    SELECT *, lag(target) OVER queue AS before, start_ns - lag(end_ns) OVER queue AS free_ns
    FROM numbered WINDOW queue AS (PARTITION BY rank, stream ORDER BY target))
SELECT rank, call, target, start_ns, end_ns, dur_ns, stream, span_start,
       CASE WHEN free_ns >= 0 THEN before ELSE -1 END AS previous,
       CASE WHEN free_ns BETWEEN 0 AND {QUEUED_NS} THEN free_ns ELSE 0 END AS gap,
       CASE WHEN free_ns BETWEEN 0 AND {QUEUED_NS} AND span_move <> 0 THEN 0
            ELSE start_ns - span_start END AS delay
FROM queued ORDER BY target
"""

_WAITS = """
WITH met AS (SELECT number, max(arrival_ns) AS last_ns FROM matched GROUP BY number)
SELECT m.rank, m.call, met.last_ns - m.arrival_ns AS wait_ns FROM matched m JOIN met USING (number)
"""
# When the last rank arrived, by each rank's own clock.
_LASTS = """
SELECT w.rank, w.call, w.wait_ns + c.start_ns AS last_ns FROM waits w JOIN calls c USING (rank, call)
"""

_MET = """
WITH met AS (
    SELECT number, max(m.arrival_ns) AS last_ns, count(c.call) = count(*) AND count(*) > 1 AS whole
    FROM matched m LEFT JOIN calls c USING (rank, call) GROUP BY number),
kept AS (SELECT number, last_ns, row_number() OVER (ORDER BY number) - 1 AS collective FROM met WHERE whole)
SELECT c.place, coalesce(k.collective, -1) AS collective, c.previous, c.gap,
       CASE WHEN m.end_ns >= k.last_ns THEN m.end_ns - k.last_ns END AS tail, c.dur_ns AS dur, c.rank
FROM calls c LEFT JOIN matched m USING (rank, call) LEFT JOIN kept k USING (number)
ORDER BY c.target
"""

_MOVES = """
WITH every AS (
    SELECT i.rank, i.start_ns AS at_ns, 4 AS class, CASE WHEN c.target IS NULL THEN 0 ELSE i.move END AS move,
           c.target, i.piece, NULL::BIGINT AS step,
           CASE WHEN c.target IS NULL AND i.piece IS NULL THEN i.end_ns - i.start_ns ELSE i.time END AS time
    FROM intervals i LEFT JOIN calls c ON c.rank = i.rank AND c.call = i.call
    UNION ALL
    SELECT rank, span_start, 3, 1, target, NULL, NULL, delay FROM calls
    UNION ALL
    SELECT rank, start_ns, 2, 4, NULL, NULL, step, 0 FROM steps
    UNION ALL
    SELECT rank, end_ns, 1, 4, NULL, NULL, step, 0 FROM steps
    UNION ALL
    SELECT c.rank, s.end_ns, 0, 2, arg_max(c.target, c.end_ns), NULL, NULL, 0
    FROM calls c ASOF JOIN steps s ON c.rank = s.rank AND c.end_ns <= s.end_ns
    WHERE c.end_ns > s.start_ns GROUP BY c.rank, s.step, s.end_ns, c.stream)
SELECT r.place, e.move, coalesce(e.target, -1) AS target, e.time, e.piece, e.step
FROM every e JOIN ranks r USING (rank)
ORDER BY r.place, e.at_ns, e.class, e.target, e.move
"""


def moves_of(
    run: ManyRanks, matched: pa.Table, clocks: pa.Table, shifts: Mapping[int, int] | None = None
) -> Moves:
    """The moves of a run.

    `matched` has `rank`, `call`, `number`, `arrival_ns` and `end_ns` of every matched call, on the reference
    clock; `clocks` has `rank`, `offset_ns`, `since_ns` and `drift`. `shifts` are added to the step numbers of
    ranks that count otherwise.
    """
    import pyarrow as pa

    moved = shift_table(shifts or {})
    waits = ask(_WAITS, matched=matched)
    parts: list[Moves] = []
    places = targets = pieces = 0
    at_once = max(AT_ONCE, CALLS_AT_ONCE * len(run.summaries) // max(1, matched.num_rows))
    for first in range(0, len(run.summaries), at_once):
        some = ManyRanks(run.name, run.summaries[first : first + at_once])
        part = _some(some, waits, clocks, moved)
        calls = _counted_on(_counted_on(part.calls, "place", places), "target", targets)
        table = _counted_on(_counted_on(part.moves, "place", places), "target", targets)
        table = _counted_on(table, "piece", pieces)
        parts.append(
            Moves(
                _counted_on(part.ranks, "place", places),
                table,
                _counted_on(calls, "previous", targets),
                part.pieces,
            )
        )
        places, targets = places + part.ranks.num_rows, targets + calls.num_rows
        pieces += part.pieces.num_rows
    ranks, moves, calls, own = (
        pa.concat_tables(getattr(part, name) for part in parts)
        for name in ("ranks", "moves", "calls", "pieces")
    )
    return Moves(ranks, moves, ask(_MET, calls=calls, matched=matched), own)


def _some(some: ManyRanks, waits: pa.Table, clocks: pa.Table, moved: pa.Table) -> Moves:
    """The moves of some ranks: places, targets and pieces are counted from 0, and -1 is none."""
    steps, exposed, pieces = (
        ask(_SHIFTED, given=some.stacked(name), shifts=moved) for name in ("steps", "exposed", "pieces")
    )
    pieces = _numbered(pieces)
    calls = some.stacked("calls").select(["rank", "call", "stream", "backend", "start_ns", "dur_ns"])
    lasts = ask(_LASTS, waits=_of_ranks(waits, some.ranks), calls=calls)
    intervals = ask(_INTERVALS, steps=steps, exposed=exposed, calls=calls, pieces=pieces, lasts=lasts)
    ranks = ask(
        "SELECT row_number() OVER (ORDER BY rank) - 1 AS place, rank, "
        f"min({reference_time('i.start_ns')}) AS start_ns "
        "FROM intervals i JOIN clocks k USING (rank) GROUP BY rank ORDER BY rank",
        intervals=intervals,
        clocks=clocks,
    )
    placed = ask(_CALLS, calls=calls, intervals=intervals)
    moves = ask(_MOVES, intervals=intervals, calls=placed, steps=steps, ranks=ranks)
    columns = "place, c.rank, call, target, previous, gap, dur_ns"
    placed = ask(
        f"SELECT {columns} FROM calls c JOIN ranks USING (rank) ORDER BY target", calls=placed, ranks=ranks
    )
    kept = ["rank", "step", "dur_ns", *(f"{cause}_ns" for cause in CAUSES), "piece"]
    return Moves(ranks, moves, placed, pieces.select(kept))


def _of_ranks(table: pa.Table, ranks: Sequence[int]) -> pa.Table:
    import pyarrow as pa
    import pyarrow.compute as pc

    return table.filter(pc.is_in(table["rank"], pa.array(ranks, pa.int64())))


def _numbered(pieces: pa.Table) -> pa.Table:
    import pyarrow as pa

    return pieces.append_column("piece", pa.array(range(pieces.num_rows), pa.int64()))


def _counted_on(table: pa.Table, name: str, more: int) -> pa.Table:
    """A column whose numbers go on after those of the ranks before; -1 stays."""
    import pyarrow.compute as pc

    column = table[name]
    on = pc.if_else(pc.less(column, 0), column, pc.add(column, more))
    return table.set_column(table.schema.get_field_index(name), name, on)


def shift_table(shifts: Mapping[int, int]) -> pa.Table:
    """For joins: rank and shift."""
    import pyarrow as pa

    ranks, values = pa.array(list(shifts), pa.int64()), pa.array(list(shifts.values()), pa.int64())
    return pa.table({"rank": ranks, "shift": values})
