"""flex_attention() runs without torch.compile."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice, Category, locations_of, rule
from stepscope.findings._fewer_calls import fewer_calls, host_part
from stepscope.findings._phrases import often
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.fixes import fix_of
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["uncompiled_flex"]

_FLEX = "FlexAttentionAutogradOp"
"""How torch records flex_attention() that runs operator by operator; compiled, it is part of a graph."""
_BACKWARD = f"{_FLEX}Backward"
_SOFTMAX = ("aten::_safe_softmax", "aten::softmax", "aten::_softmax")
_PRODUCTS = ("aten::matmul", "aten::bmm")
_CALL_NS = 100_000
"""What the host takes for a call of compiled attention, at most: guards, and one or two launches."""
_FIX = fix_of(
    "flex_attention = torch.compile(flex_attention)    # once, where it is imported",
    "block_mask = create_block_mask(mask_mod, B, H, Q, KV)    # once for all layers, compiled as well",
)


@rule(category=Category.ATTENTION)
def uncompiled_flex(
    mean_step: MeanStep, step_ops: Table[StepOp], *, least_share: float = 0.03
) -> Advice | None:
    """Attention by flex_attention() is not compiled: it runs as separate operators, with all scores.

    Gain: compiled, a call is one kernel, which skips blocks that are masked.

    - at most: all GPU time of its operators goes, and all host time but 100 µs a call.
    - at least: the same but for its products, at the GPU time they take now.
    """
    ops = list(step_ops)
    calls = [op for op in ops if op.name == _FLEX]
    inside = [op for op in ops if op.within == _FLEX]
    if not calls or not any(op.name in _SOFTMAX for op in inside):
        return None
    backward = [op for op in ops if op.within is None and _BACKWARD in (op.name or "")]
    ns = mean_step.per_step(sum(op.device_ns for op in (*calls, *backward)))
    products = mean_step.per_step(sum(op.device_ns for op in inside if op.name in _PRODUCTS))
    number = sum(op.per_step for op in calls)
    host_ns = sum(op.host_ns for op in (*calls, *backward))
    kept = min(1.0, _CALL_NS * number * mean_step.steps / host_ns) if host_ns else 0.0
    part = host_part((*calls, *backward), ops) * (1 - kept)
    saving = fewer_calls(mean_step, (part, part), (max(0.0, ns - products), ns))
    if mean_step.gain(saving).high_share < least_share:
        return None
    host = mean_step.per_step(host_ns)
    return Advice(
        title="flex_attention runs without torch.compile",
        because=f"flex_attention runs operator by operator, {often(number, 'call')}: all scores are written "
        "to memory, masked ones too, and masks are computed again in each call. It takes "
        f"{units.duration(ns)} of a step on the GPU ({units.share(ns / mean_step.busy_ns)} of its work) and "
        f"{units.duration(host)} on the host.",
        saving=saving,
        certainty="likely",
        fix=_FIX,
        check=f"stepscope show step_ops: {_FLEX} is gone; stepscope show attention: the backend is flex.",
        evidence={
            "attention_ns": round(ns),
            "busy_share": ns / mean_step.busy_ns,
            "host_ns": round(host),
            "calls_per_step": number,
        },
        claims=frozenset(
            {
                Claim(Time.DEVICE, Part.ATTENTION),
                Claim(Time.DEVICE, Part.MATMUL),
                Claim(Time.DEVICE, Part.ELEMENTWISE),
                Claim(Time.STARVED),
            }
        ),
        locations=locations_of(
            (op.user_frame, f"flex_attention, {often(op.per_step, 'call')}", (op.name,)) for op in calls
        ),
    )
