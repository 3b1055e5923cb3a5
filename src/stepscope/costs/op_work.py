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
        "name_id",
        "start_ns",
        "dur_ns",
        "kind",
        "communicates",
        "graph_id",
        "blocks_per_sm",
        "bytes",
    ),
    "launches": ("event", "name_id"),
    "names": ("id", "text"),
    "ops": ("event", "parent", "name", "args", "name_id", "args_id", "dur_ns"),
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


_MATRIX = 0
"""The group of all matrix work; other families have numbers from 1 on."""
_KINDS = "['kernel', 'memcpy', 'memset']"
# The group of an operator is what it must not be counted for twice: all matrix work, or its family. Names and
# arguments are grouped by their numbers, which is much faster; `sample` is one event of a group.
_FORMULAS = """
    formulas AS (
        SELECT n.id, f.kind FROM names n
        JOIN (SELECT unnest($names::VARCHAR[]) AS name, unnest($groups::UTINYINT[]) AS kind) f
        ON f.name = n.text)
"""
# Sorted once, not list by list.
_LISTED = """
    list_sort(list(struct_pack(step := step, calls := calls, kernels := kernels, ns := ns,
                               unfilled := unfilled, moved := moved))) AS of_steps
"""
_LISTS = """
    list_transform(of_steps, lambda one: one.step) AS steps,
    list_transform(of_steps, lambda one: one.calls) AS calls,
    list_transform(of_steps, lambda one: one.kernels) AS kernels,
    list_transform(of_steps, lambda one: one.ns) AS work_ns,
    list_transform(of_steps, lambda one: one.unfilled) AS unfilled_ns,
    list_transform(of_steps, lambda one: one.moved) AS moved_bytes
"""
_TAKEN = f"""
    w.op, k.rank, coalesce(w.dur_ns, 0) AS ns, list_position({_KINDS}, w.kind)::UTINYINT AS kind,
    w.communicates, coalesce(w.blocks_per_sm < 1, false) AS is_unfilled,
    CASE WHEN w.kind != 'kernel' THEN coalesce(w.bytes, 0) ELSE 0 END AS moved
"""
_BY_START = "ASOF LEFT JOIN (SELECT * FROM steps) s ON w.start_ns >= s.start_ns"
_STEP_BY_START = "CASE WHEN w.start_ns < s.end_ns THEN s.step::INT END"
_LINKED = f"""
    SELECT {_TAKEN}, coalesce(p.phase = 'recomputation', false) AS again,
           {{replayed}} AS replayed, false AS unlinked, {{step}} AS step
    FROM (SELECT * FROM device_work WHERE launch IS NOT NULL) w LEFT JOIN known k ON k.id = w.name_id
    LEFT JOIN call_sites p ON p.event = w.launch {{steps}}
"""
# To look for steps by the start of work sorts all of it, so it is done where nothing else tells the step: for
# unlinked work, and in steps that were found on the device alone, which have no thread.
_STEP_BY_LAUNCH = {"step": "p.step::INT", "steps": ""}
_STEP_FOUND_ALONE = {
    "step": f"CASE WHEN s.source = 'period' AND s.thread IS NULL THEN {_STEP_BY_START} ELSE p.step::INT END",
    "steps": _BY_START,
}
_GRAPH_LAUNCH = "GraphLaunch"
_IN_GRAPH = f"""
    w.graph_id IS NOT NULL OR w.launch IN (
        SELECT event FROM launches
        WHERE name_id IN (SELECT id FROM names WHERE text LIKE '%{_GRAPH_LAUNCH}%'))
"""
_UNLINKED = f"""
    SELECT {_TAKEN}, false AS again, w.graph_id IS NOT NULL AS replayed, true AS unlinked,
           {_STEP_BY_START} AS step
    FROM (SELECT * FROM device_work WHERE launch IS NULL) w LEFT JOIN known k ON k.id = w.name_id {_BY_START}
"""
# One number orders as what multiplies, then time, then kernel would, and takes a fraction of the memory; its
# last bits are the kernel and the kind of work, which have to be found again.
_WEIGHT = """
    (coalesce(w.rank >= $heavy, false)::HUGEINT << 100) + (w.ns::HUGEINT << 36)
    + (coalesce(w.rank + 1, 0)::HUGEINT << 4) + w.kind
"""
_RANK, _KIND = "nullif((most >> 4 & 4294967295)::INT, 0) - 1", "(most & 15)::UTINYINT"
# Most operators that launch have a formula: only from the others on is one around them looked for.
_ON_DEVICES = f"""
    WITH RECURSIVE {_FORMULAS},
    known AS (
        SELECT n.id, k.name, k.rank FROM names n
        JOIN (SELECT unnest($kernels::VARCHAR[]) AS name, unnest($ranks::INT[]) AS rank) k
        ON k.name = n.text),
    work AS MATERIALIZED ({{linked}} UNION ALL {_UNLINKED}),
    launching AS MATERIALIZED (
        SELECT o.event, o.parent, o.name_id, o.args_id, f.kind
        FROM ops o LEFT JOIN formulas f ON f.id = o.name_id WHERE o.event IN (SELECT op FROM work)),
    around AS MATERIALIZED (
        SELECT o.event, o.parent, o.name_id, o.args_id, f.kind
        FROM ops o LEFT JOIN formulas f ON f.id = o.name_id WHERE o.event IN (SELECT parent FROM ops)),
    up AS (
        SELECT event AS launching, parent AS above FROM launching WHERE kind IS NULL AND parent IS NOT NULL
        UNION ALL
        SELECT up.launching, a.parent FROM up JOIN around a ON a.event = up.above
        WHERE a.kind IS NULL AND a.parent IS NOT NULL),
    found AS MATERIALIZED (
        SELECT up.launching, a.event AS owner, a.parent, a.name_id, a.args_id, a.kind
        FROM up JOIN around a ON a.event = up.above WHERE a.kind IS NOT NULL),
    owners AS MATERIALIZED (
        SELECT event AS launching, event AS owner, parent, name_id, args_id, kind FROM launching
        WHERE kind IS NOT NULL OR event NOT IN (SELECT launching FROM found)
        UNION ALL
        SELECT * FROM found),
    above AS (
        SELECT DISTINCT parent AS event FROM owners WHERE kind = {_MATRIX} AND parent IS NOT NULL
        UNION
        SELECT a.parent FROM above JOIN around a ON a.event = above.event WHERE a.parent IS NOT NULL),
    calls AS (
        SELECT o.owner AS call, any_value(o.name_id) AS name_id, any_value(o.args_id) AS args_id,
               min(w.step) AS step, bool_or(w.again) AS again, max({_WEIGHT}) AS most,
               bool_or(w.communicates) AS communicates, bool_or(w.replayed) AS replayed,
               coalesce(any_value(o.kind) = {_MATRIX}, false) AND call IN (SELECT event FROM above) AS wraps,
               count(*) AS kernels, sum(w.ns)::BIGINT AS ns, sum(moved)::BIGINT AS moved,
               coalesce(sum(w.ns) FILTER (w.is_unfilled), 0)::BIGINT AS unfilled
        FROM work w JOIN owners o ON o.launching = w.op GROUP BY call),
    alike AS (
        SELECT name_id, args_id, min(call) AS sample, {_RANK} AS rank, {_KIND} AS kind, again,
               communicates, replayed, false AS unlinked, wraps, step, count(*) AS calls,
               sum(kernels)::BIGINT AS kernels, sum(ns)::BIGINT AS ns, sum(unfilled)::BIGINT AS unfilled,
               sum(moved)::BIGINT AS moved
        FROM calls GROUP BY name_id, args_id, rank, kind, again, communicates, replayed, wraps, step
        UNION ALL
        SELECT NULL, NULL, NULL, rank, kind, again, communicates, replayed, unlinked, false, step, count(*),
               count(*), sum(ns)::BIGINT, coalesce(sum(ns) FILTER (is_unfilled), 0)::BIGINT,
               sum(moved)::BIGINT
        FROM work WHERE op IS NULL GROUP BY rank, kind, again, communicates, replayed, unlinked, step),
    grouped AS MATERIALIZED (
        SELECT min(sample) AS sample, rank, kind, again, communicates, replayed, unlinked, wraps, {_LISTED}
        FROM alike GROUP BY name_id, args_id, rank, kind, again, communicates, replayed, unlinked, wraps)
    SELECT o.name AS op, o.args, k.name AS kernel, ({_KINDS})[g.kind] AS kind, {_LISTS},
           g.* EXCLUDE (sample, rank, kind, of_steps)
    FROM grouped g LEFT JOIN known k ON k.rank = g.rank LEFT JOIN (
        SELECT event, name, args FROM ops WHERE event IN (SELECT sample FROM grouped)) o ON o.event = g.sample
    ORDER BY op, args, kernel, kind, again, communicates, replayed, unlinked, wraps
"""
# Without devices the host does the work: every operator with a formula that holds no other of its group.
_ON_HOST = f"""
    WITH RECURSIVE {_FORMULAS},
    tree AS MATERIALIZED (
        SELECT o.event, o.parent, f.kind, o.name_id, o.args_id
        FROM ops o LEFT JOIN formulas f ON f.id = o.name_id),
    above AS (
        SELECT DISTINCT kind, parent AS around FROM tree WHERE kind IS NOT NULL AND parent IS NOT NULL
        UNION
        SELECT above.kind, t.parent FROM above JOIN tree t ON t.event = above.around
        WHERE t.parent IS NOT NULL),
    alike AS (
        SELECT t.name_id, t.args_id, min(t.event) AS sample, p.step,
               coalesce(p.phase = 'recomputation', false) AS again, count(*) AS calls,
               0::BIGINT AS kernels, sum(coalesce(o.dur_ns, 0))::BIGINT AS ns,
               0::BIGINT AS unfilled, 0::BIGINT AS moved
        FROM tree t JOIN ops o ON o.event = t.event LEFT JOIN call_sites p ON p.event = t.event
        WHERE t.kind IS NOT NULL
          AND NOT EXISTS (SELECT 1 FROM above WHERE above.around = t.event AND above.kind = t.kind)
        GROUP BY t.name_id, t.args_id, again, p.step),
    grouped AS (
        SELECT min(sample) AS sample, again, {_LISTED} FROM alike GROUP BY name_id, args_id, again)
    SELECT o.name AS op, o.args, NULL::VARCHAR AS kernel, 'op' AS kind, false AS communicates,
           false AS replayed, false AS unlinked, false AS wraps, {_LISTS}, g.* EXCLUDE (sample, of_steps)
    FROM grouped g JOIN ops o ON o.event = g.sample ORDER BY op, args, again
"""


