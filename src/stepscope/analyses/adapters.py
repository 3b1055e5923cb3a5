"""Adapters of low rank that are computed beside the layers they adapt."""

from __future__ import annotations

from typing import Annotated

from stepscope.analyses import analysis
from stepscope.analyses._windows import how_steps_were_found
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["Adapters", "adapters"]

_PRODUCTS = ("aten::linear", "aten::matmul", "aten::mm", "aten::addmm")
_NOTHING = (
    "aten::to",
    "aten::dropout",
    "aten::detach",
    "aten::alias",
    "aten::_has_compatible_shallow_copy_type",
)
"""Operators between them that do nothing in inference."""
_ADDS = ("aten::add", "aten::add_")
_DIMS = r"^\[\[(?:\d+,)*(\d+)\],\[(\d+),(\d+)\]"
"""Shapes of an input and of a weight, which may be turned."""
_LEAST_TIMES = 4
"""The inputs of a layer are so many times as wide as the rank of its adapter, or more."""


@dataclass(frozen=True, slots=True)
class Adapters:
    """Adapters that one function of the user's leads to, in all steps."""

    user_frame: Annotated[
        str | None, "Function of the user's code that leads to most; needs with_stack=True."
    ]
    calls: Annotated[int, "How often an adapter is computed."]
    rank: Annotated[int | None, "The rank of most; NULL if shapes were not recorded."]
    host_ns: Annotated[int, "From the end of each layer's own product to the sum with its adapter."]
    device_ns: Annotated[int, "Device time of the work in that time."]


# y = W x + (B (A x)) · scale: three products, a multiplication and a sum, in this order.
_SQL = f"""
    WITH called AS (
        SELECT p.step, o.thread, o.name, o.start_ns, o.start_ns + coalesce(o.dur_ns, 0) AS end_ns,
               p.user_frame, coalesce(o.device_once_ns, 0) AS device_ns, o.args
        FROM ops o JOIN call_sites p ON p.event = o.event
        WHERE o.depth = 0 AND p.step IS NOT NULL AND o.name NOT IN {_NOTHING}),
    sequences AS (
        SELECT user_frame, name IN {_ADDS} AS adds, lag(name) OVER before = 'aten::mul' AS scales,
               lag(name, 2) OVER before IN {_PRODUCTS} AND lag(name, 3) OVER before IN {_PRODUCTS}
                   AND lag(name, 4) OVER before IN {_PRODUCTS} AS products,
               end_ns - lag(end_ns, 4) OVER before AS host_ns,
               sum(device_ns) OVER (before ROWS 3 PRECEDING) AS device_ns, lag(args, 3) OVER before AS args
        FROM called WINDOW before AS (PARTITION BY step, thread ORDER BY start_ns)),
    found AS (
        SELECT *, regexp_extract(
                   CAST(args->'$."Input Dims"' AS VARCHAR), '{_DIMS}', ['width', 'first', 'second']) AS dims
        FROM sequences WHERE adds AND scales AND products),
    ranked AS (
        SELECT *, TRY_CAST(dims.width AS BIGINT) AS width,
               CASE WHEN dims.first = dims.width THEN TRY_CAST(dims.second AS BIGINT)
                    ELSE TRY_CAST(dims.first AS BIGINT) END AS rank
        FROM found)
    SELECT (SELECT name FROM call_tree WHERE node = mode(r.user_frame ORDER BY r.user_frame)) AS user_frame,
           count(*) AS calls, mode(rank ORDER BY rank) AS rank, sum(host_ns)::BIGINT AS host_ns,
           sum(device_ns)::BIGINT AS device_ns
    FROM ranked r WHERE rank IS NULL OR width >= {_LEAST_TIMES} * rank HAVING count(*) > 0
"""


@analysis(
    reads={
        "steps": ("source",),
        "ops": ("event", "thread", "name", "start_ns", "dur_ns", "depth", "args", "device_once_ns"),
        "call_sites": ("event", "step", "user_frame"),
        "call_tree": ("node", "name"),
    }
)
def adapters(trace: Trace) -> Table[Adapters]:
    """Finds adapters of low rank (LoRA) beside linear layers, in inference, by the order of operators.

    In training an adapter has to be computed by itself. Afterwards it can be added to the weights.
    """
    if trace.may_have_name("^autograd::engine::evaluate_function"):
        return Table.of(Adapters, [], ["The program trains: adapters are computed by themselves."])
    if not trace.may_have_name(r"^aten::(linear|matmul)$"):
        return Table.of(Adapters, [], ["No linear layers in the profile."])
    rows = trace.query(Adapters, _SQL)
    nothing = [] if len(rows) else ["No product is followed by two others, a scale and a sum."]
    return Table.of(Adapters, rows, nothing + how_steps_were_found(trace))
