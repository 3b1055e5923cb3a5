"""Which operator did which work: the innermost one around a launch whose cost can be told.

`aten::linear` calls `aten::addmm`, which launches the kernel: the work is the addmm's, and is counted once.
A convolution that converts its input calls `aten::copy_`: that kernel is the copy's, the rest is its own.
"""

from __future__ import annotations

from typing import Any

from stepscope.costs.families import family_of
from stepscope.costs.operators import COUNTED_OPS, MATRIX_FAMILIES
from stepscope.costs.precision import is_side_kernel
from stepscope.records import dataclass
from stepscope.store.trace import Reads, Trace

__all__ = ["READS", "OpWork", "work_of_ops"]

READS: Reads = {
    "device_work": (
        "op",
        "launch",
        "name",
        "start_ns",
        "dur_ns",
        "kind",
        "communicates",
        "graph_id",
        "blocks_per_sm",
        "bytes",
    ),
    "launches": ("event", "name"),
    "ops": ("event", "parent", "name", "args", "dur_ns"),
    "call_sites": ("event", "step", "phase"),
    "steps": ("step", "source", "start_ns", "end_ns", "thread"),
}
"""What is read here."""


@dataclass(frozen=True, slots=True)
class OpWork:
    """Calls that are alike: of one operator with the same arguments, done by one kernel.

    The lists hold an entry for each step, and one for what is in none (step None).
    """

    op: str | None
    args: str | None
    kernel: str | None
    """The kernel that did most of it; None where the host did the work."""
    kind: str
    """What that is: kernel, memcpy or memset; op where the host did the work."""
    again: bool
    """Whether they computed anew, in backward, what forward had computed."""
    communicates: bool
    replayed: bool
    """Part of a replayed graph."""
    unlinked: bool
    wraps: bool
    """An operator inside it does the work that it would be counted for."""
    steps: list[int | None]
    calls: list[int]
    kernels: list[int]
    work_ns: list[int]
    unfilled_ns: list[int]
    """The part of it in which the kernel had less than a block for each multiprocessor."""
    moved_bytes: list[int]
    """What copies and fills moved, as the profile says it."""


