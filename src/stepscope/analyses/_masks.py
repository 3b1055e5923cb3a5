"""Whether attention masks its scores, and whether the mask is known to be causal."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Literal

from stepscope.costs.attention import Sizes, sizes_of
from stepscope.store.trace import Trace

__all__ = ["Mask", "causal_sizes", "converts_masks", "fused_masks", "masks_of"]

Mask = Literal["none", "some", "shared", "causal"]

# Operators on scores that mask them, between the product and the softmax. A tensor that is added may also be
# a bias, which takes the mask's place in torch's function. Without shapes an added number looks the same.
_MASKING = ("aten::masked_fill", "aten::masked_fill_", "aten::where", "aten::_masked_softmax")
_ADDING = ("aten::add", "aten::add_")
_TRIANGLES = ("aten::tril", "aten::tril_", "aten::triu", "aten::triu_")
_ADDED = "json_extract_string(args, '$.\"Input Dims\"[1]')"
_MASKS = """
    WITH stretches AS MATERIALIZED ({stretches}),
    masks AS (
        SELECT thread, start_ns,
               CASE WHEN name IN {masking} THEN 2 WHEN {added} IS NULL THEN 1 WHEN {added} = '[]' THEN 0
                    ELSE 2 END AS masks
        FROM ops WHERE name IN {names}),
    inside AS (
        SELECT s.thread, s.low, max(m.masks) AS masks
        FROM masks m ASOF JOIN stretches s ON s.thread = m.thread AND s.low <= m.start_ns
        WHERE m.start_ns < s.high GROUP BY s.thread, s.low)
    SELECT s.kind, s.op, s.args, max(coalesce(i.masks, 0)) AS masks
    FROM stretches s LEFT JOIN inside i ON i.thread = s.thread AND i.low = s.low GROUP BY s.kind, s.op, s.args
"""
_MADE = f"SELECT DISTINCT name, args::VARCHAR AS args FROM ops WHERE name IN {_TRIANGLES}"
# Which inputs of torch's fused attention are the mask (flash attention has none) and whether it is causal.
_ARGUMENTS = {
    "aten::scaled_dot_product_attention": (3, 5),
    "aten::_scaled_dot_product_cudnn_attention": (3, 6),
    "aten::_scaled_dot_product_efficient_attention": (3, 6),
    "aten::_scaled_dot_product_flash_attention": (None, 4),
}
_FUSED = f"SELECT DISTINCT name, args::VARCHAR AS args FROM ops WHERE name IN {tuple(_ARGUMENTS)}"
# Torch's function makes a boolean mask one that is added, before it calls the fused one.
_CONVERTED = """
    SELECT count(*) AS calls, count(*) FILTER (converted) AS converted
    FROM (SELECT bool_or(o.name = 'aten::where') AS converted,
                 bool_or(starts_with(o.name, 'aten::_scaled_dot_product')) AS computed
          FROM ops o JOIN ops p ON o.parent = p.event
          WHERE p.name = 'aten::scaled_dot_product_attention' GROUP BY p.event)
    WHERE computed
"""
_COMBINES = r"^aten::(logical_and|logical_or|bitwise_and|bitwise_or|__and__|__or__|__iand__|__ior__)_?$"


def masks_of(
    trace: Trace, stretches: str, **params: Any
) -> Iterable[tuple[str, str | None, str | None, Mask | None]]:
    """For each kind of stretch (its kind, first operator and arguments), what masks it; None if not known.

    `stretches` is SQL of attention that is written out, each with its thread, low, high, kind, op and args;
    `params` are its parameters.
    """
    sql = _MASKS.format(stretches=stretches, masking=_MASKING, added=_ADDED, names=(*_MASKING, *_ADDING))
    for row in trace.rows(sql, **params):
        # What baddbmm adds to the product, and what a generated kernel does, its inputs do not tell.
        unclear = row["op"] == "aten::baddbmm" or row["masks"] == 1
        mask: Mask | None = "some" if row["masks"] == 2 else None if unclear else "none"
        yield row["kind"], row["op"], row["args"], mask


def causal_sizes(trace: Trace) -> frozenset[int]:
    """Lengths of sequences for which the program makes a causal mask and no other.

    It cuts a square of ones below or above its diagonal, and combines it with nothing.
    """
    if not trace.may_have_name(r"^aten::tri[lu]_?$") or trace.may_have_name(_COMBINES):
        return frozenset()
    made = [(row["name"].rstrip("_"), *_square(row["args"])) for row in trace.rows(_MADE)]
    if len({name for name, _, _ in made}) != 1:  # both together make a band
        return frozenset()
    causal = {"aten::tril": 0, "aten::triu": 1}
    if any(diagonal != causal[name] for name, _, diagonal in made):
        return frozenset()
    return frozenset(size for _, size, _ in made if size)


def fused_masks(trace: Trace) -> dict[Sizes, Mask | None]:
    """What masks the scores of torch's fused attention, by its sizes; None where calls differ."""
    found: dict[Sizes, Mask | None] = {}
    for row in trace.rows(_FUSED):
        sizes, mask = sizes_of(row["name"], row["args"]), _fused_mask(row["name"], row["args"])
        if mask is not None and found.setdefault(sizes, mask) != mask:
            found[sizes] = None
    return found


def converts_masks(trace: Trace) -> bool:
    """Whether all calls of torch's fused attention get a boolean mask; told without shapes."""
    if not trace.may_have_name(r"^aten::where$"):
        return False
    (row,) = trace.rows(_CONVERTED)
    return bool(row["calls"] and row["calls"] == row["converted"])


def _fused_mask(op: str, args: str | None) -> Mask | None:
    """What masks the scores of a call; None where that was not recorded.

    `shared` is one mask for all sequences and heads: positions alone decide, so it is not there for padding.
    """
    told = json.loads(args or "{}")
    where, flag = _ARGUMENTS[op]
    given = told.get("Concrete Inputs") or []
    if flag >= len(given):
        return None
    if given[flag] == "True":
        return "causal"
    shape = _sizes_at(told, "Input Dims", where)
    if not shape:
        return "none"
    steps = _sizes_at(told, "Input Strides", where)
    if len(steps) != len(shape):  # not recorded
        steps = [1] * len(shape)
    alike = all(size == 1 or step == 0 for size, step in zip(shape[:-2], steps[:-2], strict=True))
    square = len(shape) >= 2 and shape[-2] > 1 and steps[-2] != 0
    return "shared" if alike and square else "some"


def _sizes_at(told: dict[str, Any], key: str, where: int | None) -> list[Any]:
    """Sizes or strides of an input; empty where it has none or they were not recorded."""
    inputs = told.get(key) or []
    found = inputs[where] if where is not None and where < len(inputs) else []
    return found if isinstance(found, list) else []


def _square(args: str | None) -> tuple[int | None, int | None]:
    """The length of a square, if it is one, and the diagonal at which it is cut."""
    told: dict[str, Any] = json.loads(args or "{}")
    dims = told.get("Input Dims") or [[]]
    given = told.get("Concrete Inputs") or []
    shape = dims[0] if isinstance(dims[0], list) else []
    square = shape[-1] if len(shape) >= 2 and shape[-1] == shape[-2] else None
    try:
        return square, int(given[1])
    except (IndexError, ValueError):
        return square, None
