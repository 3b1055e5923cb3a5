"""Adapters of low rank that are multiplied out and added to the weights they adapt, in every pass."""

from __future__ import annotations

from typing import Annotated

from stepscope.analyses import analysis
from stepscope.analyses._in_steps import MIDDLE_STEP
from stepscope.analyses._windows import how_steps_were_found
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["MultipliedAdapters", "multiplied_adapters"]

_PRODUCTS = ("aten::matmul", "aten::mm")
_LAYERS = ("aten::linear", "aten::matmul", "aten::mm", "aten::addmm")
_ADDS = ("aten::add", "aten::add_")
_VIEWS = (
    "aten::to",
    "aten::t",
    "aten::numpy_T",
    "aten::transpose",
    "aten::detach",
    "aten::alias",
    "aten::contiguous",
)
_LEAST_TIMES = 4
"""A weight is so many times as high and as wide as the rank of its adapter, or more."""
_PASSES = 6
"""Of an adapter beside its layer over inputs and outputs, a third of them forward."""
_LIKE_SCALE, _LIKE_SUM = 2.5, 1.5
"""A product of low rank takes about as long as its result is written: scaling it reads and writes that, and
the sum reads it twice."""


@dataclass(frozen=True, slots=True)
class MultipliedAdapters:
    """Adapters that one function of the user's leads to, in all steps."""

    user_frame: Annotated[
        str | None, "Function of the user's code that calls the layers; needs with_stack=True."
    ]
    calls: Annotated[int, "How often an adapter is multiplied out."]
    rank: Annotated[int | None, "The rank of most; NULL if shapes were not recorded."]
    host_ns: Annotated[int, "From the begin of each product to the end of its sum with the weights."]
    device_ns: Annotated[int, "Device time of the product, the scale and the sum."]
    backward_ns: Annotated[int, "Device time of their gradients."]
    layer_backward_ns: Annotated[
        int, "Device time of the layers' products in the backward pass: half of it is for the weights."
    ]
    beside_ns: Annotated[
        int | None,
        "Device time that the adapters would take beside their layers: six passes over inputs and outputs, "
        "at the rate of the sum; a third of that without a backward pass. NULL if shapes were not recorded.",
    ]


