"""Operators of training steps that no gradient depends on: metrics, logging, checks."""

from __future__ import annotations

from typing import Annotated

from stepscope.analyses import analysis
from stepscope.analyses._in_steps import CALLED_IN_STEPS, UPDATES
from stepscope.analyses._windows import how_steps_were_found
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["BesideTraining", "beside_training"]

_PRODUCTS = r"aten::(linear|matmul|mm|addmm|bmm|baddbmm|einsum|conv\w*|_?scaled_dot\w+|lstm|gru|\w*_rnn\w*)"
_IN_PLACE = r"aten::[a-z]\w*_"
_READS = r"aten::(item|is_nonzero|_local_scalar_dense|equal|nonzero|tolist)"
_APART_NS = 1_000_000
_LEAST_OPS = 32
"""With work of a device: clipping gradients takes about ten."""
_FEW_PRODUCTS = 0.01
"""Part of the operators: what has more of them is a network. A loss may need it, such as a teacher, unless
the step has updated its weights already."""
_MOST_IN_PLACE = 0.4
"""Part of those with device work: what has more of them updates weights or averages of them."""


@dataclass(frozen=True, slots=True)
class BesideTraining:
    """Stretches of operators from one function, in all steps, that no gradient of the step depends on."""

    user_frame: Annotated[str | None, "Function of the user's code that calls most; needs with_stack=True."]
    before_update: Annotated[
        bool, "Whether an optimizer updates weights next: then the update may depend on it, as on clipping."
    ]
    network: Annotated[
        bool,
        "Whether it computes a network, after the last update of a marked step, as a validation does.",
    ]
    stretches: Annotated[int, "How many there are, of 32 operators with device work and more."]
    ops: Annotated[int, "Operators that the program calls in them."]
    reads: Annotated[int, "Those that read a value from the device."]
    most_often: Annotated[str, "Those that are called most often."]
    host_ns: Annotated[int, "From the first operator of each to the end of its last."]
    device_ns: Annotated[int, "Device time of the work that they launch."]


