"""Matrix products with rows that are zero but for a single one."""

from __future__ import annotations

from typing import Annotated

from stepscope.analyses import analysis
from stepscope.analyses._in_steps import MIDDLE_STEP
from stepscope.analyses._windows import how_steps_were_found
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["OneHotProduct", "one_hot_products"]


@dataclass(frozen=True, slots=True)
class OneHotProduct:
    """Products of one step that look up rows of a table by multiplying it with one-hot rows."""

    step: Annotated[int, "The step that was looked at, one in the middle."]
    user_frame: Annotated[str | None, "Function of the user's code that multiplies; needs with_stack=True."]
    rows: Annotated[int, "How many rows are looked up."]
    table_rows: Annotated[int, "How many rows the table has: the length of a one-hot row."]
    calls: Annotated[int, "Products that look up rows of this table, gradients not counted."]
    product_ns: Annotated[int, "Device time of these products."]
    gradient_ns: Annotated[int, "Device time of the products that give the table its gradient."]
    filling_ns: Annotated[int, "Device time that it takes to fill the one-hot rows and to convert them."]


# What writes a single number into each row of a matrix is scatter_() with one index for each row; F.one_hot()
# calls it, too. A matrix of that shape in a softmax may be one of probabilities: those are left alone.
_SQL = rf"""
    WITH one AS ({MIDDLE_STEP}),
    called AS (
        SELECT o.event, o.thread, o.name, o.start_ns, coalesce(o.device_self_ns, 0) AS device_ns, s.step,
               CAST(o.args->'$."Input Dims"' AS VARCHAR) AS dims
        FROM ops o JOIN one s ON o.start_ns >= s.host_start_ns AND o.start_ns < s.host_end_ns
        WHERE o.name IN ('aten::scatter_', 'aten::mm', 'aten::addmm', 'aten::fill_', 'aten::zero_',
                         'aten::copy_', 'aten::_softmax', 'aten::_log_softmax', 'aten::sigmoid')),
    scattered AS (
        SELECT *, regexp_extract(dims, '^\[\[([\d,]+),\d+\]', 1) AS before,
               regexp_extract(dims, '^\[\[[\d,]+,(\d+)\]', 1) AS size,
               regexp_extract(dims, '^\[\[[\d,]+\],\[\],\[([\d,]+),1\],\[\]', 1) AS indexed
        FROM called WHERE name = 'aten::scatter_'),
    hot AS (
        SELECT before, size, any_value(step) AS step, min(thread) AS thread, min(start_ns) AS start_ns,
               sum(device_ns) AS device_ns,
               list_aggregate(string_split(before, ',')::BIGINT[], 'product')::BIGINT AS n
        FROM scattered WHERE before = indexed AND size != '1' AND before != '' GROUP BY before, size),
    meant AS (
        SELECT h.* FROM hot h WHERE NOT EXISTS (
            FROM called c WHERE (contains(c.name, 'softmax') OR contains(c.name, 'sigmoid'))
                AND starts_with(c.dims, concat('[[', h.before, ',', h.size, ']')))),
    forward AS (
        SELECT h.before, h.size, c.event, c.device_ns,
               regexp_extract(c.dims, concat('\[', h.size, ',(\d+)\]'), 1) AS width
        FROM meant h JOIN called c ON c.thread = h.thread AND c.start_ns > h.start_ns
            AND c.name IN ('aten::mm', 'aten::addmm')
            AND contains(c.dims, concat('[', h.n, ',', h.size, '],[', h.size, ','))),
    multiplied AS (
        SELECT before, size, any_value(width) AS width, count(*) AS calls, sum(device_ns) AS device_ns,
               arg_max(event, device_ns) AS event
        FROM forward GROUP BY before, size),
    others AS (
        SELECT h.before, h.size,
               sum(c.device_ns) FILTER (
                   c.name IN ('aten::mm', 'aten::addmm') AND c.thread != h.thread AND contains(
                       c.dims, concat('[', h.size, ',', h.n, '],[', h.n, ',', m.width, ']'))) AS gradient_ns,
               sum(c.device_ns) FILTER (
                   c.name IN ('aten::fill_', 'aten::zero_', 'aten::copy_') AND starts_with(
                       c.dims, concat('[[', h.before, ',', h.size, ']'))) AS filling_ns
        FROM meant h JOIN multiplied m USING (before, size) CROSS JOIN called c GROUP BY h.before, h.size)
    SELECT h.step, t.name AS user_frame, h.n AS rows, h.size::BIGINT AS table_rows, m.calls,
           m.device_ns::BIGINT AS product_ns, coalesce(o.gradient_ns, 0)::BIGINT AS gradient_ns,
           (h.device_ns + coalesce(o.filling_ns, 0))::BIGINT AS filling_ns
    FROM meant h JOIN multiplied m USING (before, size) JOIN others o USING (before, size)
    LEFT JOIN call_sites p ON p.event = m.event LEFT JOIN call_tree t ON t.node = p.user_frame
    ORDER BY product_ns DESC, rows DESC
"""


@analysis(
    reads={
        "steps": ("step", "source", "start_ns", "host_start_ns", "host_end_ns"),
        "ops": ("event", "thread", "name", "start_ns", "args", "device_self_ns"),
        "call_sites": ("event", "user_frame"),
        "call_tree": ("node", "name"),
    }
)
def one_hot_products(trace: Trace) -> Table[OneHotProduct]:
    """Finds matrix products that look up rows of a table with one-hot rows, from the shapes of a step."""
    if not all(map(trace.may_have_name, (r"^aten::scatter_$", r"^aten::(add)?mm$"))):
        return Table.of(OneHotProduct, [], ["Nothing writes one-hot rows."])
    rows = [OneHotProduct(**row) for row in trace.rows(_SQL)]
    nothing = [] if rows else ["No product has one-hot rows, or shapes were not recorded."]
    return Table.of(OneHotProduct, rows, nothing + how_steps_were_found(trace))