def work_of_ops(trace: Trace) -> list[OpWork]:
    """All device work by the operator that it is counted for; without any, the work of the host."""
    found: list[OpWork] = trace.once(work_of_ops, lambda: [OpWork(**row) for row in _rows(trace)])
    return found


def _rows(trace: Trace) -> list[dict[str, Any]]:
    families = sorted({*COUNTED_OPS.values()}.difference(MATRIX_FAMILIES))
    numbers = {family: number for number, family in enumerate(families, _MATRIX + 1)}
    groups = [numbers.get(family, _MATRIX) for family in COUNTED_OPS.values()]
    asked: dict[str, Any] = {"names": list(COUNTED_OPS), "groups": groups}
    if not trace.has("device_work"):
        return trace.rows(_ON_HOST, **asked)
    names = trace.names_in("device_work")
    # What multiplies tells the data type, even where converting a layout for it took longer.
    ranked = sorted(names, key=lambda name: (_multiplies(name), name))
    light = sum(not _multiplies(name) for name in names)
    asked |= {"kernels": ranked, "ranks": list(range(len(ranked))), "heavy": light}
    alone = trace.rows("SELECT 1 AS found FROM steps WHERE source = 'period' AND thread IS NULL LIMIT 1")
    step = _STEP_FOUND_ALONE if alone else _STEP_BY_LAUNCH
    replayed = _IN_GRAPH if trace.may_have_name(_GRAPH_LAUNCH) else "w.graph_id IS NOT NULL"
    return trace.rows(_ON_DEVICES.format(linked=_LINKED.format(replayed=replayed, **step)), **asked)


def _multiplies(kernel: str) -> bool:
    return family_of(kernel) in MATRIX_FAMILIES and not is_side_kernel(kernel)
