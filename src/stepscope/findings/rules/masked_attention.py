"""Fused attention gets a mask in memory that positions alone decide."""

from __future__ import annotations

from collections.abc import Iterable

from stepscope import units
from stepscope.analyses.attention import Attention
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice, Bounds, Category, locations_of, rule
from stepscope.findings._phrases import often
from stepscope.findings._products import off_device, peak_of
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.facts import DeviceFacts, Facts
from stepscope.findings.fixes import fix_of
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["masked_attention"]

_FUSED = ("flash", "cudnn", "memory-efficient")
_SHORT = 256
"""Below so many positions the kernels' tiles leave nothing to skip."""
_TILE = 128
"""Positions in a tile of fused attention: those on the diagonal are computed whole."""
_UNEVEN = 0.85
"""Causal kernels run at less of the full rate: some blocks have many tiles and some have few."""
_BEST_RATE = 0.6
"""The part of the peak that the best kernels of causal attention reach, in both directions (H100, H200)."""
_BACKWARD_FLOPS = 2.5
"""Products of backward for one of forward: five for two."""
_MOST = 0.75
"""What is saved at most where no peak is known: half of the products, and as much for reading the mask."""
_DOCUMENT = 512
"""Positions of a document, where several are packed into a row and a mask keeps them apart."""
_DOCUMENTS = 8
"""In a row, at most."""
_CONVERTED = ("aten::where", "aten::scaled_dot_product_attention")
"""How torch makes a boolean mask one of numbers: the operator, and the one around it."""
_IS_CAUSAL = "F.scaled_dot_product_attention(q, k, v, is_causal=True)    # instead of attn_mask, if causal"
_PADDING = (
    "texts.sort(key=len)    # if it is for padding: like lengths in a batch, padded to the longest of them"
)
_NONE = "F.scaled_dot_product_attention(q, k, v)    # without attn_mask, if nothing is masked"
_OTHER = "flex_attention(q, k, v, block_mask=block_mask)    # compiled, for windows and other patterns"
_PACKED = """\
flex_attention(q, k, v, block_mask=block_mask)    # compiled: skips what lies between documents of a row"""
_UNKNOWN, _SHARED, _OF_EACH = "unknown", "shared", "of each"
_TITLES = {
    _UNKNOWN: "Attention reads a mask from memory",
    _SHARED: "Attention reads a mask that may be causal",
    _OF_EACH: "Attention reads a mask for each sequence",
}
_HALF = (
    "With a mask in memory all scores are computed; with is_causal the half above the diagonal is skipped."
)
_MEANS = {
    _UNKNOWN: _HALF,
    _SHARED: _HALF,
    _OF_EACH: "If nothing is masked, or sequences in a batch have the same length, no mask is needed. "
    "If it keeps documents apart that are packed into a row, most of the scores need not be computed.",
}
_FIXES = {
    _UNKNOWN: (_IS_CAUSAL, _NONE, _PADDING, _OTHER),
    _SHARED: (_IS_CAUSAL, _OTHER),
    _OF_EACH: (_NONE, _PADDING, _PACKED),
}


