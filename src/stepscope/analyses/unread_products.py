"""Large matrix products of which the program reads only a few rows."""

from __future__ import annotations

from typing import Annotated, Any

from stepscope.analyses import analysis
from stepscope.analyses._picked_rows import TAKES, cut_of, picked_rows
from stepscope.analyses._products import BY_ROW, CALLED, MULTIPLIES, OPS, longest_products
from stepscope.analyses._windows import how_steps_were_found
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["UnreadProduct", "unread_products"]

_LEAST_SHARE = 0.03
"""Of the device work of a step: smaller products are not looked at."""
_MOSTLY = 0.5
"""Where more than that is cut out, numbers of each row may be picked from it before most rows are dropped."""


@dataclass(frozen=True, slots=True)
class UnreadProduct:
    """A matrix product of one step whose result is only cut into parts, and read no more as a whole."""

    step: Annotated[int, "The step that was looked at, one in the middle."]
    user_frame: Annotated[str | None, "Function of the user's code that calls it; needs with_stack=True."]
    shape: Annotated[str, "Shape of its result."]
    read_share: Annotated[float, "The part of the result that is taken from it."]
    device_ns: Annotated[int, "Device time of the product."]
    device_share: Annotated[float, "The same as a part of the device work that the step's operators launch."]
    backward_ns: Annotated[int, "Device time of its products in the backward pass."]
    elementwise_ns: Annotated[
        int,
        "Device time of casts, softmaxes and the like of the whole result before it is cut, and of their "
        "gradients.",
    ]
    cut_ns: Annotated[int, "Device time of the gradients of the cuts: copies into zeros of the whole size."]
    zeros_ns: Annotated[int, "Device time of these zeros."]


# Autograd numbers its nodes, and writes an operator with the number that comes next: the nodes that it adds
# have the numbers up to that of the operator after it. A node runs in the backward pass under its number.
_SQL = f"""
    WITH {CALLED},
    products AS (
        SELECT c.*, t.device_ns AS all_ns, CAST(c.args->'$."Input Dims"' AS VARCHAR) AS dims
        FROM called c CROSS JOIN (SELECT sum(device_once_ns) AS device_ns FROM called) t
        WHERE c.name = 'aten::linear' AND c.device_once_ns >= {_LEAST_SHARE} * t.device_ns),
    results AS (
        SELECT *, concat(regexp_extract(dims, '^\\[\\[([\\d,]+),\\d+\\],\\[\\d+,\\d+\\]', 1), ',',
                         regexp_extract(dims, '^\\[\\[[\\d,]+\\],\\[(\\d+),\\d+\\]', 1)) AS shape
        FROM products WHERE regexp_matches(dims, '^\\[\\[\\d+,\\d+,[\\d,]+\\],\\[\\d+,\\d+\\]')),
    to_host AS (
        SELECT l.thread, l.start_ns FROM device_work w JOIN launches l ON l.event = w.launch
            JOIN one s ON l.start_ns >= s.host_start_ns AND l.start_ns < s.host_end_ns
        WHERE w.kind = 'memcpy' AND contains(w.name, 'DtoH')),
    read AS (
        SELECT r.event, c.name, CAST(c.args->'$."Concrete Inputs"' AS VARCHAR) AS given, c.thread,
               c.start_ns, c.sequence, c.later, coalesce(c.device_once_ns, 0) AS device_ns,
               regexp_full_match(c.name, '{BY_ROW}') AND coalesce(h.start_ns, c.start_ns + c.dur_ns)
                   >= c.start_ns + c.dur_ns AS by_row
        FROM results r JOIN called c ON c.thread = r.thread AND c.start_ns > r.start_ns
            ASOF LEFT JOIN to_host h ON h.thread = c.thread AND h.start_ns >= c.start_ns
        WHERE contains(CAST(c.args->'$."Input Dims"' AS VARCHAR), concat('[', r.shape, ']'))),
    nodes AS (
        SELECT event, thread, start_ns, start_ns + dur_ns AS end_ns, sequence, device_once_ns AS device_ns,
               regexp_matches(name, '{MULTIPLIES}') AS multiplies
        FROM called WHERE starts_with(name, 'autograd::engine::evaluate_function: ')),
    zeros AS (
        SELECT n.event, sum(o.device_once_ns) AS device_ns
        FROM ops o JOIN nodes n ON o.thread = n.thread AND o.start_ns >= n.start_ns AND o.start_ns < n.end_ns
        WHERE o.name = 'aten::zero_' GROUP BY n.event),
    backward AS (
        SELECT w.event, sum(n.device_ns) FILTER (w.kind = 'product' AND n.multiplies) AS backward_ns,
               sum(n.device_ns) FILTER (w.kind = 'by row') AS elementwise_ns,
               sum(n.device_ns) FILTER (w.kind = 'cut') AS cut_ns,
               sum(z.device_ns) FILTER (w.kind = 'cut') AS zeros_ns
        FROM (SELECT event, 'product' AS kind, sequence, later FROM results
              UNION ALL SELECT event, if(by_row, 'by row', 'cut'), sequence, later FROM read) w
            JOIN nodes n ON n.sequence >= w.sequence AND n.sequence < coalesce(w.later, w.sequence + 1)
            LEFT JOIN zeros z ON z.event = n.event
        GROUP BY w.event),
    reading AS (
        SELECT event, list({{'name': name, 'given': given, 'by_row': by_row}} ORDER BY start_ns) AS read,
               coalesce(sum(device_ns) FILTER (by_row), 0) AS elementwise_ns
        FROM read GROUP BY event)
    SELECT r.step, r.event, t.name AS user_frame, r.shape, r.device_once_ns AS device_ns,
           r.all_ns::BIGINT AS all_ns, d.read, coalesce(b.backward_ns, 0)::BIGINT AS backward_ns,
           (d.elementwise_ns + coalesce(b.elementwise_ns, 0))::BIGINT AS elementwise_ns,
           coalesce(b.cut_ns, 0)::BIGINT AS cut_ns, coalesce(b.zeros_ns, 0)::BIGINT AS zeros_ns
    FROM results r JOIN reading d ON d.event = r.event LEFT JOIN backward b ON b.event = r.event
        LEFT JOIN call_sites p ON p.event = r.event LEFT JOIN call_tree t ON t.node = p.user_frame
    ORDER BY r.device_once_ns DESC, r.start_ns
"""

