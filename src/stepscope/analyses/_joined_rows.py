"""Rows that are repeated and joined for a linear layer: what shapes and times tell of one join."""

from __future__ import annotations

import math
from itertools import takewhile
from typing import NamedTuple

from stepscope.analyses._around import VIEWS, Op, is_shape, sources_of
from stepscope.costs.tensor_shapes import dims_of
from stepscope.patterns import late_pattern

__all__ = [
    "GATHERS",
    "JOINS",
    "LEAST_TIMES",
    "PRODUCTS",
    "REPEATS",
    "JoinedRows",
    "joined_rows",
]

JOINS = r"aten::(cat|concat|concatenate)"
PRODUCTS = r"aten::(linear|matmul|mm|addmm)"
_COPIED = "repeat|tile|repeat_interleave|expand|expand_as|broadcast_to|broadcast_tensors"
_INDEXED = "index|index_select|gather|take_along_dim"
REPEATS = rf"aten::({_COPIED}|{_INDEXED})"

LEAST_TIMES = 2
_LEAST_OF_JOIN, _MOST_OF_JOIN = 0.1, 4.0
"""How long it takes to write a repeated part, or to sum up its gradient, against joining all parts. A join of
two reads and writes both, so it is a quarter; of three a sixth. Copies that repeat rows are slower than
others: on an H200, 0.6 of the join of two."""
_DOUBT = 1.5
_FOLLOWING = 4
"""Operators after the layer of which one reads all of its result."""
_PRODUCT, GATHERS = late_pattern(PRODUCTS), late_pattern(rf"aten::({_INDEXED}|embedding)")
_REPEATING, _COPYING = late_pattern(REPEATS), late_pattern(rf"aten::({_COPIED})")
_TURNS = late_pattern(r"aten::(transpose|permute|swapaxes|swapdims|movedim|mT)")
_COPIES = late_pattern(r"aten::(reshape|flatten|contiguous|clone|to|_to_copy|float|type_as)")


class _Repeat(NamedTuple):
    """An operator that repeats rows; without shapes width and times are not known."""

    op: Op
    width: int = 0
    times: float = 0.0


class _Shapes(NamedTuple):
    """What shapes tell of a join."""

    parts: list[list[int]]
    width: int
    out_width: int


class JoinedRows(NamedTuple):
    """Repeated rows that are joined for a layer."""

    told_by: str
    """shapes, times or order."""
    shape: str | None
    out_width: int | None
    times: float | None
    repeated_share: float | None
    gathered: bool
    spread: list[Op]
    """The operators that repeat rows and copy what they give."""
    joins: list[Op]
    """The join, and copies and casts of what it gives."""
    product: Op
    stays_ns: tuple[float, float]
    """What stays of all their time once the layer is applied to the items, at least and at most."""


def joined_rows(ops: list[Op]) -> JoinedRows | None:
    """What is joined, if it is repeated rows and goes through a linear layer, from the operators around."""
    before = [op for op in reversed(ops) if op["place"] < 0]
    (join,) = (op for op in ops if op["place"] == 0)
    after = [op for op in ops if op["place"] > 0]
    passes = list(takewhile(lambda op: VIEWS.fullmatch(op["name"]), after))
    product = next(iter(after[len(passes) :]), None)
    if product is None or not _PRODUCT.fullmatch(product["name"]):
        return None
    joins = [join, *passes]
    if join["dims"] is not None:
        return _by_shape(before, joins, product)
    return _by_time(before, joins, product, after[len(passes) + 1 :])


def _by_shape(before: list[Op], joins: list[Op], product: Op) -> JoinedRows | None:
    shapes = _shapes_of(joins[0], product)
    repeats = _larger_parts(before, shapes.parts) if shapes else []
    if shapes is None or len(repeats) < 2:
        return None
    sizes = {math.prod(part) for part in shapes.parts}
    spread = [
        op
        for op in _spread(before, repeats)
        if any(op is one.op for one in repeats) or any(math.prod(shape) in sizes for shape in sources_of(op))
    ]
    return JoinedRows(
        told_by="shapes",
        shape=" × ".join(map(str, [*shapes.parts[0][:-1], shapes.width])),
        out_width=shapes.out_width,
        times=min(one.times for one in repeats),
        repeated_share=sum(one.width for one in repeats) / shapes.width,
        gathered=(gathered := any(GATHERS.fullmatch(one.op["name"]) for one in repeats)),
        spread=spread,
        joins=joins,
        product=product,
        stays_ns=_stays_by_shape(shapes, repeats, (joins[0], product), spread if gathered else []),
    )


def _shapes_of(join: Op, product: Op) -> _Shapes | None:
    """The parts of a join, if they are put side by side in the rows that a layer multiplies."""
    given = dims_of(product["dims"])[1 if product["name"] == "aten::addmm" else 0 :][:2]
    parts = next(iter(dims_of(join["dims"])), None)
    if not isinstance(parts, list) or len(parts) < 2 or len(given) < 2:
        return None
    if not all(map(is_shape, (*parts, *given))):
        return None
    rows, weight = given
    if product["name"] == "aten::linear":
        weight = weight[::-1]
    width = sum(part[-1] for part in parts)
    if not width == rows[-1] == weight[0] or math.prod(rows) != sum(map(math.prod, parts)) or len(weight) > 2:
        return None
    return _Shapes(parts, width, weight[1] if len(weight) == 2 else 1)


