"""Operators at the start of training steps, before the first that a gradient goes through."""

from __future__ import annotations

from typing import Annotated

from stepscope.analyses import analysis
from stepscope.analyses._in_steps import CALLED_IN_STEPS
from stepscope.analyses._windows import how_steps_were_found
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["BeforeTraining", "before_training"]

_PRODUCTS = r"aten::(linear|matmul|mm|addmm|bmm|baddbmm|einsum|conv\w*|_?scaled_dot\w+|lstm|gru|\w*_rnn\w*)"
_DRAWS = r"aten::(rand\w*|normal\w*|uniform_?|bernoulli\w*|multinomial|random_|exponential_|dropout)"
_WRITES = r"aten::(_foreach_\w+|add_|sub_|mul_|div_|lerp_|addcmul_|addcdiv_|copy_|index_copy_|index_put_)"
_READS = r"aten::(item|is_nonzero|_local_scalar_dense|nonzero\w*|argmax|multinomial|masked_select|topk|sort)"
"""What acts or generates reads or chooses: that is part of the training, and new each time."""
_NETWORK = 8
"""So many products are a network; one or two prepare a batch."""
_FEW_WRITES = 0.25
"""Part of the device time: what has more of it updates weights, averages of them, or a memory of samples."""


@dataclass(frozen=True, slots=True)
class BeforeTraining:
    """What one function computes at the start of training steps, without weights that learn."""

    user_frame: Annotated[str | None, "Function of the user's code that calls most; needs with_stack=True."]
    steps: Annotated[int, "How many steps begin with it."]
    products: Annotated[
        int,
        "Products of matrices and convolutions in each of these steps: those of a network. 0 without one.",
    ]
    ops: Annotated[int, "Operators that the program calls in it."]
    longest: Annotated[str, "Those that take most of the device's time."]
    host_ns: Annotated[int, "From the first operator in each step to the end of the last."]
    device_ns: Annotated[int, "Device time of the work that they launch."]


# Autograd numbers the nodes of its graph, and an operator is written with the number that comes next. Before
# the number grows for the first time in a step, nothing depends on a weight that learns.
_SQL = f"""
    WITH called AS ({CALLED_IN_STEPS.format(phases="IN ('forward', 'other')")}),
    first AS (
        SELECT step, arg_min(thread, start_ns) AS thread, min(start_ns) AS first_ns
        FROM called WHERE later > sequence GROUP BY step),
    known AS MATERIALIZED (
        SELECT id AS name_id, text AS name, regexp_full_match(text, '{_PRODUCTS}') AS multiplies,
               regexp_full_match(text, '{_DRAWS}') AS draws, regexp_full_match(text, '{_WRITES}') AS writes,
               regexp_full_match(text, '{_READS}') AS reads
        FROM names),
    told AS (
        SELECT c.*, k.*, c.start_ns < f.first_ns AS is_before, multiplies AND device_ns > 0 AS is_product
        FROM called c JOIN first f ON f.step = c.step AND f.thread = c.thread
            JOIN known k ON k.name_id = c.name_id),
    counted AS (
        SELECT step, count(*) FILTER (is_before AND is_product) AS products,
               count(*) FILTER (NOT is_before AND is_product) AS trained,
               min(start_ns) FILTER (is_before AND is_product) AS first_product_ns,
               max(start_ns) FILTER (is_before AND is_product) AS last_product_ns
        FROM told GROUP BY step),
    before AS (
        SELECT t.*, n.products, n.trained, n.products >= {_NETWORK} AS has_network
        FROM told t JOIN counted n ON n.step = t.step
        WHERE is_before AND (products < {_NETWORK} OR start_ns BETWEEN first_product_ns AND last_product_ns)),
    fit AS (
        SELECT step, min(start_ns) AS since, max(end_ns) AS until, count(*) AS ops,
               sum(device_ns)::BIGINT AS device_ns, mode(user_frame ORDER BY user_frame) AS user_frame,
               any_value(products) AS products
        FROM before GROUP BY step
        HAVING sum(device_ns) > 0
           AND CASE WHEN any_value(has_network)
                    THEN any_value(products <> trained AND trained > 0) AND NOT bool_or(reads)
                    ELSE any_value(products) = 0 AND NOT bool_or(draws) AND {_FEW_WRITES} * sum(device_ns)
                         >= coalesce(sum(device_ns) FILTER (writes), 0) END),
    times AS (
        SELECT f.user_frame, f.products, b.name, sum(b.device_ns) AS device_ns
        FROM fit f JOIN before b ON b.step = f.step WHERE b.device_ns > 0
        GROUP BY f.user_frame, f.products, b.name),
    named AS (
        SELECT user_frame, products,
               array_to_string(list(name ORDER BY device_ns DESC, name)[:4], ', ') AS longest
        FROM times GROUP BY user_frame, products),
    rows AS (
        SELECT user_frame, products, count(*) AS steps, sum(ops)::BIGINT AS ops,
               sum(until - since)::BIGINT AS host_ns, sum(device_ns)::BIGINT AS device_ns
        FROM fit GROUP BY user_frame, products)
    SELECT c.name AS user_frame, r.steps, r.products, r.ops, n.longest, r.host_ns, r.device_ns
    FROM rows r
        JOIN named n ON n.user_frame IS NOT DISTINCT FROM r.user_frame AND n.products = r.products
        LEFT JOIN call_tree c ON c.node = r.user_frame
    ORDER BY r.device_ns DESC, user_frame
"""


@analysis(
    reads={
        "steps": ("step", "source"),
        "ops": (
            "event",
            "thread",
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
    }
)
def before_training(trace: Trace) -> Table[BeforeTraining]:
    """Finds what training steps compute before the first operator that a gradient goes through.

    What multiplies matrices is a network, such as a teacher or a frozen encoder: of it a row has what lies
    from its first product to its last. It is none that has as many products as the network that learns, which
    may be its average or itself, or that reads or chooses numbers, as what acts or generates does. Without a
    network there is no row for what draws numbers, because it differs from step to step, or mostly writes in
    place.
    """
    if not trace.may_have_name("^autograd::engine::evaluate_function"):
        return Table.of(BeforeTraining, [], ["No backward pass in the profile."])
    rows = trace.query(BeforeTraining, _SQL)
    nothing = [] if len(rows) else ["No step begins with device work that no gradient goes through."]
    return Table.of(BeforeTraining, rows, nothing + how_steps_were_found(trace))