# In one step, which is asked first: most programs have no such order of operators.
_IN_ONE = f"""
    WITH one AS ({MIDDLE_STEP}),
    called AS (
        SELECT o.name, lead(o.name) OVER after AS second, lead(o.name, 2) OVER after AS third,
               lead(o.name, 3) OVER after AS fourth
        FROM ops o JOIN one s ON o.start_ns >= s.host_start_ns AND o.start_ns < s.host_end_ns
        WHERE o.depth = 0 AND o.name NOT IN {_VIEWS}
        WINDOW after AS (PARTITION BY o.thread ORDER BY o.start_ns, o.event))
    SELECT 1 AS found FROM called
    WHERE name IN {_PRODUCTS} AND (second IN {_ADDS} AND third IN {_LAYERS}
                                   OR second = 'aten::mul' AND third IN {_ADDS} AND fourth IN {_LAYERS})
    LIMIT 1
"""
# W + (B A) · scale, and then a layer with that: a product, perhaps a scale, a sum and a product. An adapter
# beside its layer has two products before its sum, and that of the layer itself before these.
_SQL = f"""
    WITH called AS (
        SELECT p.step, o.event, o.thread, o.name, o.start_ns, o.start_ns + coalesce(o.dur_ns, 0) AS end_ns,
               p.user_frame, coalesce(o.device_once_ns, 0) AS device_ns, o.sequence,
               CAST(o.args->'$."Input Dims"' AS VARCHAR) AS dims
        FROM ops o JOIN call_sites p ON p.event = o.event
        WHERE o.depth = 0 AND p.step IS NOT NULL AND o.name NOT IN {_VIEWS}),
    numbered AS (
        SELECT *, lag(name) OVER before IN {_ADDS} AND name IN {_LAYERS} AS ends,
               CASE WHEN lag(name, 2) OVER before IN {_PRODUCTS} THEN 2
                    WHEN lag(name, 2) OVER before = 'aten::mul' AND lag(name, 3) OVER before IN {_PRODUCTS}
                    THEN 3 END AS back,
               lead(sequence IGNORE NULLS) OVER before AS later,
               row_number() OVER before AS number
        FROM called WINDOW before AS (PARTITION BY step, thread ORDER BY start_ns, event)),
    found AS (
        SELECT n.step, n.thread, n.user_frame, n.dims AS layer_dims, n.sequence AS layer_sequence, n.later,
               f.sequence, f.dims, f.start_ns, s.end_ns, f.device_ns AS product_ns, s.device_ns AS sum_ns,
               CASE WHEN n.back = 3 THEN m.device_ns END AS scale_ns
        FROM numbered n
            JOIN numbered f ON f.step = n.step AND f.thread = n.thread AND f.number = n.number - n.back
            JOIN numbered s ON s.step = n.step AND s.thread = n.thread AND s.number = n.number - 1
            JOIN numbered m ON m.step = n.step AND m.thread = n.thread AND m.number = n.number - 2
            LEFT JOIN numbered b ON b.step = n.step AND b.thread = n.thread AND b.number = f.number - 1
            LEFT JOIN numbered c ON c.step = n.step AND c.thread = n.thread AND c.number = f.number - 2
        WHERE n.ends AND n.back IS NOT NULL
            AND (b.name IS NULL OR b.name NOT IN {_LAYERS} OR c.name IN {_ADDS})),
    sized AS (
        SELECT *, regexp_extract(dims, '^\\[\\[(\\d+),(\\d+)\\],\\[(\\d+),(\\d+)\\]',
                                 ['high', 'rank', 'inner', 'wide']) AS of_product,
               list_aggregate(try_cast(string_split(regexp_extract(layer_dims, '^\\[\\[([\\d,]+)\\]', 1), ',')
                                       AS DOUBLE[]), 'product') AS taken,
               regexp_extract(layer_dims, '\\],\\[(\\d+),(\\d+)\\]', ['high', 'wide']) AS of_layer
        FROM found),
    thin AS (
        SELECT *, try_cast(of_product.rank AS BIGINT) AS rank,
               try_cast(of_product.high AS DOUBLE) + try_cast(of_product.wide AS DOUBLE) AS sides,
               try_cast(of_product.high AS DOUBLE) * try_cast(of_product.wide AS DOUBLE) AS area,
               CASE WHEN of_layer.high = of_product.high THEN try_cast(of_product.wide AS DOUBLE)
                    ELSE try_cast(of_product.high AS DOUBLE) END AS inputs
        FROM sized
        WHERE CASE WHEN dims IS NULL
                   THEN product_ns > 0
                       AND product_ns <= coalesce({_LIKE_SCALE} * scale_ns, {_LIKE_SUM} * sum_ns)
                   ELSE {_LEAST_TIMES} * try_cast(of_product.rank AS BIGINT)
                            <= least(try_cast(of_product.high AS BIGINT), try_cast(of_product.wide AS BIGINT))
                        AND (of_layer = {{'high': of_product.high, 'wide': of_product.wide}}
                             OR of_layer = {{'high': of_product.wide, 'wide': of_product.high}}) END),
    nodes AS (
        SELECT sequence, coalesce(device_once_ns, 0) AS device_ns,
               regexp_matches(name, ': (Mm|Addmm|Linear)Backward') AS multiplies
        FROM ops WHERE depth = 0 AND starts_with(name, 'autograd::engine::evaluate_function: ')
            AND sequence IS NOT NULL),
    undone AS (
        SELECT t.sequence, sum(n.device_ns) FILTER (n.sequence < t.layer_sequence)::BIGINT AS backward_ns,
               sum(n.device_ns) FILTER (n.sequence >= t.layer_sequence AND n.multiplies)::BIGINT AS layer_ns
        FROM (SELECT DISTINCT sequence, layer_sequence, later FROM thin) t
            JOIN nodes n ON n.sequence >= t.sequence
                AND n.sequence < coalesce(t.later, t.layer_sequence + 1)
        GROUP BY t.sequence)
    SELECT c.name AS user_frame, count(*) AS calls, mode(t.rank ORDER BY t.rank) AS rank,
           sum(t.end_ns - t.start_ns)::BIGINT AS host_ns,
           sum(t.product_ns + coalesce(t.scale_ns, 0) + t.sum_ns)::BIGINT AS device_ns,
           coalesce(sum(u.backward_ns), 0)::BIGINT AS backward_ns,
           coalesce(sum(u.layer_ns), 0)::BIGINT AS layer_backward_ns,
           sum(t.sum_ns / 3 * t.taken / t.inputs * t.sides / t.area
               * if(u.layer_ns > 0, {_PASSES}, {_PASSES / 3}))::BIGINT AS beside_ns
    FROM thin t LEFT JOIN undone u ON u.sequence = t.sequence
        LEFT JOIN call_tree c ON c.node = t.user_frame
    GROUP BY c.name ORDER BY device_ns DESC, c.name
"""


@analysis(
    reads={
        "steps": ("step", "source", "start_ns", "host_start_ns", "host_end_ns"),
        "ops": (
            "event",
            "thread",
            "name",
            "start_ns",
            "dur_ns",
            "depth",
            "args",
            "sequence",
            "device_once_ns",
        ),
        "call_sites": ("event", "step", "user_frame"),
        "call_tree": ("node", "name"),
    }
)
def multiplied_adapters(trace: Trace) -> Table[MultipliedAdapters]:
    """Finds adapters of low rank (LoRA) that become a matrix as large as the weights in every pass.

    Told by the order of operators, and by the sizes of their inputs. Without shapes, by their time: a product
    of low rank takes hardly longer than its result is written.
    """
    if not trace.may_have_name(r"^aten::(matmul|mm)$"):
        return Table.of(MultipliedAdapters, [], ["No matrix products in the profile."])
    rows = list(trace.query(MultipliedAdapters, _SQL)) if trace.rows(_IN_ONE) else []
    nothing = [] if rows else ["No product of low rank is added to what a layer multiplies with."]
    return Table.of(MultipliedAdapters, rows, nothing + how_steps_were_found(trace))
