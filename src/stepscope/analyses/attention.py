"""How attention was computed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator
from typing import Annotated, Any, NamedTuple

from stepscope.analyses import analysis
from stepscope.analyses._device_time import (
    STEPS,
    Spent,
    Windows,
    spent_by_group,
    step_windows,
    time_inside,
)
from stepscope.analyses._masks import Mask, causal_sizes, converts_masks, fused_masks, masks_of
from stepscope.analyses._work_families import PAIR, WORK_READS, work_groups
from stepscope.costs.attention import Sizes, backend_of, is_backward, product_sizes, sizes_of
from stepscope.costs.families import family_of
from stepscope.costs.precision import is_side_kernel, operands, precision_of
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["WITH_MASK", "Attention", "attention"]


@dataclass(frozen=True, slots=True)
class Attention:
    """Attention of one implementation and size, inside the steps."""

    backend: Annotated[
        str,
        "flash, cudnn, memory-efficient, flex, paged (of a serving engine), math (torch's own products and "
        "softmax), hand-written (products and softmax of the model, also written out), or unknown.",
    ]
    precision: Annotated[str, "Data type that was multiplied, for most of the time; or unknown."]
    batch: Annotated[int | None, "Sequences at once."]
    heads: Annotated[int | None, "Heads of the queries."]
    query_length: Annotated[int | None, "Length of the queries."]
    key_length: Annotated[int | None, "Length of keys and values."]
    head_dim: Annotated[int | None, "Size of a head."]
    forward_calls: Annotated[int, "How often it was computed."]
    forward_ns: Annotated[int, "Kernel time of that."]
    backward_calls: Annotated[int, "How often its gradients were computed."]
    backward_ns: Annotated[int, "Kernel time of that."]
    share: Annotated[float | None, "Share of the summed time of all kernels inside the steps."]
    longest: Annotated[str | None, "The kernel with the most time in it."]
    mask: Annotated[
        str | None,
        "Whether its scores are masked: none, some (a mask or a bias), shared (one for all sequences and "
        "heads, so not for padding), or causal where that is sure; NULL where it is not known.",
    ]
    reason: Annotated[str | None, "Why backend, precision or sizes are unknown."]


_WRITTEN_OUT = ("math", "hand-written")
WITH_MASK = ("cudnn", "memory-efficient")
"""Of torch's fused ones, those that take a mask in memory."""
_VALUES = ("aten::mm", "aten::addmm")
"""Products with weights, which may give the values."""
_EXPONENTIALS = ("aten::exp", "aten::exp_", "aten::exp2")
# A softmax between two batched products is attention, and so is one that is written out, as an exponential
# and a sum; torch's own one is inside an operator of that name. What torch writes around the first and the
# last operator counts, too: gradients may be tied to it. Only torch's own has a safe softmax, also where the
# compiler took it apart.
_STRETCHES = f"""
    WITH inner_ops AS (
        SELECT *, name IN ('aten::bmm', 'aten::baddbmm', 'aten::mm', 'aten::addmm') AS product FROM ops
        WHERE product OR name IN {_EXPONENTIALS}
           OR name IN ('aten::_softmax', 'aten::_scaled_dot_product_attention_math',
                       'aten::_native_multi_head_attention', 'aten::sum')
           OR starts_with(name, 'triton_') AND contains(name, 'softmax')),
    wide AS (
        SELECT i.name, i.product, i.thread, coalesce(o.start_ns, i.start_ns) AS low,
               coalesce(o.start_ns + o.dur_ns, i.start_ns + i.dur_ns) AS high, i.args::VARCHAR AS args
        FROM inner_ops i LEFT JOIN (
            SELECT event, start_ns, dur_ns FROM ops
            WHERE name IN ('aten::matmul', 'aten::einsum', 'aten::scaled_dot_product_attention')) o
        ON o.event = i.parent),
    near AS (
        SELECT *, count(*) FILTER (product) OVER (PARTITION BY thread ORDER BY low, high DESC ROWS UNBOUNDED
                                                  PRECEDING) AS nth
        FROM wide WHERE NOT contains(name, 'attention')),
    -- Each product with what comes before the next.
    parts AS (
        SELECT thread, nth, any_value(name) FILTER (product) AS op, any_value(args) FILTER (product) AS args,
               any_value(low) FILTER (product) AS low, any_value(high) FILTER (product) AS high,
               bool_or(contains(name, 'softmax')) AS softmax,
               bool_or(contains(name, '_safe_softmax')) AS of_torch,
               bool_or(name IN {_EXPONENTIALS}) AND bool_or(name = 'aten::sum') AS written
        FROM near GROUP BY thread, nth),
    followed AS (
        SELECT thread, op, args, low, softmax, of_torch, written, lead(op) OVER beside AS after,
               lead(high) OVER beside AS high, lead(op, 2) OVER beside AS later,
               lead(high, 2) OVER beside AS later_high
        FROM parts WINDOW beside AS (PARTITION BY thread ORDER BY nth)),
    -- Some compute the values only when they need them, by another product in between.
    chains AS (
        SELECT thread, low, if(after = 'aten::bmm', high, later_high) AS high, op, args,
               NOT softmax AS written, of_torch
        FROM followed
        WHERE (softmax OR written) AND op IN ('aten::bmm', 'aten::baddbmm')
          AND (after = 'aten::bmm' OR (after IN {_VALUES} AND later = 'aten::bmm'))),
    torch_s AS (SELECT thread, low, high, name AS op, args FROM wide WHERE contains(name, 'attention'))
    SELECT thread, low, high, op, args, 'math' AS kind, false AS written FROM torch_s
    WHERE contains(op, '_math')
    UNION ALL
    SELECT c.thread, c.low, c.high, c.op, c.args,
           if(c.low < t.high OR c.of_torch, 'math', 'hand-written') AS kind, c.written
    FROM chains c ASOF LEFT JOIN torch_s t ON t.thread = c.thread AND t.low <= c.low
    WHERE t.low IS NULL OR c.low >= t.high OR NOT contains(t.op, '_math')
"""
"""Start and end of each on its thread, and the operator that tells its sizes."""
_STRETCH_NAMES = (
    "^aten::(bmm|baddbmm)$|attention",
    "^aten::_softmax$|^triton_.*softmax|^aten::exp2?_?$|attention",
)
_ALL_KERNELS = """
    SELECT start_ns, coalesce(dur_ns, 0) AS dur_ns FROM device_work
    WHERE kind = 'kernel' AND start_ns IS NOT NULL
"""
_ON_HOST = """
    SELECT name, count(*) AS calls FROM ops WHERE starts_with(name, 'aten::_scaled_dot_product')
    GROUP BY name ORDER BY name
"""


