"""Which calls of different ranks are one collective.

Calls belong together if their process group is the same (name and ranks), their kind, and their sequence
number where the profiles have one. Else their order decides: within group, kind and bytes, over the whole run
if all ranks recorded equally many, and else step by step. Sends and receives are told apart by their ends,
and by order alone, for each rank numbers its own. What cannot be told stays unmatched, and a note says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

from stepscope.records import dataclass
from stepscope.runs._groups import GroupFinder, MatchedGroup
from stepscope.runs._splitting import split_groups
from stepscope.runs._step_numbers import StepShifts, step_shifts
from stepscope.runs.many import ManyRanks
from stepscope.runs.rank_lists import ranks_in
from stepscope.store.arrow_sql import ask
from stepscope.units import counted

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["TOGETHER", "Matched", "MatchedGroup", "matched"]

TOGETHER = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "barrier")
"""Kinds whose members leave together: nobody is done before the last one came."""

_UNEVEN = ("all-to-all", "gather", "scatter", "send-receive", "unknown")
"""Kinds whose calls may have other sizes on other ranks, or that are told apart otherwise."""

_COLUMNS = (
    "call", "step", "kind", "backend", "group", "group_size", "sequence", "dtype", "bytes", "source",
    "target", "stream", "start_ns", "dur_ns", "exposed_ns",
)  # fmt: skip


@dataclass(frozen=True)
class Matched:
    """The calls of all ranks, and which of them belong together."""

    calls: pa.Table
    """Columns: rank, call, step (as the run counts), kind, backend, gid, dtype, bytes, start_ns, dur_ns,
    exposed_ns, stream, from_rank, to_rank, matched_by, and id: that of their collective; NULL alone."""
    groups: Mapping[int, MatchedGroup]
    """By gid."""
    shifts: Mapping[int, int]
    """What to add to the step numbers of a rank to get those of the run; only those that differ."""
    notes: tuple[str, ...]


def matched(run: ManyRanks) -> Matched:
    """The matched calls of a run, worked out once."""
    found: Matched = run.once("matched", lambda: _matched(run))
    return found


def _matched(run: ManyRanks) -> Matched:
    import pyarrow as pa

    shifts = step_shifts(run)
    calls = _slim(run)
    finder = GroupFinder(run, calls)
    steps = run.stacked("steps")
    moved = pa.table(
        {
            "rank": pa.array(list(shifts.by_rank), pa.int64()),
            "shift": pa.array(list(shifts.by_rank.values()), pa.int64()),
        }
    )
    told = ask(_TOLD, calls=calls, members=finder.members)
    rows, split = split_groups(run, _with_ids(told, steps, moved), finder.groups, TOGETHER)
    rows, found = _agreeing_steps(rows, shifts)
    notes = [*finder.notes, *shifts.notes, *split, *found, *_notes(rows, finder.groups)]
    return Matched(rows, finder.groups, shifts.by_rank, tuple(notes))


def _slim(run: ManyRanks) -> pa.Table:
    """The calls of all ranks without long texts: lists of ranks become numbers."""
    import pyarrow as pa

    known: dict[tuple[int, ...], int] = {}
    tables = []
    for one in run.summaries:
        arrow = one.tables["calls"].arrow
        listed = arrow["group_ranks"].combine_chunks().dictionary_encode()
        numbers = []
        for text in listed.dictionary.to_pylist():
            ranks = ranks_in(text)
            numbers.append(known.setdefault(ranks, len(known)) if ranks else None)
        slim = arrow.select(_COLUMNS)
        slim = slim.append_column("listed", pa.array(numbers, pa.int64()).take(listed.indices))
        slim = slim.add_column(0, "rank", pa.repeat(pa.scalar(one.facts.rank, pa.int64()), arrow.num_rows))
        tables.append(slim)
    if not tables:
        empty = run.stacked("calls").select(["rank", *_COLUMNS])
        tables = [empty.append_column("listed", pa.array([], pa.int64()))]
    metadata = {b"listed": ";".join(",".join(map(str, ranks)) for ranks in known).encode()}
    return pa.concat_tables(tables).replace_schema_metadata(metadata)


_TOLD = """
SELECT c.* EXCLUDE (listed, "group", group_size), m.gid,
       CASE WHEN c.kind <> 'send-receive' THEN -1 WHEN source IS NULL THEN c.rank ELSE source END
           AS from_rank,
       CASE WHEN c.kind <> 'send-receive' THEN -1 WHEN source IS NULL THEN target ELSE c.rank END AS to_rank,
       CASE WHEN sequence IS NOT NULL AND c.kind <> 'send-receive' THEN 'sequence' ELSE 'order' END
           AS matched_by