@rule(category=Category.ATTENTION)
def masked_attention(
    mean_step: MeanStep,
    facts: Facts,
    attention: Table[Attention],
    step_ops: Table[StepOp],
    *,
    least_share: float = 0.05,
) -> Advice | None:
    """Attention reads a mask from memory that is_causal=True, or no mask at all, could replace.

    Gain, if one mask is for all sequences and heads:

    - at least: what lies above the diagonal is skipped, in tiles of 128 positions, at 0.85 of the rate.
    - at most: the products that remain run at 0.6 of the GPU's peak; where no peak is known, three quarters
      go.

    If each sequence has a mask, boolean masks are not made ones of numbers at most, and all products remain,
    at 0.6 of the peak; or, if rows hold documents of 512 positions, at most eight, those inside them remain.
    At least nothing is gained then, nor where shapes were not recorded.
    """
    rows = [row for row in attention if row.backend in _FUSED and _kind(row)]
    ns = mean_step.per_step(sum(row.forward_ns + row.backward_ns for row in rows))
    if not ns or ns < least_share * mean_step.busy_ns:
        return None
    main = max(rows, key=lambda row: row.forward_ns + row.backward_ns)
    calls = mean_step.per_step(sum(row.forward_calls for row in rows))
    low, high = _saved(rows, facts.device(mean_step.device), mean_step)
    converted = sum(op.device_ns for op in step_ops if (op.name, op.within) == _CONVERTED)
    return Advice(
        title=_TITLES[_kind(main) or _UNKNOWN],
        because=f"Attention takes {units.duration(ns)} of a step, {units.share(ns / mean_step.busy_ns)} of "
        f"the GPU's work, {often(calls, 'call')}. {_which(main)} {_MEANS[_kind(main) or _UNKNOWN]}",
        saving=off_device((low, high + mean_step.per_step(converted)), mean_step),
        certainty="possible",
        fix=fix_of(*_FIXES[_kind(main) or _UNKNOWN]),
        check="stepscope show attention: the mask is causal, and forward_ns and backward_ns fall.",
        evidence={
            "attention_ns": round(ns),
            "busy_share": ns / mean_step.busy_ns,
            "calls_per_step": calls,
            "query_length": main.query_length,
            "backend": main.backend,
        },
        claims=frozenset({Claim(Time.DEVICE, Part.ATTENTION)}),
        locations=locations_of(
            (op.user_frame, f"{op.name}, {often(op.per_step, 'call')}", (op.name,))
            for op in sorted(step_ops, key=lambda op: -op.device_ns)
            if op.name == "aten::scaled_dot_product_attention"
        ),
    )


def _kind(row: Attention) -> str | None:
    """What is known of the mask: that it is for all sequences alike, that each has one, or nothing more."""
    if row.query_length is None:
        return _UNKNOWN if row.mask == "some" else None
    if row.query_length != row.key_length or row.query_length < _SHORT:
        return None
    return {"shared": _SHARED, "some": _OF_EACH}.get(row.mask or "")


def _which(row: Attention) -> str:
    if _kind(row) == _UNKNOWN:
        return (
            "It gets a boolean mask, made one of numbers in each call. Whether it is causal or there "
            "for padding was not recorded (record_shapes=True)."
        )
    size = units.count(row.query_length or 0)
    if _kind(row) == _OF_EACH:
        return f"It gets a mask of {size} × {size} for each sequence, which is read in each call."
    return (
        f"It gets one mask of {size} × {size} for all sequences and heads, so positions alone decide what is "
        "masked, as in a causal model."
    )


def _saved(rows: Iterable[Attention], device: DeviceFacts | None, mean_step: MeanStep) -> Bounds:
    """What skipping the masked half saves of GPU time, at least and at most."""
    low = high = 0.0
    for row in rows:
        ns = row.forward_ns + row.backward_ns
        if not row.query_length:
            high += _MOST * ns
            continue
        all_remain = _kind(row) == _OF_EACH
        if not all_remain:
            low += ns * max(0.0, 1 - (0.5 + _TILE / 2 / row.query_length) / _UNEVEN)
        peak, times = peak_of(device, row.precision), 2 if all_remain else 1
        kept = times * ((1 - _MOST) * ns if peak is None else 1e9 * _causal_flops(row) / (_BEST_RATE * peak))
        if all_remain:
            kept = min(kept, ns * max(1 / _DOCUMENTS, _DOCUMENT / row.query_length))
        high += max(0.0, ns - kept)
    return mean_step.per_step(min(low, high)), mean_step.per_step(high)


def _causal_flops(row: Attention) -> float:
    """Operations on and below the diagonal, of all calls."""
    scores = (row.batch or 1) * (row.heads or 1) * (row.query_length or 0) ** 2 / 2
    return 4 * scores * (row.head_dim or 0) * (row.forward_calls + _BACKWARD_FLOPS * row.backward_calls)
