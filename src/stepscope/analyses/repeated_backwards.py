"""Backward passes that go through the same forward pass again."""

from __future__ import annotations

from typing import Annotated

from stepscope.analyses import analysis
from stepscope.analyses._uses_of_weights import IN_PASSES, KEEPS
from stepscope.analyses._windows import how_steps_were_found
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["RepeatedBackwards", "repeated_backwards"]

_COLUMNS = """
    o.sequence, o.forward_thread, coalesce(o.dur_ns, 0) AS dur_ns,
    coalesce(o.device_once_ns, 0) AS device_ns
"""


@dataclass(frozen=True, slots=True)
class RepeatedBackwards:
    """Nodes of autograd that ran again for the same operator, before the weights were updated; all steps."""

    steps: Annotated[int, "Steps in which nodes ran again."]
    passes: Annotated[int, "How often a node ran at most in one of them."]
    operators: Annotated[int, "Operators of the forward pass with a gradient, once each."]
    runs: Annotated[int, "How often their nodes ran."]
    host_ns: Annotated[
        int, "Time of the runs after the first, and of as large a part of the sums of gradients."
    ]
    device_ns: Annotated[int, "Device time of the work that these launched."]


# Autograd numbers its nodes, in each thread of the program: a number comes again if backward goes through the
# node again. A derivative by inputs sums no gradients of weights: only passes that do could be one.
_SQL = f"""
    WITH {IN_PASSES.format(columns=_COLUMNS)},
    numbered AS (
        SELECT *, row_number() OVER (
                   PARTITION BY step, updates, forward_thread, sequence, name ORDER BY start_ns) AS run
        FROM in_passes WHERE sequence IS NOT NULL AND name <> '{KEEPS}'),
    again AS (
        SELECT step, updates, min(start_ns) FILTER (run > 1) AS since, count(*) AS runs,
               count(*) FILTER (run = 1) AS operators, max(run) AS passes,
               sum(dur_ns) FILTER (run > 1) AS host_ns, sum(device_ns) FILTER (run > 1) AS device_ns
        FROM numbered GROUP BY step, updates HAVING max(run) > 1),
    kept AS (
        SELECT step, updates, bool_or(start_ns < since) AND bool_or(start_ns >= since) AS several,
               sum(dur_ns) AS kept_ns, sum(i.device_ns) AS added_ns
        FROM in_passes i JOIN again USING (step, updates) WHERE name = '{KEEPS}'
        GROUP BY step, updates),
    measured AS (
        SELECT *, (runs - operators) / runs AS part FROM again JOIN kept USING (step, updates) WHERE several)
    SELECT count(DISTINCT step) AS steps, max(passes) AS passes, sum(operators)::BIGINT AS operators,
           sum(runs)::BIGINT AS runs, round(sum(host_ns + part * kept_ns))::BIGINT AS host_ns,
           round(sum(device_ns + part * added_ns))::BIGINT AS device_ns
    FROM measured HAVING count(*) > 0
"""


@analysis(
    reads={
        "steps": ("step", "source", "host_start_ns", "host_end_ns"),
        "ops": ("name", "sequence", "forward_thread", "start_ns", "dur_ns", "device_once_ns"),
        "annotations": ("name", "category", "start_ns"),
    }
)
def repeated_backwards(trace: Trace) -> Table[RepeatedBackwards]:
    """Tells where backward goes several times through one forward pass, as for several losses.

    What computes derivatives by inputs, one after the other, does not count: no weight gets a gradient before
    nodes run again. Neither does what runs again after an update of the weights.
    """
    if not trace.may_have_name(f"^{KEEPS}$"):
        return Table.of(RepeatedBackwards, [], ["No gradients of weights in the profile."])
    rows = trace.query(RepeatedBackwards, _SQL)
    nothing = [] if len(rows) else ["Backward goes through each forward pass once."]
    return Table.of(RepeatedBackwards, rows, nothing + how_steps_were_found(trace))
