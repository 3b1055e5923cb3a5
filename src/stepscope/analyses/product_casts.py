"""Casts that autocast makes inside products: which of them are of weights."""

from __future__ import annotations

from typing import Annotated

from stepscope.analyses import analysis
from stepscope.analyses._windows import how_steps_were_found
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["WEIGHTED", "ProductCasts", "product_casts"]

WEIGHTED = r"aten::(linear|conv\dd|conv_transpose\dd|convolution)"
"""Operators that take a weight as their second input."""


@dataclass(frozen=True, slots=True)
class ProductCasts:
    """Casts inside one kind of product, in all steps."""

    product: Annotated[str, "Name of the operator."]
    products: Annotated[int, "How many of them cast something on a device."]
    casts: Annotated[int, "How many casts that is."]
    device_ns: Annotated[int, "Device time of the casts."]
    of_weights: Annotated[int, "Casts of weights and biases, of those that can be told."]
    of_weights_ns: Annotated[int, "Their device time."]


_SQL = f"""
    WITH casts AS (
        SELECT o.name AS product, o.event, c.device_once_ns AS dur_ns,
               row_number() OVER (PARTITION BY o.event ORDER BY c.start_ns) AS place,
               count(*) OVER (PARTITION BY o.event) AS beside
        FROM ops c JOIN ops o ON o.event = c.parent
        JOIN steps s ON c.start_ns >= s.host_start_ns AND c.start_ns < s.host_end_ns
        WHERE c.name = 'aten::to' AND c.device_once_ns > 0 AND regexp_full_match(o.name, '{WEIGHTED}')),
    told AS (SELECT *, place > 1 OR max(beside) OVER (PARTITION BY product) > 1 AND beside = 1 AS weight
             FROM casts)
    SELECT product, count(DISTINCT event) AS products, count(*) AS casts, sum(dur_ns)::BIGINT AS device_ns,
           count(*) FILTER (weight) AS of_weights,
           coalesce(sum(dur_ns) FILTER (weight), 0)::BIGINT AS of_weights_ns
    FROM told GROUP BY product ORDER BY device_ns DESC, product
"""


@analysis(
    reads={
        "steps": ("step", "source", "host_start_ns", "host_end_ns"),
        "ops": ("event", "parent", "name", "start_ns", "device_once_ns"),
    }
)
def product_casts(trace: Trace) -> Table[ProductCasts]:
    """Sums up casts inside products, as autocast makes them, and tells those of weights by their order.

    Autocast casts the input first, then the weight and the bias, and none that has the right type. So what
    comes after the first cast of a product is a weight or a bias. Where some product casts both, its equals
    that cast one thing cast their weight: they got their input from another product, in the right type.
    """
    if not trace.may_have_name("^aten::to$"):
        return Table.of(ProductCasts, [], ["Nothing is cast."])
    rows = trace.query(ProductCasts, _SQL)
    nothing = [] if len(rows) else ["No product casts its inputs."]
    return Table.of(ProductCasts, rows, nothing + how_steps_were_found(trace))