FROM calls c JOIN members m ON m.rank = c.rank AND m.kind = c.kind AND m.name IS NOT DISTINCT FROM c."group"
    AND m.listed IS NOT DISTINCT FROM c.listed AND m.size IS NOT DISTINCT FROM c.group_size
"""
_NTH = "row_number() OVER (PARTITION BY rank, gid, kind, sequence ORDER BY start_ns, call)"
# Several of one number are the parts of one collective: as the profiler writes them, in their order.
_NUMBERED = f"""
WITH twice AS (
    SELECT DISTINCT gid, kind FROM (
        SELECT gid, kind FROM told WHERE matched_by = 'sequence'
        GROUP BY gid, kind, rank, sequence HAVING count(*) > 1)),
nths AS (
    SELECT *, 1 AS nth FROM told ANTI JOIN twice USING (gid, kind) WHERE matched_by = 'sequence'
    UNION ALL BY NAME
    SELECT *, {_NTH} AS nth FROM told SEMI JOIN twice USING (gid, kind) WHERE matched_by = 'sequence'),
ids AS (
    SELECT row_number() OVER (ORDER BY gid, kind, sequence, nth) - 1 AS id, gid, kind, sequence, nth
    FROM nths GROUP BY gid, kind, sequence, nth HAVING count(*) > 1)
SELECT nths.* EXCLUDE (nth), ids.id FROM nths LEFT JOIN ids USING (gid, kind, sequence, nth)
"""
_ORDERED = f"""
WITH spans AS (
    SELECT rank, min(step) AS first_step, max(step) AS last_step FROM steps GROUP BY rank),
begun AS (
    SELECT t.*, coalesce(h.shift, 0) AS shift, 2 * (first_step + coalesce(h.shift, 0)) + 1 AS first_part,
           2 * (last_step + coalesce(h.shift, 0)) + 1 AS last_part
    FROM told t LEFT JOIN shifts h ON h.rank = t.rank LEFT JOIN spans p ON p.rank = t.rank
    WHERE matched_by = 'order'),
placed AS (
    SELECT t.*, CASE WHEN t.step IS NOT NULL THEN 2 * (t.step + shift) + 1
                     WHEN s.step IS NOT NULL THEN 2 * (s.step + shift) + 2
                     ELSE first_part - 1 END AS part
    FROM begun t ASOF LEFT JOIN (SELECT rank, step, start_ns FROM steps) s
        ON s.rank = t.rank AND t.start_ns >= s.start_ns),
sized AS (
    SELECT *, CASE WHEN kind IN {_UNEVEN} OR bool_or(bytes IS NULL) OVER (PARTITION BY gid, kind) THEN -1
                   ELSE bytes END AS sized
    FROM placed),
-- How many has a rank, in all and in this part of the run?
counted AS (
    SELECT *, count(*) OVER (PARTITION BY rank, gid, kind, sized, from_rank, to_rank) AS n,
           count(*) OVER (PARTITION BY rank, gid, kind, sized, from_rank, to_rank, part) AS few,
           row_number() OVER (PARTITION BY rank, gid, kind, sized, from_rank, to_rank
                              ORDER BY start_ns, call) AS place,
           row_number() OVER (PARTITION BY rank, gid, kind, sized, from_rank, to_rank, part
                              ORDER BY start_ns, call) AS few_place
    FROM sized),
alike AS (
    SELECT gid, kind, sized, from_rank, to_rank,
           min(n) = max(n) AND min(first_part) = max(first_part) AND min(last_part) = max(last_part) AS whole
    FROM counted GROUP BY ALL),
most AS (
    SELECT gid, kind, sized, from_rank, to_rank, part, max(few) AS most FROM counted GROUP BY ALL),
-- Who has fewer began to record within this part, or stopped in it: else nothing tells which are missing.
parts AS (
    SELECT gid, kind, sized, from_rank, to_rank, part, any_value(most) AS most,
           CASE WHEN min(few) = any_value(most) THEN 'ahead'
                WHEN bool_and(few = most OR part <= first_part) AND bool_or(part < last_part) THEN 'back'
                WHEN bool_and(few = most OR part >= last_part) AND bool_or(part > first_part) THEN 'ahead'
                END AS way
    FROM counted JOIN most USING (gid, kind, sized, from_rank, to_rank, part) GROUP BY ALL),
