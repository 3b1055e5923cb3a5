"""Steps of a trace without marks: what repeats in it.

In this order, and the first that holds is taken; `steps.source` says which:

annotation  A range on the host. Serving engines name their iterations; such a name is believed as it stands,
            once or often. Any other range must come at least 3 times on one thread under one name (numbers in
            it may differ), never overlap itself, and hold at least 80 % of the device work by its launch
            (without a device: of the operators' time on its thread). A range around the forward pass alone
            holds about a third, one around the backward pass two thirds, so that is the least to ask. Of
            several, the one that comes least often is the outermost: the step. Ranges of libraries, and
            names that say they are a part (layer, stage, microbatch, ...), are not steps.
optimizer   The end of `Optimizer.step#...`; a step runs from the end of the one before. Of optimizers that
            are used in turn, at least 3 times each, the one used least, and of those the last; calls with no
            backward pass between them end one step together.
graph       Launches of one and the same graph, the one with the most device time, at least 3 times; at least
            80 % of them must come after as many other graphs as the rest, and all graphs must hold at least
            half of the device time. A step runs from launch to launch.
period      The names of the kernels of the busiest stream, or else of the operators that launched them,
            repeated exactly and without a break, at least 3 times over at least 80 %; at least 8 kernels
            long, and that stream must have at least half of the kernels of its device. Layers repeat as
            well: with strange kernels both before (embedding) and after (head) the stretch, it is one pass
            through a stack of layers and no sequence of steps. Of all places in the period the boundary is
            the one before which is waited longest.
trace       Nothing repeats: the whole is one step.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from stepscope.patterns import late_pattern
from stepscope.store.marks import LEAST_SHARE, LEAST_TIMES, Mark, numbered
from stepscope.store.periods import graph_launches, kernel_periods

if TYPE_CHECKING:
    from stepscope.store.trace import Trace

__all__ = ["found_marks"]

TRIED = 8
"""How many ranges are looked at, those that come least often first."""

ITERATION = (
    r"^(execute_(\d+_)?context_\d+\(.*\)_generation_\d+\(.*\)|execute_new_\d+_cached_\d+"
    r"|step\[[A-Z_0-9]+ bs=.*\]|(prefill|decode|eager_decode)\[bs=.*\])$"
)
"""Names that vLLM, SGLang and ATOM give to an iteration."""

_LIBRARIES = late_pattern(
    r"^(ProfilerStep|Optimizer\.|enumerate\(Data|nccl:|gloo:|mpi:|ucc:|## |Torch-Compiled|TorchDynamo"
    r"|CompiledF|AOT|Pregraph|FSDP|DDP|DistributedDataParallel|PyTorch Profiler|Iteration Start|Memcpy|cuda)"
)
_PARTS = late_pattern(r"layer|block|stage|bucket|chunk|micro|expert", re.IGNORECASE)


def found_marks(trace: Trace) -> list[Mark]:
    """The marks of a trace in which the profiler wrote none: what repeats, or else the whole trace."""
    for find in (_iterations, _annotations, _optimizer_calls, graph_launches, kernel_periods, _whole):
        if marks := find(trace):
            return marks
    return []


# ---------------------------------------------------------------- annotations

_RANGES = """
    SELECT t.thread, n.text AS name, regexp_replace(n.text, '\\d+', '#', 'g') AS pattern, t.start_ns,
           t.start_ns + coalesce(t.dur_ns, 0) AS end_ns, t.event
    FROM stored.annotations t JOIN stored.names n ON n.id = t.name
    JOIN stored.skeletons s ON s.id = t.skeleton
    WHERE s.category = $category AND s.phase = 'X' AND t.start_ns IS NOT NULL
