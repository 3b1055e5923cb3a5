"""torch.cosine_similarity compares all pairs by broadcasting."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice, Category, locations_of, rule
from stepscope.findings._phrases import often
from stepscope.findings._products import off_device
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.fixes import fix_of
from stepscope.findings.mean_step import MeanStep
from stepscope.patterns import late_pattern
from stepscope.tables import Table

__all__ = ["pairwise_cosines"]

_COSINES = "aten::cosine_similarity"
_NODE = "autograd::engine::evaluate_function: "
# Gradients of its quotients and norms, of which a program has few others; and of its product.
_OWN_GRADIENTS = late_pattern(_NODE + r"(DivBackward0|LinalgVectorNormBackward0|ClampMinBackward\d)")
_OTHER_GRADIENTS = late_pattern(_NODE + r"(MulBackward0|SumBackward1|ExpandBackward0|UnsqueezeBackward0)")
_BACKWARD = 8
"""How many times as long as the forward pass its gradients take at most: several kernels for each quotient,
norm and product, of which each reads and writes a vector for each pair."""
_FIX = fix_of(
    "a, b = F.normalize(a, dim=-1), F.normalize(b, dim=-1)",
    "cosines = a @ b.T    # instead of F.cosine_similarity(a[:, None], b[None], dim=-1)",
)


@rule(category=Category.DEVICE)
def pairwise_cosines(
    mean_step: MeanStep, step_ops: Table[StepOp], *, least_share: float = 0.05
) -> Advice | None:
    """Cosines of all pairs are computed by broadcasting, which writes a vector for each pair.

    Gain: a matrix product of normalised vectors takes next to nothing compared to that.

    - at least: the time of torch.cosine_similarity, and of the gradients of quotients and norms.
    - at most: with the gradients of products and sums, of which some may be of other code.
    """
    ops = list(step_ops)
    calls = [op for op in ops if op.name == _COSINES]
    forward_ns = mean_step.per_step(sum(op.device_ns for op in calls))
    own, other = (
        mean_step.per_step(sum(op.device_ns for op in ops if gradients.fullmatch(op.name or "")))
        for gradients in (_OWN_GRADIENTS, _OTHER_GRADIENTS)
    )
    least = forward_ns + min(own, _BACKWARD * forward_ns)
    saving = off_device((least, least + min(other, _BACKWARD * forward_ns)), mean_step)
    if not forward_ns or mean_step.gain(saving).high_share < least_share:
        return None
    number = sum(op.per_step for op in calls)
    return Advice(
        title="Cosines of all pairs are computed elementwise",
        because=f"torch.cosine_similarity takes {units.duration(forward_ns)} of the GPU's forward pass, "
        f"{often(number, 'call')}, and gradients of quotients and norms take {units.duration(own)}. It takes "
        "so much only if inputs are broadcast: a vector is written for each pair of rows.",
        saving=saving,
        certainty="likely",
        fix=_FIX,
        check=f"stepscope show step_ops: {_COSINES} is gone.",
        evidence={
            "forward_ns": round(forward_ns),
            "gradients_ns": round(own),
            "busy_share": least / mean_step.busy_ns,
            "calls_per_step": number,
        },
        claims=frozenset({Claim(Time.DEVICE, Part.ELEMENTWISE)}),
        locations=locations_of(
            (op.user_frame, f"{op.name}, {often(op.per_step, 'call')}", (op.name,))
            for op in sorted(calls, key=lambda op: -op.device_ns)
        ),
    )
