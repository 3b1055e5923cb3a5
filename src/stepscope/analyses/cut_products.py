"""Large matrix products of which a part is cut, in recordings without shapes."""

from __future__ import annotations

from typing import Annotated, Any

from stepscope.analyses import analysis
from stepscope.analyses._products import BY_ROW, CALLED, MULTIPLIES, OPS, longest_products
from stepscope.analyses._windows import how_steps_were_found
from stepscope.costs.precision import precision_of
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["CutProduct", "cut_products"]

_LEAST_SHARE = 0.05
"""Of the device work of a step: smaller products are not looked at."""
_LEAST_NS = 1_000_000
"""A shorter product may have few rows: it takes as long as its weights are read, and its result is small."""
_READING = 0.005
"""The time in which a result is read or written, at least, as a part of its product's. A number of 2 bytes
against 2 × K operations: F / (B × K), where the peaks F in operations and B in bytes per second of matrix
units and memory have a ratio of 100 to 300. That is 0.6 % for the longest sums there are, K = 16,384."""
_SLOW = ("fp32", "fp64")
"""Without matrix units a product takes far longer than that."""
_FLOOR_NS = 1_000
"""The shortest kernels take so long, whatever they read."""
_MOST_READ = 0.75
_DOUBT = 1.4
"""How much nearer to the memory's bandwidth a copy may come than a fill. It may also stay far behind, as it
copies parts of rows: it tells how much is read at most."""
_VIEWS = r"aten::(alias|detach|view|reshape|_unsafe_view|unsqueeze|squeeze|flatten|unflatten|_reshape_alias)"
_CUTS = r"aten::(select|slice|narrow|index|index_select)"


@dataclass(frozen=True, slots=True)
class CutProduct:
    """The last large matrix product of a step, whose result is cut, and how much of it is read at most."""

    step: Annotated[int, "The step that was looked at, one in the middle."]
    user_frame: Annotated[str | None, "Function of the user's code that calls it; needs with_stack=True."]
    cut: Annotated[str, "The operator that cuts its result."]
    read_most: Annotated[float, "The part of the result that is read, at most."]
    device_ns: Annotated[int, "Device time of the product."]
    device_share: Annotated[float, "The same as a part of the device work that the step's operators launch."]
    backward_ns: Annotated[int, "Device time of its products in the backward pass."]
    elementwise_ns: Annotated[int, "Device time of casts and the like of the whole result before it is cut."]
    cut_ns: Annotated[int, "Device time of the gradients of the cuts: copies into zeros of the whole size."]
    zeros_ns: Annotated[int, "Device time of these zeros."]


