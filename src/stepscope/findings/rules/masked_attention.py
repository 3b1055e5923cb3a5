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
_IS_CAUSAL = "F.scaled_dot_product_attention(q, k, v, is_causal=True)    # instead of attn_mask, if causal"
_PADDING = (
    "texts.sort(key=len)    # if it is for padding: like lengths in a batch, padded to the longest of them"
)
_OTHER = "flex_attention(q, k, v, block_mask=block_mask)    # compiled, for windows and other patterns"


@rule(category=Category.ATTENTION)
def masked_attention(
    mean_step: MeanStep,
    facts: Facts,
    attention: Table[Attention],
    step_ops: Table[StepOp],
    *,
    least_share: float = 0.05,
) -> Advice | None:
    """Attention reads one mask for all sequences and heads, where is_causal=True could skip half of it.

    Gain:

    - at least: what lies above the diagonal is skipped, in tiles of 128 positions, at 0.85 of the rate.
    - at most: the products that remain run at 0.6 of the GPU's peak; where no peak is known, three quarters
      go.

    If shapes were not recorded, a boolean mask may be causal or not: at least nothing is gained.
    """
    rows = [row for row in attention if row.backend in _FUSED and (_may_be_causal(row) or _unknown(row))]
    ns = mean_step.per_step(sum(row.forward_ns + row.backward_ns for row in rows))
    if not ns or ns < least_share * mean_step.busy_ns:
        return None
    main = max(rows, key=lambda row: row.forward_ns + row.backward_ns)
    calls = mean_step.per_step(sum(row.forward_calls for row in rows))
    return Advice(
        title="Attention reads a mask from memory"
        if _unknown(main)
        else "Attention reads a mask that may be causal",
        because=f"Attention takes {units.duration(ns)} of a step, {units.share(ns / mean_step.busy_ns)} of "
        f"the GPU's work, {often(calls, 'call')}. {_which(main)} With a mask in memory all scores are "
        "computed; with is_causal the half above the diagonal is skipped.",
        saving=off_device(_saved(rows, facts.device(mean_step.device), mean_step), mean_step),
        certainty="possible",
        fix=fix_of(_IS_CAUSAL, *([_PADDING] if _unknown(main) else []), _OTHER),
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


def _may_be_causal(row: Attention) -> bool:
    """Whether one mask for all sequences and heads covers long ones."""
    square = row.query_length is not None and row.query_length == row.key_length
    return row.mask == "shared" and square and (row.query_length or 0) >= _SHORT


def _unknown(row: Attention) -> bool:
    """Whether there is a mask, and nothing more is known of it."""
    return row.mask == "some" and row.query_length is None


def _which(row: Attention) -> str:
    if _unknown(row):
        return (
            "It gets a boolean mask, made one of numbers in each call. Whether it is causal or there "
            "for padding was not recorded (record_shapes=True)."
        )
    size = units.count(row.query_length or 0)
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
        low += ns * max(0.0, 1 - (0.5 + _TILE / 2 / row.query_length) / _UNEVEN)
        peak = peak_of(device, row.precision)
        kept = (1 - _MOST) * ns if peak is None else 1e9 * _causal_flops(row) / (_BEST_RATE * peak)
        high += max(0.0, ns - kept)
    return mean_step.per_step(min(low, high)), mean_step.per_step(high)


def _causal_flops(row: Attention) -> float:
    """Operations on and below the diagonal, of all calls."""
    scores = (row.batch or 1) * (row.heads or 1) * (row.query_length or 0) ** 2 / 2
    return 4 * scores * (row.head_dim or 0) * (row.forward_calls + _BACKWARD_FLOPS * row.backward_calls)
