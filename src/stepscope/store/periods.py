"""Steps of a trace that says nothing of them: launches of one graph, or kernels that come again in order."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from stepscope import _native
from stepscope.schema import KERNELS
from stepscope.store.columns import view
from stepscope.store.marks import LEAST_SHARE, LEAST_TIMES, Mark, numbered

if TYPE_CHECKING:
    from stepscope.store.trace import Trace

__all__ = ["graph_launches", "kernel_periods"]

LEAST_PART = 0.5
"""The part of the device time that graphs must hold, and of the kernels that the busiest stream must have."""
LEAST_PERIOD = 8
"""Kernels in a step; what is shorter is a loop inside one."""

# ---------------------------------------------------------------- graphs

# A graph is known by its number where the profile has it, else by how many pieces of work it holds.
_GRAPHS = """
    WITH called AS (
        SELECT l.event, l.thread, l.start_ns, l.start_ns + coalesce(l.dur_ns, 0) AS end_ns,
               l.work_ns, l.work_events
        FROM stored.launches l JOIN stored.names n ON n.id = l.name
        WHERE n.text LIKE '%GraphLaunch%' AND l.work_events > 0 AND l.start_ns IS NOT NULL),
    numbered AS (
        SELECT w.launch, max(w.graph_id) AS graph FROM stored.device_work w
        WHERE w.launch IN (SELECT event FROM called) GROUP BY w.launch),
    graphs AS (
        SELECT c.*, coalesce('id ' || n.graph, 'size ' || c.work_events) AS graph,
               row_number() OVER (ORDER BY c.start_ns, c.event) AS place
        FROM called c LEFT JOIN numbered n ON n.launch = c.event),
    longest AS (
        SELECT graph FROM graphs GROUP BY graph HAVING count(*) >= $least
        ORDER BY sum(work_ns) DESC, graph LIMIT 1)
    SELECT thread, start_ns, end_ns, place,
           (SELECT sum(work_ns) FROM graphs) / (SELECT sum(work_ns) FROM stored.launches)::DOUBLE AS share
    FROM graphs JOIN longest USING (graph) ORDER BY place
"""
_LAST_CALL = "SELECT max(start_ns + coalesce(dur_ns, 0)) AS end_ns FROM stored.launches WHERE work_events > 0"


def graph_launches(trace: Trace) -> list[Mark]:
    """Steps from one launch to the next of a graph that is launched again and again."""
    launches = trace.rows(_GRAPHS, least=LEAST_TIMES)
    if not launches or launches[0]["share"] < LEAST_PART:
        return []
    between = [after["place"] - before["place"] for before, after in pairwise(launches)]
    if max(between.count(number) for number in set(between)) < LEAST_SHARE * len(between):
        return []
    starts = [launch["start_ns"] for launch in launches]
    # After the last launch comes what ends its step, and perhaps more: no more than in the longest step.
    longest = max(after - before for before, after in pairwise(starts))
    end = min(trace.rows(_LAST_CALL)[0]["end_ns"], starts[-1] + longest)
    bounds = [*starts, max(end, launches[-1]["end_ns"])]
    return numbered("graph", [(None, start, end) for start, end in pairwise(bounds)], launches[0]["thread"])


# ---------------------------------------------------------------- periods

_KERNELS = """
    FROM stored.device_work w JOIN stored.skeletons s ON s.id = w.skeleton
    WHERE list_contains($kernels, s.category) AND w.start_ns IS NOT NULL
"""
_BUSIEST = f"""
    SELECT w.thread, count(*) AS kernels,
           count(*) / sum(count(*)) OVER (PARTITION BY coalesce(w.device, -1)) AS share
    {_KERNELS} GROUP BY w.thread, coalesce(w.device, -1) ORDER BY kernels DESC, w.thread LIMIT 1
"""
_SEQUENCE = f"""
    SELECT coalesce(w.name, -1)::BIGINT AS name {_KERNELS} AND w.thread = $thread ORDER BY w.start_ns, w.event