_NOTHING = "All large products are read as a whole, or shapes were not recorded."


@analysis(
    reads={
        "steps": ("step", "source", "start_ns", "host_start_ns", "host_end_ns"),
        "ops": OPS,
        "launches": ("event", "thread", "start_ns"),
        "device_work": ("kind", "name", "launch"),
        "call_sites": ("event", "user_frame"),
        "call_tree": ("node", "name"),
    }
)
def unread_products(trace: Trace) -> Table[UnreadProduct]:
    """Finds matrix products that compute more rows than the program reads, from the shapes of a step.

    Such a result is given to nothing but `select` and `slice`: logits of all positions, for example, of which
    only the last are taken. Casts and other elementwise operators may come before. Or `gather` picks a number
    of each row, after a softmax, and of these only a part is taken.
    """
    if not all(map(trace.may_have_name, (r"^aten::linear$", r"^aten::(select|slice)$"))):
        return Table.of(UnreadProduct, [], ["No matrix product is cut into parts."])
    if not longest_products(trace)["with_shapes"]:
        return Table.of(UnreadProduct, [], [_NOTHING, *how_steps_were_found(trace)])
    rows = [found for row in trace.rows(_SQL) if (found := _found(trace, row))]
    nothing = [] if rows else [_NOTHING]
    return Table.of(UnreadProduct, rows, nothing + how_steps_were_found(trace))


def _found(trace: Trace, row: dict[str, Any]) -> UnreadProduct | None:
    """The product, if nothing takes more of its result than a part."""
    shape = tuple(int(size) for size in row["shape"].split(","))
    read = _read_share(row, shape)
    around = {name: row[name] for name in ("elementwise_ns", "cut_ns", "zeros_ns")}
    if read > _MOSTLY and (picked := picked_rows(trace, row["event"], shape)):
        # Cuts before that are among what is computed of all rows.
        read, around = picked.read_share, {"elementwise_ns": picked.rows_ns, "cut_ns": 0, "zeros_ns": 0}
    if read >= 1:
        return None
    return UnreadProduct(
        step=row["step"],
        user_frame=row["user_frame"],
        shape=" × ".join(map(str, shape)),
        read_share=read,
        device_ns=row["device_ns"],
        device_share=row["device_ns"] / row["all_ns"],
        backward_ns=row["backward_ns"],
        **around,
    )


def _read_share(row: dict[str, Any], shape: tuple[int, ...]) -> float:
    """How much of the result is taken from it; 1 where something else than cuts reads it."""
    cuts = [one for one in row["read"] if not one["by_row"]]
    # What is computed of all rows after the last cut is not cut itself.
    if not cuts or row["read"][-1]["by_row"] or not {one["name"] for one in cuts} <= {*TAKES}:
        return 1.0
    parts = [_part(one["name"], shape, one["given"]) for one in cuts]
    return sum(1.0 if part is None else part for part in parts)


def _part(name: str, shape: tuple[int, ...], given: str | None) -> float | None:
    """The part of a tensor that select or slice takes from it; None if that is not known."""
    cut = cut_of(name, shape, given)
    if cut is None or cut[0] == len(shape) - 1:
        return None  # some numbers of every row
    return cut[1] / max(1, shape[cut[0]])