class _Stretches(NamedTuple):
    """SQL of all stretches, and its parameters."""

    sql: str
    params: dict[str, list[Any]]


_TYPES = {
    "thread": "INTEGER", "low": "BIGINT", "high": "BIGINT", "op": "VARCHAR", "args": "VARCHAR",
    "kind": "VARCHAR", "written": "BOOLEAN",
}  # fmt: skip
_FEW = 2000
"""So many stretches are looked for once and then handed over; more are looked for in each question."""


def _stretches(trace: Trace) -> _Stretches | None:
    """The stretches of attention that is written out; None where there are none."""
    if not all(map(trace.may_have_name, _STRETCH_NAMES)):
        return None
    asked = f"SELECT {', '.join(_TYPES)} FROM ({_STRETCHES}) LIMIT {_FEW + 1}"
    rows = trace.once("stretches of attention", lambda: trace.rows(asked))
    if not rows:
        return None
    if len(rows) > _FEW:
        return _Stretches(_STRETCHES, {})
    lists = ", ".join(f"unnest($stretch_{name}::{kind}[]) AS {name}" for name, kind in _TYPES.items())
    return _Stretches(f"SELECT {lists}", {f"stretch_{name}": [row[name] for row in rows] for name in _TYPES})


def _kernels(stretches: _Stretches | None) -> str:
    """SQL of the kernels of attention with the operator that launched them, and the stretch they are in."""
    if stretches is None:
        some = "AND name_id IN (SELECT unnest($kernels::INT[]))"
        inside = """
            SELECT k.*, NULL AS kind, NULL AS of_op, NULL AS of_args, false AS backward, false AS exponential
            FROM launched k
        """
    else:
        some = ""
        # In backward, the launch belongs where the forward operator of its gradient is.
        inside = f"""
            SELECT k.*, s.op AS of_op, s.args AS of_args,
                   if(k.at < s.high AND coalesce(k.op_name NOT IN {_VALUES}, TRUE), s.kind, NULL) AS kind,
                   k.forward IS NOT NULL AS backward,
                   s.written AND k.of_name IN {_EXPONENTIALS} AS exponential
            FROM (SELECT k.*, coalesce(f.thread, l.thread) AS thread, coalesce(f.start_ns, l.start_ns) AS at,
                         p.forward, coalesce(f.name, k.op_name) AS of_name
                  FROM launched k LEFT JOIN launches l ON l.event = k.launch
                  LEFT JOIN call_sites p ON p.event = k.launch
                  LEFT JOIN (SELECT event, name, thread, start_ns FROM ops) f ON f.event = p.forward) k
            ASOF LEFT JOIN stretches s ON s.thread = k.thread AND s.low <= k.at
        """
    return f"""
        WITH launched AS (
            SELECT w.* EXCLUDE (kind, op, name_id), o.name AS op_name, o.args, o.args_id, {PAIR} AS pair
            FROM (SELECT kind, name, name_id, device_name, start_ns, dur_ns, launch, op FROM device_work
                  WHERE kind = 'kernel' {some}) w
            LEFT JOIN (SELECT event, name, name_id, args::VARCHAR AS args, args_id FROM ops) o
            ON o.event = w.op),
        {f"stretches AS ({stretches.sql})," if stretches else ""} inside AS ({inside})
        SELECT *, (hash(pair, args_id, kind,
                        if(kind IS NULL, NULL, hash(of_op, of_args, backward, exponential))) >> 1)::BIGINT
                  AS grouped
        FROM inside WHERE kind IS NOT NULL OR pair IN (SELECT unnest($named::BIGINT[]))
    """