"""
# The kernel of a matrix product changes with its sizes; the operator that launched it does not.
_OPERATORS = f"""
    SELECT coalesce(o.name, w.name, -1)::BIGINT AS name
    FROM (SELECT w.event, w.start_ns, w.name, w.op {_KERNELS} AND w.thread = $thread) w
    LEFT JOIN stored.ops o ON o.event = w.op ORDER BY w.start_ns, w.event
"""
# How long was waited before each place of the period: between launches, or without them between kernels.
_PLACED = f"""
    placed AS (
        SELECT w.start_ns, w.start_ns + coalesce(w.dur_ns, 0) AS end_ns, w.launch,
               row_number() OVER (ORDER BY w.start_ns, w.event) - 1 - $first AS place
        {_KERNELS} AND w.thread = $thread),
    stretch AS (
        SELECT p.place, p.start_ns, p.end_ns, l.thread, l.start_ns AS launch_ns,
               l.start_ns + coalesce(l.dur_ns, 0) AS launched_ns
        FROM placed p LEFT JOIN stored.launches l ON l.event = p.launch WHERE p.place BETWEEN 0 AND $rows - 1)
"""
_WAITS = f"""
    WITH {_PLACED},
    waited AS (
        SELECT place % $period AS phase, start_ns - lag(end_ns) OVER (ORDER BY place) AS device_ns,
               launch_ns - lag(launched_ns) OVER (ORDER BY place) AS host_ns, launch_ns IS NULL AS unlinked
        FROM stretch)
    SELECT phase FROM waited WHERE device_ns IS NOT NULL GROUP BY phase
    ORDER BY CASE WHEN (SELECT bool_or(unlinked) FROM waited) THEN avg(device_ns) ELSE avg(host_ns) END DESC,
             phase
    LIMIT 1
"""
_BOUNDARIES = f"""
    WITH {_PLACED}
    SELECT place, start_ns, end_ns, launch_ns, launched_ns, thread FROM stretch
    WHERE place % $period = $phase OR place = $rows - 1 ORDER BY place
"""


def kernel_periods(trace: Trace) -> list[Mark]:
    """Steps from one repetition to the next of the sequence of kernels."""
    kernels = {"kernels": list(KERNELS)}
    streams = trace.rows(_BUSIEST, **kernels)
    if not streams or streams[0]["share"] < LEAST_PART:
        return []
    of_stream = {"thread": streams[0]["thread"], **kernels}
    for sequence in (_SEQUENCE, _OPERATORS):
        names = trace.arrow(sequence, **of_stream)["name"].combine_chunks()
        if found := _native.find_repetition(view(names), LEAST_PERIOD, LEAST_SHARE):
            first, period, rows, foreign_before, foreign_after = found
            if foreign_before and foreign_after:
                return []
            at = {"first": first, "rows": rows, "period": period, **of_stream}
            return _from_stretch(trace, at, is_whole=rows == len(names) and rows % period == 0)
    return []


def _from_stretch(trace: Trace, at: dict[str, Any], *, is_whole: bool) -> list[Mark]:
    """Steps of the stretch in which kernels repeat; whole ones only."""
    rows, period = at["rows"], at["period"]
    # A profile that holds whole steps and nothing else says itself where they begin.
    phase = 0 if is_whole else trace.rows(_WAITS, **at)[0]["phase"]
    places = trace.rows(_BOUNDARIES, phase=phase, **at)
    last = places[-1]
    if (rows - phase) % period:  # the stretch ends inside a period, which is no whole step
        places = [place for place in places if place["place"] % period == phase]
        last = {"end_ns": places[-1]["start_ns"], "launched_ns": places[-1]["launch_ns"]}
        places = places[:-1]
    elif places[-1]["place"] % period != phase:
        places = places[:-1]
    return _between(places, last)


def _between(places: list[dict[str, Any]], last: dict[str, Any]) -> list[Mark]:
    """Steps from boundary to boundary: on the host, where each boundary has a launch of its own."""
    bounds = [*(place["launch_ns"] for place in places), last["launched_ns"]]
    on_host = None not in bounds and all(before < after for before, after in pairwise(bounds))
    if not on_host:
        bounds = [*(place["start_ns"] for place in places), last["end_ns"]]
    ranges = [(None, start, end) for start, end in pairwise(bounds)]
    return numbered("period", ranges, places[0]["thread"] if on_host else None)
