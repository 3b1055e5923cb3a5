"""Layers that compute rows which were repeated right before, each as often as it was repeated."""

from __future__ import annotations

import math
from itertools import takewhile
from typing import Annotated, Any

from stepscope.analyses import analysis
from stepscope.analyses._around import READS, VIEWS, Op, around, is_shape, sources_of, together
from stepscope.analyses._joined_rows import GATHERS, LEAST_TIMES, PRODUCTS, REPEATS
from stepscope.analyses._windows import how_steps_were_found
from stepscope.costs.tensor_shapes import dims_of
from stepscope.patterns import late_pattern
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["RepeatedRows", "repeated_rows"]

_LEAST_SHARE = 0.01
"""Of the device work of a step: shorter layers are not looked at."""
_NEAR, _AFTER = 6, 24
"""How many operators after the one that repeats rows a layer comes at most, and how many are looked at."""
_SPREADS = rf"{REPEATS}|aten::embedding"
_LAYER = late_pattern(PRODUCTS)
_ROW_BY_ROW = late_pattern(
    r"aten::(relu|gelu|silu|tanh|sigmoid|leaky_relu|elu|selu|mish|softplus|hardswish|relu6|hardtanh)_?"
    r"|aten::(layer_norm|rms_norm|native_layer_norm)"
)
"""What gives the same for the same row. Not dropout, which gives another, and not batch norm."""

_CHOSEN = f"""
    WITH large AS (
        SELECT thread, place FROM called WHERE regexp_full_match(name, '{PRODUCTS}') AND device_ns > 0
            AND device_ns >= {_LEAST_SHARE} * (SELECT sum(device_ns) FROM called)
            AND (args->'$."Input Dims"') IS NOT NULL
        ORDER BY device_ns DESC LIMIT 256)
    SELECT event, thread, place, step FROM called c
    WHERE regexp_full_match(name, '{_SPREADS}') AND EXISTS (
        SELECT 1 FROM large l WHERE l.thread = c.thread AND l.place - c.place BETWEEN 1 AND {_NEAR})
    ORDER BY place LIMIT 256
"""


@dataclass(frozen=True, slots=True)
class RepeatedRows:
    """Layers that compute rows which were repeated for them, in one step."""

    step: Annotated[int, "The step that was looked at, one in the middle."]
    user_frame: Annotated[str | None, "Function of the user's code that repeats; needs with_stack=True."]
    repeated_by: Annotated[str, "The operator that repeats the rows: an index, a look-up or an expansion."]
    shape: Annotated[str, "Shape of the repeated rows."]
    width: Annotated[int, "Width of the repeated rows."]
    out_width: Annotated[int, "Width of what the last layer gives."]
    times: Annotated[float, "How often each row is there, on average."]
    calls: Annotated[int, "How often rows are repeated for such layers."]
    layers: Annotated[int, "How many matrix products come right after it, with only row by row work between."]
    spread_ns: Annotated[int, "Device time of the copies that repeat the rows, with their gradients."]
    layers_ns: Annotated[int, "Device time of the layers and of what is between them, with their gradients."]
    turned_ns: Annotated[
        int, "The part of it that copies gradients into another layout, which may be needed in any case."
    ]


_SUMMED = ("calls", "layers", "spread_ns", "layers_ns", "turned_ns")
_NOTHING = "No layer computes rows that were repeated right before."


@analysis(reads=READS)
def repeated_rows(trace: Trace) -> Table[RepeatedRows]:
    """Finds layers on repeated rows, as of nodes at both ends of edges or a user beside each candidate.

    The rows must go through the layers alone: what is joined or multiplied with others before is none.
    """
    if not all(trace.may_have_name(f"^({names})$") for names in (_SPREADS, PRODUCTS)):
        return Table.of(RepeatedRows, [], ["Nothing is repeated for a linear layer."])
    found = (one for row in trace.rows(around(_CHOSEN, 0, _AFTER)) if (one := _found(row)))
    rows = sorted(together(found, _SUMMED), key=lambda row: -row.layers_ns)
    return Table.of(RepeatedRows, rows, ([] if rows else [_NOTHING]) + how_steps_were_found(trace))


def _found(row: dict[str, Any]) -> RepeatedRows | None:
    """The layers on what one operator repeats, if that is what they compute."""
    repeat, *after = row["ops"]
    source = next(iter(sources_of(repeat)), None)
    spread = [repeat, *takewhile(lambda op: VIEWS.fullmatch(op["name"]), after)]
    layers = after[len(spread) - 1 :]
    first = _given(layers[0]) if layers else None
    if source is None or first is None or not _repeats(repeat, source, first):
        return None
    taken, width = _row_by_row(layers, first)
    products = sum(_LAYER.fullmatch(op["name"]) is not None for op in taken)
    if not products:
        return None
    return RepeatedRows(
        step=row["step"],
        user_frame=row["user_frame"],
        repeated_by=repeat["name"],
        shape=" × ".join(map(str, first)),
        width=first[-1],
        out_width=width,
        times=math.prod(first) / math.prod(source),
        calls=1,
        layers=products,
        spread_ns=sum(op["ns"] + op["backward_ns"] for op in spread),
        layers_ns=sum(op["ns"] + op["backward_ns"] for op in taken),
        turned_ns=sum(op["view_ns"] for op in taken),
    )


def _given(op: Op) -> list[int] | None:
    """The shape of the rows that an operator computes."""
    shapes = dims_of(op["dims"])[1 if op["name"] == "aten::addmm" else 0 :]
    return shapes[0] if shapes and is_shape(shapes[0]) else None


def _repeats(repeat: Op, source: list[int], given: list[int]) -> bool:
    """Whether these are the rows of the source, each several times, and as many as there are indices."""
    times = math.prod(given) / math.prod(source)
    if given[-1] != source[-1] or times < LEAST_TIMES:
        return False
    if not GATHERS.fullmatch(repeat["name"]):
        return times == int(times) or repeat["name"] == "aten::repeat_interleave"
    indices = _indices(dims_of(repeat["dims"])[1:])
    if repeat["name"] == "aten::index" and not indices:
        return True  # newer profiles leave out the shapes of a list of indices
    return any(math.prod(given) * size == math.prod(source) * indices for size in source[:-1])


def _indices(given: list[Any]) -> int:
    """How many rows an index or a look-up takes, from the shapes after its source."""
    flat = [one for some in given for one in (some if some and isinstance(some[0], list) else [some])]
    shapes = [shape for shape in flat if is_shape(shape)]
    return max((math.prod(shape) for shape in shapes), default=0)


def _row_by_row(ops: list[Op], given: list[int]) -> tuple[list[Op], int]:
    """The operators that compute one row after the other from these on, and the width of what they give."""
    taken: list[Op] = []
    rows, width = math.prod(given[:-1]), given[-1]
    for op in ops:
        if VIEWS.fullmatch(op["name"]):
            taken.append(op)
            continue
        shape = _given(op)
        if shape is None or math.prod(shape) != rows * width or shape[-1] != width:
            break
        if _LAYER.fullmatch(op["name"]):
            weight = next(iter(dims_of(op["dims"])[2 if op["name"] == "aten::addmm" else 1 :]), None)
            if not is_shape(weight) or len(weight) != 2:
                break
            width = weight[0] if op["name"] == "aten::linear" else weight[1]
        elif not _ROW_BY_ROW.fullmatch(op["name"]):
            break
        taken.append(op)
    return taken, width
