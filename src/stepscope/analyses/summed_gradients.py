"""Gradients of weights that are added to what an earlier step left."""

from __future__ import annotations

from typing import Annotated

from stepscope.analyses import analysis
from stepscope.analyses._in_steps import UPDATES
from stepscope.analyses._windows import how_steps_were_found
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["SummedGradients", "summed_gradients"]

_KEEPS = "torch::autograd::AccumulateGrad"


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
    host_ns: Annotated[
        int, "Time from the last fresh one to the end of the last added one; else from the first added one."
    ]
    device_ns: Annotated[int, "Device time of the work that it launched in that time."]


_SQL = f"""
    WITH updates AS (
        SELECT start_ns, row_number() OVER (ORDER BY start_ns) AS number FROM ({UPDATES})),
    kept AS (
        SELECT s.step, o.thread, o.start_ns, o.start_ns + coalesce(o.dur_ns, 0) AS end_ns,
               a.parent IS NOT NULL AS added, coalesce(u.number, 0) AS updates
        FROM ops o JOIN steps s ON o.start_ns >= s.host_start_ns AND o.start_ns < s.host_end_ns
        LEFT JOIN (SELECT DISTINCT parent FROM ops WHERE name = 'aten::add_') a ON a.parent = o.event
        ASOF LEFT JOIN updates u ON u.start_ns <= o.start_ns
        WHERE o.name = '{_KEEPS}'),
    by_pass AS (
        SELECT step, thread, row_number() OVER (PARTITION BY step, thread ORDER BY updates) AS backward_pass,
               count(*) FILTER (NOT added) AS fresh, count(*) FILTER (added) AS added,
               min(start_ns) FILTER (NOT added) AS fresh_since, max(end_ns) FILTER (NOT added) AS fresh_until,
               min(start_ns) FILTER (added) AS added_since, max(end_ns) FILTER (added) AS until
        FROM kept GROUP BY step, thread, updates
        QUALIFY sum(count(*) FILTER (added)) OVER (PARTITION BY step, thread) > 0),
    look_ups AS (
        SELECT thread, start_ns FROM ops
        WHERE regexp_matches(name, '^autograd::engine::evaluate_function: Embedding(Bag)?Backward')),
    stretches AS (
        SELECT b.*, coalesce(fresh_until <= added_since, FALSE) AS fresh_first,
               coalesce(until <= fresh_since, FALSE) AS added_first,
               coalesce(until <= fresh_since AND added = fresh AND e.start_ns >= added_since, FALSE)
                   AS of_a_copy,
               CASE WHEN fresh_until <= added_since THEN fresh_until ELSE added_since END AS since
        FROM by_pass b ASOF LEFT JOIN look_ups e ON e.thread = b.thread AND e.start_ns < b.until),
    launched AS (
        SELECT t.step, t.thread, t.backward_pass, sum(l.work_ns) AS device_ns
        FROM stretches t
        JOIN launches l ON l.thread = t.thread AND l.start_ns >= t.since AND l.start_ns < t.until
        GROUP BY t.step, t.thread, t.backward_pass)
    SELECT t.backward_pass, count(*) AS steps, sum(fresh)::BIGINT AS fresh, sum(added)::BIGINT AS added,
           bool_and(fresh_first) AS fresh_first, bool_and(added_first) AS added_first,
           bool_and(of_a_copy) AS of_a_copy, coalesce(sum(until - since), 0)::BIGINT AS host_ns,
           coalesce(sum(l.device_ns), 0)::BIGINT AS device_ns
    FROM stretches t LEFT JOIN launched l USING (step, thread, backward_pass)
    GROUP BY t.thread, t.backward_pass ORDER BY t.thread, t.backward_pass
"""


@analysis(
    reads={
        "steps": ("step", "source", "host_start_ns", "host_end_ns"),
        "ops": ("event", "parent", "name", "thread", "start_ns", "dur_ns"),
        "launches": ("thread", "start_ns", "work_ns"),
        "annotations": ("name", "category", "start_ns"),
    }
)
def summed_gradients(trace: Trace) -> Table[SummedGradients]:
    """Tells gradients that are added to what was there from fresh ones.

    After `zero_grad()` a weight has no gradient, and autograd keeps the new one as it is. It adds where there
    is one: in the second backward pass before an update, or where nobody clears it.
    """
    if not trace.may_have_name(f"^{_KEEPS}$"):
        return Table.of(SummedGradients, [], ["No gradients of weights in the profile."])
    rows = trace.query(SummedGradients, _SQL)
    nothing = [] if len(rows) else ["Every gradient is fresh."]
    return Table.of(SummedGradients, rows, nothing + how_steps_were_found(trace))
