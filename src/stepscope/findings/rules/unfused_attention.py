"""Attention writes its scores to memory."""

from __future__ import annotations

from collections.abc import Iterable

from stepscope import units
from stepscope.analyses.attention import Attention
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice, Bounds, Category, Location, Saving, locations_of, rule
from stepscope.findings._compiling import MASK_OF_ONES, takes_attention_apart
from stepscope.findings._fewer_calls import called_as, host_part, with_their_calls
from stepscope.findings._phrases import often
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.fixes import Change, Fix, FixLine, fix_of, line, sixteen_bits
from stepscope.findings.mean_step import MeanStep
from stepscope.patterns import late_pattern
from stepscope.tables import Table

__all__ = ["unfused_attention"]

_UNFUSED = ("math", "hand-written")
_WIDE = ("fp32", "tf32", "fp64")
_FAST_PATH = "aten::_native_multi_head_attention"
"""Torch's fast path of nn.MultiheadAttention: it is fused only if the weights are not returned."""
_TORCH_S = ("aten::scaled_dot_product_attention", "aten::_scaled_dot_product_attention_math", _FAST_PATH)
# What hand-written attention calls, forward and backward.
_SOFTMAX = late_pattern(r"aten::_softmax(_backward_data)?|triton_.*_safe_softmax\w*")
_WEIGHTS = late_pattern(r"aten::(_softmax|exp_?|exp2)")
"""A softmax may be written as an exponential and a sum."""
# Only a mask that is known to be causal may be replaced: for other models is_causal=True is another function.
_BY_NAME = 'AutoModel.from_pretrained(name, attn_implementation="sdpa")    # with transformers'
_ARGUMENTS: dict[str | None, str] = {
    None: "",
    "none": "",
    "some": ", attn_mask=mask",
    "causal": ", is_causal=True",
}
_CALLED = late_pattern(
    r"aten::(matmul|bmm|baddbmm|einsum|_?softmax|masked_fill_?|where|(native_)?dropout"
    r"|scaled_dot_product_attention)"
)
"""What hand-written attention calls, as far as the names tell."""
_VIEW = late_pattern(r"aten::(reshape|contiguous|matmul)")
_PRODUCT = late_pattern(r"aten::(badd)?bmm")
_WITH_ONES = f"""\
{MASK_OF_ONES}    # some models of transformers, if they get no
                                                             # mask, make one that no fused kernel takes"""
_COMPILED = (
    _WITH_ONES,
    "model = plain    # not torch.compile(plain), and compare: it may have taken fused attention apart",
    "with sdpa_kernel(SDPBackend.FLASH_ATTENTION):    # around the model: it warns why it cannot be used",
)
_PASSES = 4
"""How often the scores go through memory at least: written and read again, once before and once after the
softmax. Masks, scales and dropout add to that."""
_SHORTEST_NS = 4_000
"""What a kernel of fused attention takes at least."""


@rule(category=Category.ATTENTION, yields_to=("uncompiled_flex",))
def unfused_attention(
    mean_step: MeanStep, attention: Table[Attention], step_ops: Table[StepOp], *, least_share: float = 0.03
) -> Advice | None:
    """Attention is not one fused kernel and writes the scores of all pairs of positions to memory.

    Gain: a fused kernel keeps the scores on the chip.

    - at most: it takes as long as moving queries, keys, values and results once, by their part of all bytes
      that are moved now (scores of length × length go through memory four times or more); 4 µs a call if
      sizes were not recorded. Copies that reorder heads go as well, and half of the GPU's waiting for these
      operators, because projections and views stay. The host no longer calls these operators.
    - at least: all that is not a product goes (softmax, masks, scales), as measured. Nothing if sizes were
      not recorded and the softmax takes less time than copies of queries, keys or values: the sequences may
      be too short.
    """
    rows = [row for row in attention if row.backend in _UNFUSED]
    ns = mean_step.per_step(sum(row.forward_ns + row.backward_ns for row in rows))
    if not ns or not mean_step.busy_ns or ns < least_share * mean_step.busy_ns:
        return None
    main = max(rows, key=lambda row: row.forward_ns + row.backward_ns)
    around = _around(step_ops, main)
    short = _may_be_short(main, step_ops)
    calls = mean_step.per_step(sum(row.forward_calls + row.backward_calls for row in rows))
    starved_ns = 0.5 * mean_step.with_latency(mean_step.per_step(sum(op.starved_ns for op in around)))
    low, high = _saved(rows, step_ops, calls, mean_step)
    saving = Saving(starved_ns=(0.0, starved_ns), device_ns=(0.0 if short else low, high))
    return Advice(
        title="Attention is not fused and writes its scores to memory",
        because=_because(main, around, ns, calls, mean_step),
        saving=saving
        if short
        else with_their_calls(mean_step, saving, host_part(_called(step_ops), step_ops)),
        certainty="possible" if short else "likely",
        fix=_fix(main, around),
        check="stepscope show attention: the backend is flash, cudnn, memory-efficient or flex.",
        evidence={
            "attention_ns": round(ns),
            "busy_share": ns / mean_step.busy_ns,
            "calls_per_step": calls,
            "backend": main.backend,
            "precision": main.precision,
            "query_length": main.query_length,
            "key_length": main.key_length,
            "head_dim": main.head_dim,
        },
        claims=frozenset(
            {Claim(Time.DEVICE, Part.ATTENTION), Claim(Time.DEVICE, Part.MATMUL)}
            | ({Claim(Time.STARVED, Part.ATTENTION)} if starved_ns else set())
        ),
        locations=_locations(around),
    )