"""
# Copies of a range on several streams are one; of ranges in one another the outermost counts.
_ITERATIONS = f"""
    WITH ranges AS ({_RANGES} AND regexp_matches(n.text, $iteration)),
    longest AS (
        SELECT thread FROM ranges GROUP BY thread ORDER BY sum(end_ns - start_ns) DESC, thread LIMIT 1),
    nested AS (
        SELECT *, end_ns <= max(end_ns) OVER (ORDER BY start_ns, end_ns DESC, event
                                              ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS inside
        FROM ranges JOIN longest USING (thread))
    SELECT name, start_ns, end_ns, thread FROM nested WHERE inside IS NOT TRUE ORDER BY start_ns, event
"""
_PATTERNS = f"""
    WITH ordered AS (
        SELECT *, lag(end_ns) OVER (PARTITION BY thread, pattern ORDER BY start_ns, event) AS before
        FROM ({_RANGES}))
    SELECT thread, pattern, count(*) AS times FROM ordered GROUP BY thread, pattern
    HAVING times >= $least AND bool_and(before IS NULL OR before <= start_ns)
    ORDER BY times, sum(end_ns - start_ns) DESC
"""
_RANGES_OF = f"""
    SELECT name, start_ns, end_ns FROM ({_RANGES})
    WHERE thread = $thread AND pattern = $pattern ORDER BY start_ns, event
"""
# What part of the work is inside some ranges: device work by its launch; without any, operators' own time.
_INSIDE = """
    WITH weighed AS ({weighed}),
    ranges AS (SELECT unnest($starts::BIGINT[]) AS start_ns, unnest($ends::BIGINT[]) AS end_ns)
    SELECT coalesce(sum(weight) FILTER (w.start_ns < r.end_ns), 0)::DOUBLE AS inside,
           coalesce(sum(weight), 0)::DOUBLE AS whole
    FROM weighed w ASOF LEFT JOIN ranges r ON w.start_ns >= r.start_ns
"""
_LAUNCHED = (
    "SELECT start_ns, work_ns AS weight FROM stored.launches WHERE work_ns > 0 AND start_ns IS NOT NULL"
)
_OPERATED = (
    "SELECT start_ns, self_ns AS weight FROM stored.ops "
    "WHERE self_ns > 0 AND start_ns IS NOT NULL AND thread = $thread"
)


def _iterations(trace: Trace) -> list[Mark]:
    """The iterations that a serving engine named: on the host, or what the device has of them."""
    for category in ("user_annotation", "gpu_user_annotation"):
        rows = trace.rows(_ITERATIONS, category=category, iteration=ITERATION)
        if rows:
            ranges = [(row["name"], row["start_ns"], row["end_ns"]) for row in rows]
            return numbered(
                "annotation", ranges, rows[0]["thread"] if category == "user_annotation" else None
            )
    return []


def _annotations(trace: Trace) -> list[Mark]:
    """A range of the user's that comes again and again and holds most of the work."""
    host = {"category": "user_annotation"}
    found = trace.rows(_PATTERNS, least=LEAST_TIMES, **host)
    asked = [row for row in found if not (_LIBRARIES.search(row["pattern"]) or _PARTS.search(row["pattern"]))]
    for row in asked[:TRIED]:
        place = {"thread": row["thread"], "pattern": row["pattern"]}
        named = trace.rows(_RANGES_OF, **place, **host)
        ranges = [(one["name"], one["start_ns"], one["end_ns"]) for one in named]
        if _share_inside(trace, ranges, row["thread"]) >= LEAST_SHARE:
            return numbered("annotation", ranges, row["thread"])
    return []


def _share_inside(trace: Trace, ranges: list[tuple[str | None, int, int]], thread: int) -> float:
    bounds = {"starts": [start for _, start, _ in ranges], "ends": [end for _, _, end in ranges]}
    found = trace.rows(_INSIDE.format(weighed=_LAUNCHED), **bounds)[0]
    if not found["whole"]:
        found = trace.rows(_INSIDE.format(weighed=_OPERATED), thread=thread, **bounds)[0]
    return float(found["inside"] / found["whole"]) if found["whole"] else 0.0


# ---------------------------------------------------------------- optimizer

# Old versions of torch wrote the optimizer's range as an operator.
_OPTIMIZER = """
    WITH calls AS (
        SELECT t.event, t.thread, n.text AS name, t.start_ns, t.start_ns + coalesce(t.dur_ns, 0) AS end_ns
        FROM (SELECT event, thread, name, skeleton, start_ns, dur_ns FROM stored.annotations
              UNION ALL SELECT event, thread, name, skeleton, start_ns, dur_ns FROM stored.ops) t
        JOIN (SELECT * FROM stored.names WHERE starts_with(text, 'Optimizer.step#')) n ON n.id = t.name
        JOIN stored.skeletons s ON s.id = t.skeleton
        WHERE t.start_ns IS NOT NULL AND s.category <> 'gpu_user_annotation'),
    chosen AS (
        SELECT thread, name FROM calls GROUP BY thread, name
        ORDER BY CASE WHEN count(*) >= $least THEN 1 / count(*) ELSE count(*) / 1e9 END DESC, max(end_ns) DESC
        LIMIT 1)
    SELECT * FROM calls JOIN chosen USING (thread, name) ORDER BY start_ns, event
"""
# How many nodes of backward passes began between the end of a call and the end of the next.
_BACKWARD = """
    WITH cuts AS (SELECT unnest($cuts::BIGINT[]) AS cut)
    SELECT cut, count(*) AS nodes
    FROM (SELECT t.start_ns FROM stored.ops t JOIN stored.names n ON n.id = t.name
          WHERE starts_with(n.text, 'autograd::engine::evaluate_function')) nodes
    ASOF JOIN cuts ON nodes.start_ns >= cuts.cut GROUP BY cut
"""
_FIRST = """
    SELECT min(start_ns) AS start_ns
    FROM (SELECT start_ns FROM stored.ops UNION ALL SELECT start_ns FROM stored.launches)
"""


def _optimizer_calls(trace: Trace) -> list[Mark]:
    calls = trace.rows(_OPTIMIZER, least=LEAST_TIMES)
    if not calls:
        return []
    first = trace.rows(_FIRST)[0]["start_ns"]
    begin = calls[0]["start_ns"] if first is None else min(first, calls[0]["start_ns"])
    rows = trace.rows(_BACKWARD, cuts=sorted({begin, *(call["end_ns"] for call in calls)}))
    after = {row["cut"]: row["nodes"] for row in rows}
    ends = [
        call
        for call, following in zip(calls, [*calls[1:], None], strict=True)
        # Without backward passes in the profile nothing says that two calls belong together.
        if following is None or not after or after.get(call["end_ns"])
    ]
    starts = [begin, *(call["end_ns"] for call in ends)]
    ranges = [(call["name"], start, call["end_ns"]) for start, call in zip(starts, ends, strict=False)]
    return numbered("optimizer", ranges, calls[0]["thread"])


# ---------------------------------------------------------------- nothing

_WHAT_IS_DONE = (
    ("device_work", "launches", "ops", "annotations"),
    ("python_frames",),
    ("other_events", "memory_events", "flows"),
)
_WHOLE = """
    SELECT min(start_ns) AS start_ns, max(start_ns + coalesce(dur_ns, 0)) AS end_ns FROM ({tables})
    WHERE start_ns IS NOT NULL
"""


def _whole(trace: Trace) -> list[Mark]:
    """The whole trace as one step: from the first to the last of the events that do something."""
    for tables in _WHAT_IS_DONE:
        union = " UNION ALL ".join(f"SELECT start_ns, dur_ns FROM stored.{table}" for table in tables)
        found = trace.rows(_WHOLE.format(tables=union))[0]
        if found["start_ns"] is not None:
            return numbered("trace", [(None, found["start_ns"], found["end_ns"])], None)
    return []