@dataclass(frozen=True, slots=True)
class _Part:
    """One kernel's part in attention."""

    backend: str
    sizes: Sizes
    backward: bool
    counts: bool
    """Whether each of its runs is a call."""
    kernel: str | None
    precision: str | None
    spent: Spent
    reason: str | None


@analysis(
    reads={
        "device_work": (*WORK_READS["device_work"], "device_name", "start_ns", "dur_ns", "launch"),
        "launches": ("event", "thread", "start_ns"),
        "ops": (*WORK_READS["ops"], "thread", "start_ns", "dur_ns", "args", "args_id", "parent"),
        "call_sites": ("event", "forward"),
        "steps": STEPS,
    }
)
def attention(trace: Trace) -> Table[Attention]:
    """Says which implementation of attention ran inside the steps, for what sizes, and how long."""
    windows = step_windows(trace)
    rows: dict[tuple[str, Sizes], list[_Part]] = defaultdict(list)
    for part in _parts(trace, windows):
        rows[part.backend, part.sizes].append(part)
    whole = time_inside(trace, _ALL_KERNELS, windows) if rows else 0
    masks = _masks(trace, rows)
    table = sorted(
        (_row(key, parts, whole, masks.get(key)) for key, parts in rows.items()),
        key=lambda row: (-row.forward_ns - row.backward_ns, row.backend),
    )
    notes = list(windows.notes)
    if not table:
        notes.append("No attention ran on a device inside the steps.")
        on_host = trace.rows(_ON_HOST) if trace.may_have_name("^aten::_scaled_dot_product") else ()
        notes += [f"On the host, {row['name']} ran {row['calls']} times." for row in on_host]
    return Table.of(Attention, table, notes)


def _parts(trace: Trace, windows: Windows) -> Iterator[_Part]:
    """What kernels took part in attention."""
    stretches = _stretches(trace)
    named = [
        group
        for group in work_groups(trace)
        if group["kind"] == "kernel" and family_of(group["name"], group["op"]) == "attention"
    ]
    if not stretches and not named:
        return
    kernels = _kernels(stretches)
    params: dict[str, Any] = {"named": [group["grouped"] for group in named]}
    # Without stretches these are all that are looked at: few of those that ran.
    params |= stretches.params if stretches else {"kernels": [group["name_id"] for group in named]}
    details = trace.rows(
        f"""
        SELECT grouped, any_value(name) AS name, any_value(op_name) AS op, any_value(args) AS args,
               any_value(kind) AS kind, any_value(of_op) AS of_op, any_value(of_args) AS of_args,
               bool_or(backward) AS backward, bool_or(exponential) AS exponential
        FROM ({kernels}) GROUP BY grouped
        ORDER BY name, op, args, kind, of_op, of_args, backward, exponential, grouped
        """,
        **params,
    )
    numbers = {one["grouped"]: number for number, one in enumerate(details)}
    timed = f"SELECT device_name, start_ns, coalesce(dur_ns, 0) AS dur_ns, grouped FROM ({kernels})"
    for one, spent in zip(details, spent_by_group(trace, timed, numbers, windows, **params), strict=True):
        if spent.calls:
            yield _part(one, spent)