def _saved(
    rows: Iterable[Attention], step_ops: Iterable[StepOp], calls: float, mean_step: MeanStep
) -> Bounds:
    """What a fused kernel saves of GPU time, at least and at most."""
    ns, kept = 0.0, 0.0
    for row in rows:
        own = mean_step.per_step(row.forward_ns + row.backward_ns)
        ns, kept = ns + own, kept + own * _kept_share(row)
    by_name = {"products": 0, "softmax": 0, "copies": 0}
    for op in step_ops:
        if _PRODUCT.fullmatch(op.name or ""):
            by_name["products"] += op.device_ns
        elif _SOFTMAX.fullmatch(op.name or ""):
            by_name["softmax"] += op.device_ns
        elif op.name == "aten::clone" and _VIEW.fullmatch(op.within or ""):
            by_name["copies"] += op.device_ns
    high = max(0.0, ns - max(kept, min(ns, calls * _SHORTEST_NS))) + mean_step.per_step(by_name["copies"])
    # Other products of the model may be among them, but a softmax belongs to attention.
    low = max(ns - mean_step.per_step(by_name["products"]), mean_step.per_step(by_name["softmax"]))
    return min(low, high, mean_step.busy_ns), min(high, mean_step.busy_ns)


def _kept_share(row: Attention) -> float:
    """Bytes that have to be moved in any case, as a part of all; 0 if sizes are not known."""
    if not row.query_length or not row.key_length or not row.head_dim:
        return 0.0
    needed = 2 * (row.query_length + row.key_length) * row.head_dim
    return needed / (needed + _PASSES * row.query_length * row.key_length)


def _may_be_short(main: Attention, step_ops: Iterable[StepOp]) -> bool:
    """Whether sequences seem so short that there are fewer scores than queries; False if sizes are known."""
    if main.query_length and main.key_length and main.head_dim:
        return False
    forward = [op for op in step_ops if op.phase != "backward"]
    weights = [op for op in forward if _WEIGHTS.fullmatch(op.name or "")]
    copies = [op for op in forward if op.name == "aten::clone" and _VIEW.fullmatch(op.within or "")]
    times = [
        sum(op.device_ns for op in ops) / max(1, sum(op.launches for op in ops)) for ops in (weights, copies)
    ]
    return 0 < times[0] < times[1]


def _around(step_ops: Iterable[StepOp], main: Attention) -> list[StepOp]:
    """The operators of attention: torch's own around it, or products and softmax."""
    ops = list(step_ops)
    if main.backend == "math":
        for name in _TORCH_S:
            if found := [op for op in ops if op.name == name and op.device_ns]:
                return found
    return [op for op in ops if _SOFTMAX.fullmatch(op.name or "") or _PRODUCT.fullmatch(op.name or "")]


def _called(step_ops: Iterable[StepOp]) -> list[StepOp]:
    """What the program calls for attention, and autograd for its gradients."""
    return [op for op in step_ops if op.within is None and _CALLED.fullmatch(called_as(op) or "")]


def _because(main: Attention, around: Iterable[StepOp], ns: float, calls: float, mean_step: MeanStep) -> str:
    made = "torch's math backend" if main.backend == "math" else "matrix products and a softmax of the model"
    scores = "the scores of all pairs of positions"
    if main.query_length and main.key_length:
        scores = f"{units.count(main.query_length)} × {units.count(main.key_length)} scores for each head"
    number = "once" if round(calls) == 1 else f"{units.count(round(calls))} times"
    return (
        f"Attention takes {units.duration(ns)} of a step, {units.share(ns / mean_step.busy_ns)} of the GPU's "
        f"work. It runs as {made}: {scores} are written to memory and read again, {number} a step. "
        f"{_why(main, around)}"
    ).rstrip()


def _why(main: Attention, around: Iterable[StepOp]) -> str:
    """Why torch used its math backend, as far as the trace tells."""
    if main.backend != "math":
        return ""
    if any(op.name == _FAST_PATH for op in around):
        return "nn.MultiheadAttention does so if it returns the weights (need_weights=True, the default)."
    if takes_attention_apart(around):
        return "torch.compile took torch's attention apart: in bf16, too, this backend computes in fp32."
    if main.precision in _WIDE:
        return f"Flash attention and cuDNN need 16 bits, and this is {main.precision}."
    return "A mask, the head size or a setting (sdpa_kernel) rules out torch's fused kernels."


def _fix(main: Attention, around: Iterable[StepOp]) -> Fix:
    lines: list[FixLine | str] = []
    if takes_attention_apart(around):
        return fix_of(*_COMPILED)
    if any(op.name == _FAST_PATH for op in around):
        lines.append("y, _ = attention(x, x, x, need_weights=False)    # if the weights are not used")
    elif main.backend == "math":
        if main.mask == "causal":
            lines.append("F.scaled_dot_product_attention(q, k, v, is_causal=True)    # instead of attn_mask")
        lines.append("with sdpa_kernel(SDPBackend.FLASH_ATTENTION):    # warns why it cannot be used here")
    else:
        call = f"F.scaled_dot_product_attention(q, k, v{_ARGUMENTS[main.mask]})"
        lines.append(line(Change.ATTENTION, f"{call}    # instead of softmax(q @ k.T) @ v\n{_BY_NAME}"))
    if main.precision in _WIDE:
        lines += sixteen_bits("bf16", "flash and cuDNN need 16 bits")
    if main.mask != "none":
        lines.append("flex_attention(q, k, v, score_mod=..., block_mask=...)    # compiled, for other masks")
    return fix_of(*lines)


def _locations(around: Iterable[StepOp]) -> tuple[Location, ...]:
    ordered = sorted(around, key=lambda op: -op.device_ns)
    return locations_of(
        (op.user_frame, f"{op.name}, {often(op.per_step, 'call')}", (op.name,)) for op in ordered
    )
