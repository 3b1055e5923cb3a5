"""What a program picks from each row of a large result, and how many of the rows it then reads."""

from __future__ import annotations

import json
import re
from math import prod
from typing import Any

from stepscope.analyses._products import BY_ROW, CALLED
from stepscope.costs.tensor_shapes import dims_of
from stepscope.records import dataclass
from stepscope.store.trace import Trace

__all__ = ["TAKES", "PickedRows", "cut_of", "picked_rows"]

TAKES = ("aten::select", "aten::slice")
_NORMALISES = ("aten::log_softmax", "aten::softmax")
_PICKS = "aten::gather"
_VIEWS = ("aten::squeeze", "aten::unsqueeze")
_MOST_OPS = 64
"""After the product: what is picked from logits is picked soon."""

_SQL = f"""
    WITH {CALLED},
    next AS (
        SELECT * FROM called WHERE thread = $thread AND start_ns > $start_ns
        ORDER BY start_ns, event LIMIT {_MOST_OPS}),
    nodes AS (
        SELECT sequence, sum(device_once_ns) AS device_ns FROM called
        WHERE starts_with(name, 'autograd::engine::evaluate_function: ') GROUP BY sequence)
    SELECT any_value(o.name) AS name, any_value(o.args::VARCHAR) AS args,
           any_value(CAST(o.args->'$."Input Dims"' AS VARCHAR)) AS dims,
           (coalesce(any_value(o.device_once_ns), 0) + coalesce(sum(n.device_ns), 0))::BIGINT AS device_ns
    FROM next o LEFT JOIN nodes n
        ON n.sequence >= o.sequence AND n.sequence < coalesce(o.later, o.sequence + 1)
    GROUP BY o.event, o.start_ns ORDER BY o.start_ns, o.event
"""


@dataclass(frozen=True, slots=True)
class PickedRows:
    """Numbers that are picked from each row of a result, of which only a part is read."""

    read_share: float
    rows_ns: int
    """Device time of what is computed of all rows until then, and of its gradients."""


def cut_of(name: str, shape: tuple[int, ...], args: str) -> tuple[int, int] | None:
    """The dimension that select or slice cuts, and how much of it is left; None if that is not known."""
    try:
        dim, *given = (int(value) for value in json.loads(args)["Concrete Inputs"][1:])
        size = shape[dim]
        taken = 1 if name == "aten::select" else len(range(*slice(*given).indices(size)))
    except (KeyError, IndexError, TypeError, ValueError):
        return None
    return dim % len(shape), taken


def picked_rows(trace: Trace, thread: int, start_ns: int, shape: tuple[int, ...]) -> PickedRows | None:
    """Follows a result of this shape: one number is picked from each row, and a part of these is read.

    So it is with the chances of chosen words: a softmax of all logits, `gather`, and then a slice. None where
    anything else reads the result, or what was picked from it.
    """
    whole, picked = {shape}, set[tuple[int, ...]]()
    read, rows_ns = 0, 0
    for op in trace.rows(_SQL, thread=thread, start_ns=start_ns):
        dims = [_sizes(one) for one in dims_of(op["dims"])]
        first = dims[0] if dims else ()
        if first in whole:
            cut = cut_of(op["name"], first, op["args"]) if op["name"] == "aten::slice" else None
            if cut and cut[0] < len(first) - 1:
                whole.add((*first[: cut[0]], cut[1], *first[cut[0] + 1 :]))
            elif op["name"] == _PICKS and len(dims) > 2 and dims[2] == (*first[:-1], 1):
                picked |= {dims[2], first[:-1]}
            elif op["name"] not in _NORMALISES and not re.fullmatch(BY_ROW, op["name"]):
                return None
            rows_ns += op["device_ns"]
        elif first in picked:
            cut = cut_of(op["name"], first, op["args"]) if op["name"] in TAKES else None
            if cut and cut[0] < len(shape) - 1:
                read += prod(first[: cut[0]]) * cut[1] * prod(first[cut[0] + 1 :])
            elif not cut and not re.fullmatch(BY_ROW, op["name"]) and op["name"] not in _VIEWS:
                return None
    rows = prod(shape[:-1])
    return PickedRows(read / rows, rows_ns) if 0 < read < rows else None


def _sizes(size: Any) -> tuple[int, ...]:
    """Those of a tensor; none of a list of tensors, or of what the file has there instead."""
    plain = isinstance(size, list) and all(isinstance(one, int) for one in size)
    return tuple(size) if plain else ()
