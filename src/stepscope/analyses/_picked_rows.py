"""What a program picks from each row of a large result, and how many of the rows it then reads."""

from __future__ import annotations

import re
from math import prod

from stepscope.analyses._around import around, is_shape
from stepscope.analyses._products import BY_ROW
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

_SQL = around("SELECT event, thread, place, step FROM called WHERE event = $event", 0, _MOST_OPS)


@dataclass(frozen=True, slots=True)
class PickedRows:
    """Numbers that are picked from each row of a result, of which only a part is read."""

    read_share: float
    rows_ns: int
    """Device time of what is computed of all rows until then, and of its gradients."""


def cut_of(name: str, shape: tuple[int, ...], given: str | None) -> tuple[int, int] | None:
    """The dimension that select or slice cuts, and how much of it is left; None if that is not known."""
    try:
        dim, *where = (int(value) for value in dims_of(given)[1:])
        size = shape[dim]
        taken = 1 if name == "aten::select" else len(range(*slice(*where).indices(size)))
    except (IndexError, TypeError, ValueError):
        return None
    return dim % len(shape), taken


def picked_rows(trace: Trace, event: int, shape: tuple[int, ...]) -> PickedRows | None:
    """Follows a result of this shape: one number is picked from each row, and a part of these is read.

    `event` is the operator that gives it. So it is with the chances of chosen words: a softmax of all logits,
    `gather`, and then a slice. None where anything else reads the result, or what was picked from it.
    """
    if not trace.may_have_name(f"^{_PICKS}$"):
        return None
    whole, picked = {shape}, set[tuple[int, ...]]()
    read, rows_ns = 0, 0
    [product] = trace.rows(_SQL, event=event)
    for op in product["ops"][1:]:
        dims = [tuple(one) if is_shape(one) else () for one in dims_of(op["dims"])]
        first = dims[0] if dims else ()
        if first in whole:
            cut = cut_of(op["name"], first, op["given"]) if op["name"] == "aten::slice" else None
            if cut and cut[0] < len(first) - 1:
                whole.add((*first[: cut[0]], cut[1], *first[cut[0] + 1 :]))
            elif op["name"] == _PICKS and len(dims) > 2 and dims[2] == (*first[:-1], 1):
                picked |= {dims[2], first[:-1]}
            elif op["name"] not in _NORMALISES and not re.fullmatch(BY_ROW, op["name"]):
                return None
            rows_ns += op["ns"] + op["backward_ns"]
        elif first in picked:
            cut = cut_of(op["name"], first, op["given"]) if op["name"] in TAKES else None
            if cut and cut[0] < len(shape) - 1:
                read += prod(first[: cut[0]]) * cut[1] * prod(first[cut[0] + 1 :])
            elif not cut and not re.fullmatch(BY_ROW, op["name"]) and op["name"] not in _VIEWS:
                return None
    rows = prod(shape[:-1])
    return PickedRows(read / rows, rows_ns) if 0 < read < rows else None