def _larger_parts(before: list[Op], parts: list[list[int]]) -> list[_Repeat]:
    """For each part that has several times the rows of its source the operator that repeats them.

    One that turns a repeated part around, such as a transpose right after it, gives another.
    """
    left, found = list(parts), list[_Repeat]()

    def take(op: Op, source: list[int], of: Op) -> None:
        for part in left:
            times = math.prod(part) / math.prod(source)
            if (
                part[-1] == source[-1]
                and times >= LEAST_TIMES
                and (op is of or part in map(list, sources_of(op)))
            ):
                left.remove(part)
                found.append(_Repeat(op, part[-1], times))
                return

    for op, older in zip(before, [*before[1:], None], strict=True):
        if _REPEATING.fullmatch(op["name"]):
            for source in sources_of(op):
                take(op, source, op)
        elif older and _TURNS.fullmatch(op["name"]) and _REPEATING.fullmatch(older["name"]):
            for source in sources_of(older):
                take(op, source, older)
    return found


def _spread(before: list[Op], repeats: list[_Repeat]) -> list[Op]:
    """The operators that repeat rows, and all that copy something after the first of them."""
    places = {one.op["place"] for one in repeats}
    copies = (op for op in before if op["place"] > min(places) and _COPIES.fullmatch(op["name"]))
    return [*(op for op in before if op["place"] in places), *copies]


def _stays_by_shape(
    shapes: _Shapes, repeats: list[_Repeat], layer: tuple[Op, Op], gathers: list[Op]
) -> tuple[float, float]:
    """What stays: the layer on the items and on what is not repeated, and the sums of its results.

    A sum is written once, and read once for each side in the backward pass. A join reads and writes, so that
    is half of its time for each number, if it takes no longer: twice that at most. Where rows are repeated by
    an index, the results are gathered instead, and their gradients scattered.
    """
    join, product = layer
    product_ns = product["ns"] + product["backward_ns"]
    others = max(0.0, 1 - sum(one.width for one in repeats) / shapes.width)
    items = sum(one.width / shapes.width / one.times for one in repeats)
    passes = 3 if product["backward_ns"] else 1
    summed_ns = passes * join["ns"] * shapes.out_width / shapes.width
    ratio = shapes.out_width / max(one.width for one in repeats)
    gathered_ns, scattered_ns = (sum(op[which] for op in gathers) for which in ("ns", "backward_ns"))
    least_ns = others * product_ns + min(1.0, ratio) * (gathered_ns + scattered_ns)
    most_ns = (others + items) * product_ns + summed_ns
    return least_ns, most_ns + max(0.5, ratio) * gathered_ns + max(1.0, ratio) * scattered_ns


def _by_time(before: list[Op], joins: list[Op], product: Op, following: list[Op]) -> JoinedRows | None:
    """Without shapes: the time of the copies or of their gradients tells, or the order of operators alone."""
    told = _in_proportion(before, joins[0])
    told_by = "times"
    if len(told) < 2 and not product["backward_ns"]:
        told, told_by = _right_before(before), "order"
    if sum(2 if one.op["name"] == "aten::broadcast_tensors" else 1 for one in told) < 2:
        return None
    spread = _spread(before, told)
    return JoinedRows(
        told_by=told_by,
        shape=None,
        out_width=None,
        times=None,
        repeated_share=None,
        gathered=False,
        spread=spread,
        joins=joins,
        product=product,
        stays_ns=(0.0, _stays_by_time(following, product, [*spread, *joins])),
    )


def _in_proportion(before: list[Op], join: Op) -> list[_Repeat]:
    """The operators since the join before that repeat rows and take as long as a part of this one does.

    An index tells nothing: a table may have more rows than are taken.
    """
    found, copied_ns = list[_Repeat](), 0
    least_ns, most_ns = _LEAST_OF_JOIN * join["ns"], _MOST_OF_JOIN * join["ns"]
    for op in takewhile(lambda op: op["name"] != join["name"], before):
        if _COPYING.fullmatch(op["name"]):
            written_ns, copied_ns = op["ns"] + copied_ns, 0
            if written_ns <= most_ns and max(written_ns, op["backward_ns"]) >= least_ns:
                found.append(_Repeat(op))
        elif _COPIES.fullmatch(op["name"]):
            copied_ns += op["ns"]
        elif not VIEWS.fullmatch(op["name"]):
            copied_ns = 0
    return found


def _right_before(before: list[Op]) -> list[_Repeat]:
    """The operators right before the join that repeat rows without a copy of their own."""
    adjoining = takewhile(lambda op: _COPYING.fullmatch(op["name"]) or VIEWS.fullmatch(op["name"]), before)
    return [_Repeat(op) for op in adjoining if _COPYING.fullmatch(op["name"]) and not op["ns"]]


def _stays_by_time(following: list[Op], product: Op, copies: list[Op]) -> float:
    """What stays at most: half of the layer, as a part of what is joined may not be repeated, and the sums.

    What follows the layer reads its result, so that to write or read a sum takes no longer.
    """
    readers: list[int] = []
    for op in following:
        if not VIEWS.fullmatch(op["name"]):
            readers.append(op["ns"])
        if len(readers) == _FOLLOWING or _PRODUCT.fullmatch(op["name"]):
            break
    product_ns: int = product["ns"] + product["backward_ns"]
    if not max(readers, default=0):
        copies_ns: int = sum(op["ns"] + op["backward_ns"] for op in copies)
        return 0.5 * (product_ns + copies_ns)
    passes = 3 if product["backward_ns"] else 1
    return 0.5 * product_ns + _DOUBT * passes * max(readers)