def _part(one: dict[str, Any], spent: Spent) -> _Part:
    """What a kernel has to do with attention."""
    name, op = one["name"], one["op"]
    family = family_of(name, op)
    used = precision_of(name, operands(op, one["args"]).types)
    if family == "attention":
        sizes = sizes_of(op, one["args"])
        main = not is_side_kernel(name)
        missing = sizes.head_dim is None or (main and used.reason)
        return _Part(
            backend_of(name, op),
            sizes,
            is_backward(name, op),
            main,
            name,
            used.precision if main else None,
            spent,
            _why(op, used.reason if main else None) if missing else None,
        )
    sizes = _sizes(one["of_op"], one["of_args"])
    return _Part(
        one["kind"],
        sizes,
        one["backward"],
        "softmax" in (name or "").lower() or bool(one["exponential"]),
        name,
        used.precision if family == "matmul" and not is_side_kernel(name) else None,
        spent,
        _why(one["of_op"]) if sizes.head_dim is None else None,
    )


def _why(op: str | None, reason: str | None = None) -> str:
    """Why sizes or data types are not known."""
    if op is None:
        return "launched outside any operator, as in a replayed graph: its inputs are not in the profile"
    return reason or "its sizes were not recorded (record_shapes=True)"


def _masks(trace: Trace, rows: Collection[tuple[str, Sizes]]) -> dict[tuple[str, Sizes], Mask | None]:
    """What masks the scores, for each backend and size."""
    fused = [(backend, sizes) for backend, sizes in rows if backend not in _WRITTEN_OUT and sizes.head_dim]
    told = fused_masks(trace) if fused else {}
    found = {key: told.get(key[1]) for key in fused}
    unsized = [key for key in rows if key[0] in WITH_MASK and not key[1].head_dim]
    if unsized and converts_masks(trace):
        found |= dict.fromkeys(unsized, "some")
    return found | (_written_masks(trace) if any(backend in _WRITTEN_OUT for backend, _ in rows) else {})


def _written_masks(trace: Trace) -> dict[tuple[str, Sizes], Mask | None]:
    """What masks the scores of attention that is written out."""
    causal = causal_sizes(trace)
    found: dict[tuple[str, Sizes], Mask | None] = {}
    stretches = _stretches(trace)
    for kind, op, args, mask in masks_of(trace, stretches.sql, **stretches.params) if stretches else ():
        sizes = _sizes(op, args)
        is_causal = mask == "some" and sizes.query_length == sizes.key_length and sizes.key_length in causal
        told: Mask | None = "causal" if is_causal else mask
        if found.setdefault((kind, sizes), told) != told:
            found[kind, sizes] = None
    return found


def _sizes(op: str | None, args: str | None) -> Sizes:
    measure = product_sizes if op in ("aten::bmm", "aten::baddbmm") else sizes_of
    return measure(op, args)


def _row(key: tuple[str, Sizes], parts: list[_Part], whole_ns: int, mask: Mask | None) -> Attention:
    backend, sizes = key
    total = sum(part.spent.total_ns for part in parts)
    sides = [[part for part in parts if part.backward is backward] for backward in (False, True)]
    calls = [sum(part.spent.calls for part in side if part.counts) for side in sides]
    times = [sum(part.spent.total_ns for part in side) for side in sides]
    precision = _most((part.precision, part.spent.total_ns) for part in parts if part.precision)
    reasons = sorted({part.reason for part in parts if part.reason})
    return Attention(
        backend=backend,
        precision=precision or "unknown",
        batch=sizes.batch,
        heads=sizes.heads,
        query_length=sizes.query_length,
        key_length=sizes.key_length,
        head_dim=sizes.head_dim,
        forward_calls=calls[0],
        forward_ns=times[0],
        backward_calls=calls[1],
        backward_ns=times[1],
        share=total / whole_ns if whole_ns else None,
        longest=_most((part.kernel or "", part.spent.total_ns) for part in parts),
        mask=mask,
        reason="; ".join(reasons) or None,
    )


def _most(weighed: Iterator[tuple[str, int]]) -> str | None:
    """What has the most weight."""
    sums: dict[str, int] = defaultdict(int)
    for what, weight in weighed:
        sums[what] += weight
    return max(sorted(sums), key=sums.__getitem__) if sums else None