keyed AS (
    SELECT c.*, CASE WHEN a.whole THEN -1 ELSE c.part END AS within,
           CASE WHEN c.kind = 'send-receive' AND c.from_rank IS NOT DISTINCT FROM c.to_rank THEN NULL
                WHEN a.whole THEN place
                WHEN p.way = 'ahead' THEN few_place
                WHEN p.way = 'back' THEN most - few + few_place END AS nth
    FROM counted c
    LEFT JOIN alike a ON a.gid = c.gid AND a.kind = c.kind AND a.sized = c.sized
        AND a.from_rank = c.from_rank AND a.to_rank = c.to_rank
    LEFT JOIN parts p ON p.gid = c.gid AND p.kind = c.kind AND p.sized = c.sized
        AND p.from_rank = c.from_rank AND p.to_rank = c.to_rank AND p.part = c.part),
ids AS (
    SELECT row_number() OVER (ORDER BY gid, kind, sized, from_rank, to_rank, within, nth) - 1 + $first AS id,
           gid, kind, sized, from_rank, to_rank, within, nth
    FROM keyed WHERE nth IS NOT NULL
    GROUP BY gid, kind, sized, from_rank, to_rank, within, nth HAVING count(*) > 1)
SELECT k.*, ids.id FROM keyed k LEFT JOIN ids USING (gid, kind, sized, from_rank, to_rank, within, nth)
"""
_BOTH = """
SELECT rank, call, step + coalesce(shift, 0) AS step, kind, backend, gid, dtype, bytes, start_ns, dur_ns,
       exposed_ns, stream, nullif(from_rank, -1) AS from_rank, nullif(to_rank, -1) AS to_rank, matched_by, id
FROM rows LEFT JOIN shifts USING (rank)
"""


def _with_ids(told: pa.Table, steps: pa.Table, shifts: pa.Table) -> pa.Table:
    """The calls with the numbers of their collectives: by sequence, and by order where there is none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    numbered = ask(_NUMBERED, told=told)
    parts = [ask(_BOTH, rows=numbered, shifts=shifts)]
    if numbered.num_rows < told.num_rows:
        first = (pc.max(numbered["id"]).as_py() or 0) + 1
        ordered = ask(_ORDERED, {"first": first}, told=told, steps=steps, shifts=shifts)
        parts.append(ask(_BOTH, rows=ordered.drop_columns(["shift"]), shifts=shifts))
    return pa.concat_tables(parts)


def _agreeing_steps(rows: pa.Table, shifts: StepShifts) -> tuple[pa.Table, list[str]]:
    """Steps as the run counts them: matched calls say whether a rank numbers its steps like others."""
    apart = ask(_STEPS_APART, rows=rows).to_pylist()
    found = {one["rank"]: one["apart"] for one in apart if one["apart"]}
    if not found:
        return rows, []
    import pyarrow as pa

    moved = pa.table({"rank": pa.array(list(found), pa.int64()), "by": pa.array(found.values(), pa.int64())})
    for rank, by in found.items():
        shifts.by_rank[rank] = shifts.by_rank.get(rank, 0) - by
    ranks = ", ".join(map(str, sorted(found)))
    rows = ask(
        "SELECT rows.* REPLACE (step - coalesce(moved.by, 0) AS step) FROM rows LEFT JOIN moved USING (rank)",
        rows=rows,
        moved=moved,
    )
    said = "Ranks number their steps differently: those of rank"
    return rows, [
        f"{said}{'s' if len(found) > 1 else ''} {ranks} are counted as the others' collectives say."
    ]


_STEPS_APART = """
WITH firsts AS (SELECT id, quantile_disc(step, 0.5) AS most FROM rows
                WHERE id IS NOT NULL AND step IS NOT NULL AND matched_by = 'sequence' GROUP BY id)
SELECT rank, quantile_disc(step - most, 0.5) AS apart FROM rows JOIN firsts USING (id) WHERE step IS NOT NULL
GROUP BY rank ORDER BY rank
"""


def _notes(rows: pa.Table, groups: Mapping[int, MatchedGroup]) -> list[str]:
    lonely = ask(
        "SELECT kind, gid, count(*) AS n FROM rows WHERE id IS NULL GROUP BY ALL ORDER BY ALL", rows=rows
    )
    by_kind: Counter[str] = Counter()
    for one in lonely.to_pylist():
        size = groups[one["gid"]].size
        if size is None or size > 1:  # a group of one rank waits for nobody
            by_kind[one["kind"]] += one["n"]
    notes = []
    if by_kind:
        kinds = ", ".join(f"{n:,} {kind}" for kind, n in sorted(by_kind.items()))
        notes.append(
            f"{counted(by_kind.total(), 'call')} could not be matched with those of other ranks: {kinds}."
        )
    torn = ask(
        "SELECT count(*) AS n FROM rows WHERE matched_by = 'sequence' AND id IS NULL", rows=rows
    ).to_pylist()[0]["n"]
    if torn:
        notes.append(
            f"{counted(torn, 'call')} of these with a sequence number: no other rank recorded the same "
            "kind under it."
        )
    return notes