# The group of an operator is what it must not be counted for twice: all matrix work, or its family. Texts are
# grouped by their hash, which tells them apart as well and much faster; `sample` is one event of a group.
_TREE = """
    formulas AS (SELECT unnest($names::VARCHAR[]) AS name, unnest($groups::VARCHAR[]) AS kind),
    tree AS MATERIALIZED (
        SELECT o.event, o.parent, f.kind, hash(o.name, o.args::VARCHAR) AS said
        FROM ops o LEFT JOIN formulas f ON f.name = o.name)
"""
_LISTS = """
    list(step ORDER BY step) AS steps, list(calls ORDER BY step) AS calls,
    list(kernels ORDER BY step) AS kernels, list(ns ORDER BY step) AS work_ns,
    list(unfilled ORDER BY step) AS unfilled_ns, list(moved ORDER BY step) AS moved_bytes
"""
# A step found on the device alone has no thread: work belongs to it by its own start, as does unlinked work.
_ON_DEVICES = f"""
    WITH RECURSIVE {_TREE},
    known AS (SELECT unnest($kernels::VARCHAR[]) AS name, unnest($ranks::BIGINT[]) AS rank),
    linked AS (
        SELECT w.op, w.launch, w.start_ns, w.dur_ns, w.kind, w.communicates, w.blocks_per_sm, w.bytes, k.rank,
               p.step, coalesce(p.phase = 'recomputation', false) AS again,
               w.graph_id IS NOT NULL OR coalesce(l.name LIKE '%GraphLaunch%', false) AS replayed
        FROM device_work w LEFT JOIN known k ON k.name = w.name LEFT JOIN launches l ON l.event = w.launch
        LEFT JOIN call_sites p ON p.event = w.launch),
    work AS MATERIALIZED (
        SELECT w.op, w.rank, coalesce(w.dur_ns, 0) AS ns, w.kind,
               -- One number orders as what multiplies, then time, then rank would, and much faster.
               (coalesce(w.rank >= $heavy, false)::INT::HUGEINT << 100)
                   + (coalesce(w.dur_ns, 0)::HUGEINT << 32) + coalesce(w.rank, 0) AS weight,
               w.communicates, w.again, w.replayed,
               CASE WHEN w.launch IS NOT NULL AND NOT (s.source = 'period' AND s.thread IS NULL) THEN w.step
                    WHEN w.start_ns < s.end_ns THEN s.step END AS step,
               w.launch IS NULL AS unlinked, coalesce(w.blocks_per_sm < 1, false) AS is_unfilled,
               CASE WHEN w.kind != 'kernel' THEN coalesce(w.bytes, 0) ELSE 0 END AS moved
        FROM linked w ASOF LEFT JOIN (SELECT * FROM steps) s ON w.start_ns >= s.start_ns),
    up AS (
        SELECT DISTINCT op AS launching, op AS around FROM work WHERE op IS NOT NULL
        UNION ALL
        SELECT up.launching, t.parent FROM up JOIN tree t ON t.event = up.around
        WHERE t.kind IS NULL AND t.parent IS NOT NULL),
    owners AS MATERIALIZED (
        SELECT up.launching, up.around AS owner, t.kind FROM up JOIN tree t ON t.event = up.around
        WHERE t.kind IS NOT NULL),
    above AS (
        SELECT DISTINCT t.parent AS around FROM owners o JOIN tree t ON t.event = o.owner
        WHERE o.kind = 'matrix' AND t.parent IS NOT NULL
        UNION
        SELECT t.parent FROM above JOIN tree t ON t.event = above.around WHERE t.parent IS NOT NULL),
    calls AS (
        SELECT coalesce(o.owner, w.op) AS call, min(w.step) AS step, bool_or(w.again) AS again,
               arg_max(w.rank, w.weight) AS rank, arg_max(w.kind, w.weight) AS kind,
               bool_or(w.communicates) AS communicates, bool_or(w.replayed) AS replayed,
               coalesce(any_value(o.kind) = 'matrix', false) AND call IN (SELECT around FROM above) AS wraps,
               count(*) AS kernels, sum(w.ns)::BIGINT AS ns, sum(moved)::BIGINT AS moved,
               coalesce(sum(w.ns) FILTER (w.is_unfilled), 0)::BIGINT AS unfilled
        FROM work w LEFT JOIN owners o ON o.launching = w.op WHERE w.op IS NOT NULL GROUP BY call),
    alike AS (
        SELECT t.said, min(t.event) AS sample, rank, c.kind, again, communicates, replayed, false AS unlinked,
               wraps, step, count(*) AS calls, sum(kernels)::BIGINT AS kernels, sum(ns)::BIGINT AS ns,
               sum(unfilled)::BIGINT AS unfilled, sum(moved)::BIGINT AS moved
        FROM calls c JOIN tree t ON t.event = c.call
        GROUP BY t.said, rank, c.kind, again, communicates, replayed, wraps, step
        UNION ALL
        SELECT NULL, NULL, rank, kind, again, communicates, replayed, unlinked, false, step, count(*),
               count(*), sum(ns)::BIGINT, coalesce(sum(ns) FILTER (is_unfilled), 0)::BIGINT,
               sum(moved)::BIGINT
        FROM work WHERE op IS NULL GROUP BY rank, kind, again, communicates, replayed, unlinked, step),
    grouped AS MATERIALIZED (
        SELECT min(sample) AS sample, rank, kind, again, communicates, replayed, unlinked, wraps, {_LISTS}
        FROM alike GROUP BY said, rank, kind, again, communicates, replayed, unlinked, wraps)
    SELECT o.name AS op, o.args, k.name AS kernel, g.* EXCLUDE (sample, rank)
    FROM grouped g LEFT JOIN known k ON k.rank = g.rank LEFT JOIN (
        SELECT event, name, args FROM ops WHERE event IN (SELECT sample FROM grouped)) o ON o.event = g.sample
    ORDER BY op, args, kernel, kind, again, communicates, replayed, unlinked, wraps
"""
# Without devices the host does the work: every operator with a formula that holds no other of its group.
_ON_HOST = f"""
    WITH RECURSIVE {_TREE},
    above AS (
        SELECT DISTINCT kind, parent AS around FROM tree WHERE kind IS NOT NULL AND parent IS NOT NULL
        UNION
        SELECT above.kind, t.parent FROM above JOIN tree t ON t.event = above.around
        WHERE t.parent IS NOT NULL),
    alike AS (
        SELECT t.said, min(t.event) AS sample, coalesce(p.phase = 'recomputation', false) AS again, p.step,
               count(*) AS calls, 0::BIGINT AS kernels, sum(coalesce(o.dur_ns, 0))::BIGINT AS ns,
               0::BIGINT AS unfilled, 0::BIGINT AS moved
        FROM tree t JOIN ops o ON o.event = t.event LEFT JOIN call_sites p ON p.event = t.event
        WHERE t.kind IS NOT NULL
          AND NOT EXISTS (SELECT 1 FROM above WHERE above.around = t.event AND above.kind = t.kind)
        GROUP BY t.said, again, p.step),
    grouped AS (SELECT min(sample) AS sample, again, {_LISTS} FROM alike GROUP BY said, again)
    SELECT o.name AS op, o.args, NULL::VARCHAR AS kernel, 'op' AS kind, false AS communicates,
           false AS replayed, false AS unlinked, false AS wraps, g.* EXCLUDE (sample)
    FROM grouped g JOIN ops o ON o.event = g.sample ORDER BY op, args, again
"""


def work_of_ops(trace: Trace) -> list[OpWork]:
    """All device work by the operator that it is counted for; without any, the work of the host."""
    found: list[OpWork] = trace.once(work_of_ops, lambda: [OpWork(**row) for row in _rows(trace)])
    return found


def _rows(trace: Trace) -> list[dict[str, Any]]:
    groups = ["matrix" if family in MATRIX_FAMILIES else family for family in COUNTED_OPS.values()]
    asked: dict[str, Any] = {"names": list(COUNTED_OPS), "groups": groups}
    if not trace.has("device_work"):
        return trace.rows(_ON_HOST, **asked)
    names = [
        row["name"] for row in trace.rows("SELECT DISTINCT name FROM device_work WHERE name IS NOT NULL")
    ]
    # What multiplies tells the data type, even where converting a layout for it took longer.
    ranked = sorted(names, key=lambda name: (_multiplies(name), name))
    light = sum(not _multiplies(name) for name in names)
    asked |= {"kernels": ranked, "ranks": list(range(len(ranked))), "heavy": light}
    return trace.rows(_ON_DEVICES, **asked)


def _multiplies(kernel: str) -> bool:
    return family_of(kernel) in MATRIX_FAMILIES and not is_side_kernel(kernel)
