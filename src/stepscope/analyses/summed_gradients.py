"""Gradients of weights that are added to what an earlier step left."""

from __future__ import annotations

from typing import Annotated

from stepscope.analyses import analysis
from stepscope.analyses._uses_of_weights import IN_PASSES, KEEPS, USES
from stepscope.analyses._windows import how_steps_were_found
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["SummedGradients", "summed_gradients"]

_COLUMNS = "o.thread, o.event, o.start_ns + coalesce(o.dur_ns, 0) AS end_ns"


@dataclass(frozen=True, slots=True)
class SummedGradients:
    """What one thread of autograd did with the gradients of weights in a backward pass, in all such steps."""

    backward_pass: Annotated[
        int, "Which pass of a step, from 1 on; between two, an optimizer updates weights."
    ]
    steps: Annotated[int, "Steps in which it added to a gradient, in this pass or in another."]
    fresh: Annotated[int, "Gradients that it kept as they were: there was none before."]
    added: Annotated[int, "Gradients that it added to one that was there."]
    fresh_first: Annotated[bool, "Whether in each step the fresh ones come before those that are added."]
    added_first: Annotated[
        bool, "Whether those that are added come first: they belong to later layers or to ones beside them."
    ]
    of_a_copy: Annotated[
        bool,
        "Whether, besides, there are as many of both, and the fresh ones come after a look-up of rows, where "
        "a graph ends: they belong to a second model of the same layers.",
    ]
    uses: Annotated[
        int,
        "How often the weights of those that are added are used: gradients of several uses are summed first. "
        "One where nothing tells of more.",
    ]
    ended: Annotated[
        int,
        "Of these uses, those behind which nothing needs a gradient: the fresh ones come first, or they "
        "belong to a copy, or their first layer computes no gradient of its input, as another use does.",
    ]
    host_ns: Annotated[int, "Time of the backward pass of all these uses."]
    device_ns: Annotated[int, "Device time of the work that it launched in that time."]
    ended_host_ns: Annotated[int, "The part of `host_ns` in uses behind which nothing needs a gradient."]
    ended_device_ns: Annotated[int, "The part of `device_ns` in uses behind which nothing needs a gradient."]
    before_host_ns: Annotated[int, "Time of what comes before them in the pass, such as a loss."]
    before_device_ns: Annotated[int, "Device time of the work that it launched in that time."]


def _times(kind: str, condition: str) -> str:
    return (
        f"sum(until - since) FILTER ({condition}) AS {kind}host_ns, "
        f"sum(device_ns) FILTER ({condition}) AS {kind}device_ns"
    )


def _sums(*columns: str) -> str:
    return ", ".join(f"coalesce(sum({column}), 0)::BIGINT AS {column}" for column in columns)


_ADDED = f"""
    SELECT 1 AS added FROM ops a JOIN ops o ON o.event = a.parent
    WHERE a.name = 'aten::add_' AND o.name = '{KEEPS}' LIMIT 1
"""
_SQL = f"""
    WITH {IN_PASSES.format(columns=_COLUMNS)},
    nodes AS (SELECT * FROM in_passes WHERE name <> '{KEEPS}'),
    kept AS (
        SELECT o.*, a.parent IS NOT NULL AS added
        FROM in_passes o
        LEFT JOIN (SELECT DISTINCT parent FROM ops WHERE name = 'aten::add_') a ON a.parent = o.event
        WHERE o.name = '{KEEPS}'),
    first_nodes AS (
        SELECT step, thread, updates, min(start_ns) AS pass_since
        FROM in_passes GROUP BY step, thread, updates),
    by_pass AS MATERIALIZED (
        SELECT step, thread, updates,
               row_number() OVER (PARTITION BY step, thread ORDER BY updates) AS backward_pass,
               count(*) FILTER (NOT added) AS fresh, count(*) FILTER (added) AS added,
               min(start_ns) FILTER (NOT added) AS fresh_since, max(end_ns) FILTER (NOT added) AS fresh_until,
               min(start_ns) FILTER (added) AS added_since, max(end_ns) FILTER (added) AS until,
               coalesce(fresh_until <= added_since, FALSE) AS fresh_first,
               coalesce(until <= fresh_since, FALSE) AS added_first, any_value(pass_since) AS pass_since
        FROM kept JOIN first_nodes USING (step, thread, updates) GROUP BY step, thread, updates
        QUALIFY sum(count(*) FILTER (added)) OVER (PARTITION BY step, thread) > 0),
    look_ups AS (
        SELECT thread, start_ns FROM nodes WHERE regexp_matches(name, ': Embedding(Bag)?Backward')),
    {USES},
    parts AS (
        SELECT step, thread, backward_pass, ended, FALSE AS before, since, until FROM uses
        UNION ALL
        SELECT step, thread, backward_pass, FALSE, TRUE, any_value(pass_since), min(since) FROM uses
        GROUP BY step, thread, backward_pass),
    measured AS (
        SELECT p.step, p.thread, p.backward_pass, p.ended, p.before, p.since, p.until,
               coalesce(sum(l.work_ns), 0) AS device_ns
        FROM parts p LEFT JOIN launches l
            ON l.thread = p.thread AND l.start_ns >= p.since AND l.start_ns < p.until
        GROUP BY ALL),
    times AS (
        SELECT step, thread, backward_pass, count(*) FILTER (NOT before) AS uses,
               count(*) FILTER (ended) AS ended,
               {_times("", "NOT before")}, {_times("ended_", "ended")}, {_times("before_", "before")}
        FROM measured GROUP BY step, thread, backward_pass)
    SELECT t.backward_pass, count(*) AS steps, sum(fresh)::BIGINT AS fresh, sum(added)::BIGINT AS added,
           bool_and(fresh_first) AS fresh_first, bool_and(added_first) AS added_first,
           bool_and(of_a_copy) AS of_a_copy, min(uses) AS uses, min(ended) AS ended,
           {_sums("host_ns", "device_ns")}, {_sums("ended_host_ns", "ended_device_ns")},
           {_sums("before_host_ns", "before_device_ns")}
    FROM stretches t JOIN times l USING (step, thread, backward_pass)
    GROUP BY t.thread, t.backward_pass ORDER BY t.thread, t.backward_pass
"""


@analysis(
    reads={
        "steps": ("step", "source", "host_start_ns", "host_end_ns"),
        "ops": ("event", "parent", "name", "thread", "start_ns", "dur_ns"),
        "launches": ("thread", "start_ns", "work_ns", "work_events"),
        "annotations": ("name", "category", "start_ns"),
    }
)
def summed_gradients(trace: Trace) -> Table[SummedGradients]:
    """Tells gradients that are added to what was there from fresh ones.

    After `zero_grad()` a weight has no gradient, and autograd keeps the new one as it is. It adds where there
    is one: in the second backward pass before an update, or where nobody clears it.
    """
    if not trace.may_have_name(f"^{KEEPS}$"):
        return Table.of(SummedGradients, [], ["No gradients of weights in the profile."])
    if not trace.rows(_ADDED):
        return Table.of(SummedGradients, [], ["Every gradient is fresh.", *how_steps_were_found(trace)])
    rows = trace.query(SummedGradients, _SQL)
    nothing = [] if len(rows) else ["Every gradient is fresh."]
    return Table.of(SummedGradients, rows, nothing + how_steps_were_found(trace))
