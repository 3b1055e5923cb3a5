"""Chosen operators of one step with those around them and with their gradients, for Python to look at."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

from stepscope.analyses._in_steps import MIDDLE_STEP
from stepscope.costs.tensor_shapes import dims_of
from stepscope.patterns import late_pattern

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    Row = TypeVar("Row", bound=DataclassInstance)

__all__ = ["READS", "VIEWS", "Op", "around", "is_shape", "sources_of", "together"]

Op = dict[str, Any]
"""An operator: its name, its place after the chosen one, its shapes and plain values, its times and those of
its gradient."""

READS: dict[str, tuple[str, ...]] = {
    "steps": ("step", "source", "start_ns", "host_start_ns", "host_end_ns"),
    "ops": ("event", "thread", "name", "start_ns", "dur_ns", "depth", "args", "sequence", "device_once_ns"),
    "call_sites": ("event", "user_frame"),
    "call_tree": ("node", "name"),
}  # fmt: skip

VIEWS = late_pattern(
    r"aten::(view|_unsafe_view|reshape|_reshape_alias|flatten|unflatten|unsqueeze|squeeze|contiguous|clone|to|"
    r"_to_copy|float|type_as|detach|alias|view_as)"
)
"""Views, copies and casts: what goes through them is still the same rows."""

# Autograd numbers its nodes, and writes an operator with the number that comes next: the nodes that it adds
# have the numbers up to that of the operator after it. A node runs in the backward pass under its number.
_SQL = """
    WITH one AS ({middle_step}),
    called AS (
        SELECT o.event, o.thread, coalesce(o.name, '') AS name, o.sequence, o.args, s.step,
               coalesce(o.dur_ns, 0) AS host_ns, coalesce(o.device_once_ns, 0) AS device_ns,
               lead(o.sequence IGNORE NULLS) OVER called AS later, row_number() OVER called AS place
        FROM ops o JOIN one s ON o.start_ns >= s.host_start_ns AND o.start_ns < s.host_end_ns
        WHERE o.depth = 0
        WINDOW called AS (PARTITION BY o.thread ORDER BY o.start_ns, o.event)),
    chosen AS ({chosen}),
    near AS (
        SELECT j.event AS chosen, c.event, c.name, c.sequence, c.later, c.device_ns, c.host_ns,
               CAST(c.args->'$."Input Dims"' AS VARCHAR) AS dims,
               CAST(c.args->'$."Concrete Inputs"' AS VARCHAR) AS given, c.place - j.place AS place
        FROM chosen j JOIN called c ON c.thread = j.thread
            AND c.place BETWEEN j.place - {before} AND j.place + {after}),
    nodes AS (
        SELECT sequence, device_ns, host_ns, name LIKE '%ViewBackward%' AS is_view FROM called
        WHERE starts_with(name, 'autograd::engine::evaluate_function: ') AND sequence IS NOT NULL),
    undone AS (
        SELECT n.event, sum(b.device_ns)::BIGINT AS device_ns, sum(b.host_ns)::BIGINT AS host_ns,
               sum(b.device_ns) FILTER (b.is_view)::BIGINT AS view_ns
        FROM (SELECT DISTINCT event, sequence, later FROM near WHERE sequence IS NOT NULL) n
            JOIN nodes b ON b.sequence >= n.sequence AND b.sequence < coalesce(n.later, n.sequence + 1)
        GROUP BY n.event),
    found AS (
        SELECT n.chosen, list({{
            'name': n.name, 'dims': n.dims, 'given': n.given, 'place': n.place, 'ns': n.device_ns,
            'backward_ns': coalesce(u.device_ns, 0), 'view_ns': coalesce(u.view_ns, 0),
            'host_ns': n.host_ns + coalesce(u.host_ns, 0)}} ORDER BY n.place) AS ops
        FROM near n LEFT JOIN undone u ON u.event = n.event GROUP BY n.chosen)
    SELECT j.step, t.name AS user_frame, f.ops,
           greatest((SELECT sum(host_ns) FROM called), 1)::BIGINT AS host_ns
    FROM chosen j JOIN found f ON f.chosen = j.event
        LEFT JOIN call_sites p ON p.event = j.event LEFT JOIN call_tree t ON t.node = p.user_frame
    ORDER BY j.place
"""


def around(chosen: str, before: int, after: int) -> str:
    """SQL of the chosen operators of a step in the middle, each with so many before and after it in `ops`.

    `chosen` is SQL of `event`, `thread`, `place` and `step` of `called`, which has the outermost operators.
    """
    return _SQL.format(middle_step=MIDDLE_STEP, chosen=chosen, before=before, after=after)


def is_shape(dims: Any) -> TypeGuard[list[int]]:
    """Whether a recorded input is a tensor with elements: its sizes."""
    return isinstance(dims, list) and bool(dims) and all(isinstance(size, int) and size > 0 for size in dims)


def sources_of(op: Op) -> list[list[int]]:
    """Shapes of what an operator is given: of several in a list, all of them."""
    first: Any = next(iter(dims_of(op["dims"])), None)
    several = first if isinstance(first, list) and first and isinstance(first[0], list) else [first]
    return [shape for shape in several if is_shape(shape)]


def together(found: Iterable[Row], summed: Collection[str]) -> list[Row]:
    """One row of a table for all that differ in some figures only, with the sums of these."""
    alike: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for one in found:
        alike[tuple(getattr(one, field.name) for field in fields(one) if field.name not in summed)].append(
            one
        )
    return [
        replace(rows[0], **{name: sum(getattr(row, name) for row in rows) for name in summed})
        for rows in alike.values()
    ]