# Autograd numbers the nodes of its graph, and an operator is written with the number that comes next: it adds
# a node if the number after it is larger. At the end of the profile the backward pass tells. Nothing that
# runs between the last node and the next backward pass, or the end of the step, has a part in a gradient.
_SQL = f"""
    WITH backward AS (
        SELECT o.start_ns, o.sequence FROM ops o JOIN call_sites p ON p.event = o.event
        WHERE o.depth = 0 AND p.phase = 'backward'),
    -- What is sorted has numbers in place of names: of millions of operators they take little memory.
    known AS MATERIALIZED (
        SELECT id AS name_id, text AS name, regexp_full_match(text, '{_READS}') AS reads,
               regexp_full_match(text, '{_PRODUCTS}') AS multiplies,
               regexp_full_match(text, '{_IN_PLACE}') AS in_place
        FROM names),
    called AS ({CALLED_IN_STEPS.format(phases="IN ('forward', 'other')")}),
    told AS (
        SELECT *, coalesce(coalesce(later, (SELECT max(sequence) FROM backward) + 1) > sequence, FALSE)
                  AS grows
        FROM called),
    begun AS (
        SELECT *, coalesce(lag(place) OVER near < place - 1
                           OR start_ns - lag(end_ns) OVER near > {_APART_NS}, TRUE) AS begins
        FROM told WHERE NOT grows WINDOW near AS (PARTITION BY step, thread ORDER BY start_ns, event)),
    numbered AS (
        SELECT *, sum(begins::INT) OVER (PARTITION BY step, thread ORDER BY start_ns, event) AS number
        FROM begun),
    stretches AS (
        SELECT step, thread, number, min(start_ns) AS since, max(end_ns) AS until, count(*) AS ops,
               count(*) FILTER (k.reads) AS reads,
               sum(device_ns)::BIGINT AS device_ns, mode(user_frame ORDER BY user_frame) AS user_frame,
               count(*) FILTER (k.multiplies) > {_FEW_PRODUCTS} * count(*) AS network
        FROM numbered JOIN known k USING (name_id) GROUP BY step, thread, number
        HAVING count(*) FILTER (device_ns > 0) >= {_LEAST_OPS}
           AND count(*) FILTER (k.in_place AND device_ns > 0)
               <= {_MOST_IN_PLACE} * count(*) FILTER (device_ns > 0)),
    updates AS ({UPDATES}),
    beside AS (
        SELECT t.*, coalesce(u.start_ns < s.host_end_ns AND u.start_ns < coalesce(b.start_ns, s.host_end_ns),
                             FALSE) AS before_update
        FROM stretches t JOIN steps s ON s.step = t.step
            ASOF LEFT JOIN (SELECT thread, start_ns FROM told WHERE grows) n
                ON n.thread = t.thread AND n.start_ns >= t.since
            ASOF LEFT JOIN backward b ON b.start_ns >= t.since
            ASOF LEFT JOIN updates u ON u.start_ns >= t.until
            ASOF LEFT JOIN updates v ON v.start_ns <= t.since
        WHERE (n.start_ns IS NULL OR n.start_ns >= s.host_end_ns OR n.start_ns > b.start_ns)
          AND (NOT t.network OR (s.source IN ('mark', 'annotation') AND v.start_ns >= s.host_start_ns
                                 AND coalesce(least(u.start_ns, b.start_ns) >= s.host_end_ns, TRUE)))),
    names AS (
        SELECT t.user_frame, t.before_update, t.network, k.name, count(*) AS calls
        FROM beside t JOIN numbered n ON n.step = t.step AND n.thread = t.thread AND n.number = t.number
            JOIN known k ON k.name_id = n.name_id
        WHERE n.device_ns > 0 GROUP BY ALL),
    often AS (
        SELECT user_frame, before_update, network,
               array_to_string(list(name ORDER BY calls DESC, name)[:5], ', ') AS most_often
        FROM names GROUP BY ALL),
    rows AS (
        SELECT user_frame, before_update, network, count(*) AS stretches, sum(ops)::BIGINT AS ops,
               sum(reads)::BIGINT AS reads, sum(until - since)::BIGINT AS host_ns,
               sum(device_ns)::BIGINT AS device_ns
        FROM beside GROUP BY ALL)
    SELECT c.name AS user_frame, r.before_update, r.network, r.stretches, r.ops, r.reads, f.most_often,
           r.host_ns, r.device_ns
    FROM rows r JOIN often f
            ON f.user_frame IS NOT DISTINCT FROM r.user_frame AND f.before_update = r.before_update
            AND f.network = r.network
        LEFT JOIN call_tree c ON c.node = r.user_frame
    ORDER BY r.host_ns DESC, user_frame, r.before_update, r.network
"""


@analysis(
    reads={
        "steps": ("step", "source", "host_start_ns", "host_end_ns"),
        "ops": (
            "event",
            "thread",
            "name",
            "name_id",
            "start_ns",
            "dur_ns",
            "depth",
            "sequence",
            "device_once_ns",
        ),
        "call_sites": ("event", "step", "phase", "user_frame"),
        "call_tree": ("node", "name"),
        "names": ("id", "text"),
        "annotations": ("name", "category", "start_ns"),
    }
)
def beside_training(trace: Trace) -> Table[BesideTraining]:
    """Finds operators of training steps that no gradient depends on, such as those of metrics and logs.

    They run after the loss is computed, or after the backward pass, and do not update weights in place. A
    network is a row if it runs after the last update of a step. What prepares a batch, or targets of a loss,
    comes before and is no row.
    """
    if not trace.may_have_name("^autograd::engine::evaluate_function"):
        return Table.of(BesideTraining, [], ["No backward pass in the profile."])
    rows = trace.query(BesideTraining, _SQL)
    nothing = [] if len(rows) else ["Nothing that takes many operators runs beside the training."]
    return Table.of(BesideTraining, rows, nothing + how_steps_were_found(trace))
