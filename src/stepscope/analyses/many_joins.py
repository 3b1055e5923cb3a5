"""Calls that put one tensor together from very many."""

from __future__ import annotations

from typing import Annotated

from stepscope.analyses import analysis
from stepscope.analyses._windows import how_steps_were_found
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["ManyJoins", "many_joins"]

_LEAST_LAUNCHES = 4
"""A launch copies up to 128 tensors, or 64: with so many there are hundreds."""
_TENSORS_A_LAUNCH = 64
_NORM = "norm$"
"""What comes next where gradients are clipped: the norm of their norms, which are the same in each step."""
_LEAST_VIEWS = 128
"""Where torch.stack makes a view of each tensor first, their number is known."""


@dataclass(frozen=True, slots=True)
class ManyJoins:
    """Calls of torch.stack or torch.cat from one function, each of hundreds of tensors on a device."""

    name: Annotated[str, "The operator."]
    user_frame: Annotated[str | None, "Function of the user's code that calls it; needs with_stack=True."]
    calls: Annotated[int, "How often it is called in the steps."]
    tensors: Annotated[int, "How many tensors are put together at least, in all calls, by launches or views."]
    host_ns: Annotated[int, "Time in these calls."]
    before_ns: Annotated[
        int, "Time between the operator before each, on its thread, and the call: Python makes the list."
    ]
    device_ns: Annotated[int, "Time of the copies that they launch."]


_SQL = f"""
    WITH called AS (
        SELECT o.event, o.name, o.thread, o.start_ns, o.dur_ns, p.user_frame, p.step,
               o.start_ns - max(o.start_ns + coalesce(o.dur_ns, 0)) OVER (
                   PARTITION BY o.thread ORDER BY o.start_ns, o.event
                   ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before_ns,
               lead(o.name) OVER (PARTITION BY o.thread ORDER BY o.start_ns, o.event) AS after
        FROM ops o JOIN call_sites p ON p.event = o.event WHERE o.depth = 0),
    joins AS (
        SELECT * FROM called WHERE name IN ('aten::stack', 'aten::cat') AND step IS NOT NULL
           AND coalesce(NOT regexp_matches(after, '{_NORM}'), TRUE)),
    launched AS (
        SELECT j.event, count(*) AS launches, sum(l.work_ns) AS device_ns
        FROM launches l ASOF JOIN joins j ON j.thread = l.thread AND j.start_ns <= l.start_ns
        WHERE l.start_ns < j.start_ns + j.dur_ns AND l.work_events > 0 GROUP BY j.event),
    viewed AS (
        SELECT o.parent AS event, count(*) AS views FROM ops o SEMI JOIN joins j ON j.event = o.parent
        WHERE o.name = 'aten::unsqueeze' GROUP BY o.parent)
    SELECT j.name, t.name AS user_frame, count(*) AS calls,
           sum(greatest((l.launches - 1) * {_TENSORS_A_LAUNCH}, coalesce(v.views, 0)))::BIGINT AS tensors,
           sum(j.dur_ns)::BIGINT AS host_ns,
           coalesce(sum(greatest(j.before_ns, 0)), 0)::BIGINT AS before_ns,
           sum(l.device_ns)::BIGINT AS device_ns
    FROM joins j JOIN launched l ON l.event = j.event LEFT JOIN viewed v ON v.event = j.event
        LEFT JOIN call_tree t ON t.node = j.user_frame
    WHERE l.launches >= {_LEAST_LAUNCHES} OR v.views >= {_LEAST_VIEWS}
    GROUP BY j.name, t.name ORDER BY host_ns DESC, j.name, t.name
"""


@analysis(
    reads={
        "steps": ("source",),
        "ops": ("event", "name", "thread", "start_ns", "dur_ns", "depth", "parent"),
        "call_sites": ("event", "user_frame", "step"),
        "call_tree": ("node", "name"),
        "launches": ("thread", "start_ns", "work_ns", "work_events"),
    }
)
def many_joins(trace: Trace) -> Table[ManyJoins]:
    """Lists calls of torch.stack and torch.cat that put hundreds of tensors on a device together.

    The host looks at each of them, several times, and a launch copies 128 at most. Of tensors that lie in one
    from the beginning, one index takes a batch.
    """
    if not trace.may_have_name("^aten::(stack|cat)$"):
        return Table.of(ManyJoins, [], ["Nothing is stacked or concatenated."])
    rows = trace.query(ManyJoins, _SQL)
    nothing = [] if len(rows) else ["No call puts hundreds of tensors on a device together."]
    return Table.of(ManyJoins, rows, nothing + how_steps_were_found(trace))
