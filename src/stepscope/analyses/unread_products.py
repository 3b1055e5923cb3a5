"""Large matrix products of which the program reads only a few rows."""

from __future__ import annotations

import json
from typing import Annotated, Any

from stepscope.analyses import analysis
from stepscope.analyses._in_steps import MIDDLE_STEP
from stepscope.analyses._windows import how_steps_were_found
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["UnreadProduct", "unread_products"]

_LEAST_SHARE = 0.03
"""Of the device work of a step: smaller products are not looked at."""
_TAKES = ("aten::select", "aten::slice")


@dataclass(frozen=True, slots=True)
class UnreadProduct:
    """A matrix product of one step whose result is only cut into parts, and read no more as a whole."""

    step: Annotated[int, "The step that was looked at, one in the middle."]
    user_frame: Annotated[str | None, "Function of the user's code that calls it; needs with_stack=True."]
    shape: Annotated[str, "Shape of its result."]
    read_share: Annotated[float, "The part of the result that is taken from it."]
    device_ns: Annotated[int, "Device time of the product."]
    device_share: Annotated[float, "The same as a part of the device work that the step's operators launch."]


_SQL = f"""
    WITH one AS ({MIDDLE_STEP}),
    called AS (
        SELECT o.*, s.step FROM ops o JOIN one s
            ON o.start_ns >= s.host_start_ns AND o.start_ns < s.host_end_ns
        WHERE o.depth = 0),
    products AS (
        SELECT c.*, t.device_ns AS all_ns, CAST(c.args->'$."Input Dims"' AS VARCHAR) AS dims
        FROM called c CROSS JOIN (SELECT sum(device_once_ns) AS device_ns FROM called) t
        WHERE c.name = 'aten::linear' AND c.device_once_ns >= {_LEAST_SHARE} * t.device_ns),
    results AS (
        SELECT *, concat(regexp_extract(dims, '^\\[\\[([\\d,]+),\\d+\\],\\[\\d+,\\d+\\]', 1), ',',
                         regexp_extract(dims, '^\\[\\[[\\d,]+\\],\\[(\\d+),\\d+\\]', 1)) AS shape
        FROM products WHERE regexp_matches(dims, '^\\[\\[\\d+,\\d+,[\\d,]+\\],\\[\\d+,\\d+\\]')),
    read AS (
        SELECT r.event, c.name, c.args::VARCHAR AS args
        FROM results r JOIN called c ON c.thread = r.thread AND c.start_ns > r.start_ns
        WHERE contains(CAST(c.args->'$."Input Dims"' AS VARCHAR), concat('[', r.shape, ']')))
    SELECT r.step, t.name AS user_frame, r.shape, r.device_once_ns AS device_ns, r.all_ns::BIGINT AS all_ns,
           (SELECT list({{'name': d.name, 'args': d.args}} ORDER BY d.args)
            FROM read d WHERE d.event = r.event) AS read
    FROM results r LEFT JOIN call_sites p ON p.event = r.event LEFT JOIN call_tree t ON t.node = p.user_frame
    ORDER BY r.device_once_ns DESC, r.start_ns
"""


@analysis(
    reads={
        "steps": ("step", "source", "start_ns", "host_start_ns", "host_end_ns"),
        "ops": ("event", "thread", "name", "start_ns", "depth", "args", "device_once_ns"),
        "call_sites": ("event", "user_frame"),
        "call_tree": ("node", "name"),
    }
)
def unread_products(trace: Trace) -> Table[UnreadProduct]:
    """Finds matrix products that compute more rows than the program reads, from the shapes of a step.

    Such a result is given to nothing but `select` and `slice`: logits of all positions, for example, of which
    only the last are taken.
    """
    if not all(map(trace.may_have_name, (r"^aten::linear$", r"^aten::(select|slice)$"))):
        return Table.of(UnreadProduct, [], ["No matrix product is cut into parts."])
    rows = [found for row in trace.rows(_SQL) if (found := _found(row))]
    nothing = [] if rows else ["All large products are read as a whole, or shapes were not recorded."]
    return Table.of(UnreadProduct, rows, nothing + how_steps_were_found(trace))


def _found(row: dict[str, Any]) -> UnreadProduct | None:
    """The product, if nothing takes more of its result than a part."""
    if not row["read"] or not {one["name"] for one in row["read"]} <= {*_TAKES}:
        return None
    shape = [int(size) for size in row["shape"].split(",")]
    parts = [_part(one["name"], shape, one["args"]) for one in row["read"]]
    read = sum(1.0 if part is None else part for part in parts)
    if read >= 1:
        return None
    share = row["device_ns"] / row["all_ns"]
    text = " × ".join(map(str, shape))
    return UnreadProduct(row["step"], row["user_frame"], text, read, row["device_ns"], share)


def _part(name: str, shape: list[int], args: str) -> float | None:
    """The part of a tensor that select or slice takes from it; None if that is not known."""
    try:
        dim, *given = (int(value) for value in json.loads(args)["Concrete Inputs"][1:])
        size = shape[dim]
        taken = 1 if name == "aten::select" else len(range(*slice(*given).indices(size)))
    except (KeyError, IndexError, TypeError, ValueError):
        return None
    if dim in (len(shape) - 1, -1):
        return None  # some numbers of every row
    return taken / max(1, size)