# As in `unread_products`, numbers of autograd tell which nodes of the backward pass belong to an operator.
# Cuts of the same result make zeros of the same size, so those that take as long count as such.
_SQL = f"""
    WITH {CALLED},
    product AS (
        SELECT c.*, t.device_ns AS all_ns
        FROM called c CROSS JOIN (SELECT sum(device_once_ns) AS device_ns FROM called) t
        WHERE c.name = 'aten::linear'
            AND c.device_once_ns >= greatest({_LEAST_NS}, {_LEAST_SHARE} * t.device_ns)
            AND (c.args->'$."Input Dims"') IS NULL
        ORDER BY c.start_ns DESC LIMIT 1),
    after AS (
        SELECT c.event, c.name, c.start_ns, c.sequence, c.later, coalesce(c.device_once_ns, 0) AS device_ns,
               regexp_full_match(c.name, '{_CUTS}') AS cuts,
               regexp_full_match(c.name, '{_VIEWS}') OR regexp_full_match(c.name, '{BY_ROW}') AS passes
        FROM called c JOIN product p ON c.thread = p.thread AND c.start_ns > p.start_ns),
    cut AS (
        SELECT * FROM after WHERE cuts AND start_ns <= (SELECT min(start_ns) FROM after WHERE NOT passes)
        ORDER BY start_ns LIMIT 1),
    worked AS (
        SELECT sum(greatest(0, w.dur_ns - {_FLOOR_NS})) AS device_ns
        FROM device_work w JOIN launches l ON l.event = w.launch CROSS JOIN cut c CROSS JOIN product p
        WHERE l.start_ns >= c.start_ns AND l.start_ns < p.host_end_ns),
    nodes AS (
        SELECT event, name, thread, start_ns, start_ns + dur_ns AS end_ns, sequence,
               coalesce(device_once_ns, 0) AS device_ns
        FROM called WHERE starts_with(name, 'autograd::engine::evaluate_function: ')),
    multiplied AS (
        SELECT sum(n.device_ns) AS device_ns, count(*) AS nodes
        FROM nodes n JOIN product p ON n.sequence >= p.sequence
            AND n.sequence < coalesce(p.later, p.sequence + 1)
        WHERE regexp_matches(n.name, '{MULTIPLIES}')),
    zeroed AS (
        SELECT n.sequence, n.device_ns, sum(o.device_once_ns) AS zeros_ns
        FROM nodes n JOIN cut c ON n.sequence >= c.sequence
                AND regexp_matches(n.name, ': (Slice|Select)Backward')
            JOIN ops o ON o.thread = n.thread AND o.start_ns >= n.start_ns AND o.start_ns < n.end_ns
        WHERE o.name = 'aten::zero_' GROUP BY n.event, n.sequence, n.device_ns),
    whole AS (
        SELECT z.* FROM zeroed z JOIN cut c ON z.sequence >= c.sequence
            AND z.sequence < coalesce(c.later, c.sequence + 1)),
    undone AS (
        SELECT sum(z.device_ns) AS cut_ns, sum(z.zeros_ns) AS zeros_ns,
               sum((z.device_ns - z.zeros_ns) / z.zeros_ns) / 2 AS read
        FROM zeroed z JOIN (SELECT max(zeros_ns) AS zeros_ns FROM whole) w
            ON z.zeros_ns BETWEEN 0.7 * w.zeros_ns AND 1.4 * w.zeros_ns)
    SELECT p.step, t.name AS user_frame, c.name AS cut, p.device_once_ns AS device_ns,
           p.all_ns::BIGINT AS all_ns, w.device_ns AS after_ns, m.nodes, m.device_ns::BIGINT AS backward_ns,
           u.cut_ns::BIGINT AS cut_ns, u.zeros_ns::BIGINT AS zeros_ns, u.read,
           (SELECT max(zeros_ns) FROM whole)::BIGINT AS whole_ns,
           (SELECT coalesce(sum(device_ns), 0) FROM after WHERE start_ns < c.start_ns)::BIGINT
               AS elementwise_ns,
           (SELECT arg_max(k.name, k.dur_ns) FROM kernels k JOIN launches l ON l.event = k.launch
            WHERE l.thread = p.thread AND l.start_ns BETWEEN p.start_ns AND p.start_ns + p.dur_ns) AS kernel
    FROM product p CROSS JOIN cut c CROSS JOIN worked w CROSS JOIN multiplied m CROSS JOIN undone u
        LEFT JOIN call_sites s ON s.event = p.event LEFT JOIN call_tree t ON t.node = s.user_frame
"""

_NOTHING = "The last large product may be read as a whole, or shapes were recorded."


@analysis(
    reads={
        "steps": ("step", "source", "start_ns", "host_start_ns", "host_end_ns"),
        "ops": OPS,
        "launches": ("event", "thread", "start_ns"),
        "device_work": ("launch", "dur_ns"),
        "kernels": ("launch", "name", "dur_ns"),
        "call_sites": ("event", "user_frame"),
        "call_tree": ("node", "name"),
    }
)
def cut_products(trace: Trace) -> Table[CutProduct]:
    """Finds a large matrix product of which only a part can have been read, without shapes.

    In inference what the step does after the cut is far too short to have read the whole result. In training
    the gradient of the cut is copied into zeros of the whole size: how long both take tells how much it is.
    """
    if not all(map(trace.may_have_name, (r"^aten::linear$", rf"^{_CUTS}$"))):
        return Table.of(CutProduct, [], ["No matrix product is cut into parts."])
    if longest_products(trace)["without_shapes"] < _LEAST_NS:
        return Table.of(CutProduct, [], [_NOTHING, *how_steps_were_found(trace)])
    rows = [found for row in trace.rows(_SQL) if (found := _found(row))]
    nothing = [] if rows else [_NOTHING]
    return Table.of(CutProduct, rows, nothing + how_steps_were_found(trace))


def _found(row: dict[str, Any]) -> CutProduct | None:
    """The product, if it is certain that a part of its result is not read."""
    reading_ns = _READING * row["device_ns"]
    if row["nodes"]:
        if row["read"] is None or row["whole_ns"] < reading_ns:
            return None
        most = _DOUBT * row["read"]
    else:
        most = float(row["after_ns"] or 0) / reading_ns
    if most > _MOST_READ or precision_of(row["kernel"]).precision in _SLOW:
        return None
    return CutProduct(
        step=row["step"],
        user_frame=row["user_frame"],
        cut=row["cut"],
        read_most=most,
        device_ns=row["device_ns"],
        device_share=row["device_ns"] / row["all_ns"],
        backward_ns=row["backward_ns"] or 0,
        elementwise_ns=row["elementwise_ns"],
        cut_ns=row["cut_ns"] or 0,
        zeros_ns=row["zeros_ns"] or 0,
    )
