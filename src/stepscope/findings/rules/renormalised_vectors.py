"""A search normalises the stored vectors again for every request."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.step_classes import StepClass
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice, Category, rule
from stepscope.findings._inference import infers
from stepscope.findings._op_costs import cost_of, places_of
from stepscope.findings._phrases import often
from stepscope.findings._products import off_device
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.fixes import fix_of
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["renormalised_vectors"]

_NORMS = ("aten::linalg_vector_norm", "aten::norm")
_QUOTIENTS = ("aten::div", "aten::div_")
_PRODUCTS = ("aten::mm", "aten::matmul", "aten::bmm", "aten::einsum")
_CHOOSES = ("aten::topk", "aten::argmax", "aten::max", "aten::sort", "aten::argsort")
_QUOTIENTS_EACH = 2
"""Quotients for each norm: with more of them, others are among them."""
_STORED = 0.5
"""To normalise takes three passes over a tensor, a product with it one, or longer if it has to compute: what
takes this part of the product is the larger of its inputs."""
_LEAST = 0.8
"""The vectors of the request itself are still normalised."""
_FIX = fix_of(
    "stored = F.normalize(stored, dim=-1)    # once, when the service starts",
    "scores = F.normalize(queries, dim=-1) @ stored.T    # not cos_sim(queries, stored): it normalises both",
    "util.semantic_search(queries, stored, score_function=util.dot_score)    # of sentence-transformers",
)


@rule(category=Category.INFERENCE)
def renormalised_vectors(
    mean_step: MeanStep,
    step_ops: Table[StepOp],
    step_classes: Table[StepClass],
    *,
    least_share: float = 0.05,
) -> Advice | None:
    """A search normalises all stored vectors for every request, though they never change.

    Gain: they are normalised once.

    - at most: all GPU time of norms, and of the quotients by them.
    - at least: four fifths of it, because the request's own vectors stay to be normalised.
    """
    if not infers(step_classes):
        return None
    own = [op for op in step_ops if op.within is None and op.launches]

    def named(names: tuple[str, ...]) -> list[StepOp]:
        return [op for op in own if op.name in names]

    norms, quotients = named(_NORMS), named(_QUOTIENTS)
    calls = sum(op.calls for op in norms)
    if not named(_CHOOSES) or not 0 < sum(op.calls for op in quotients) <= _QUOTIENTS_EACH * calls:
        return None
    cost, products = cost_of([*norms, *quotients], mean_step), cost_of(named(_PRODUCTS), mean_step)
    saving = off_device((_LEAST * cost.device_ns, cost.device_ns), mean_step)
    is_stored = 0 < _STORED * products.device_ns <= cost.device_ns
    if not is_stored or mean_step.gain(saving).high_share < least_share:
        return None
    return Advice(
        title="Stored vectors are normalised for every request",
        because=f"{often(calls / mean_step.steps, 'norm')} and the quotients by them take "
        f"{units.duration(cost.device_ns)} of GPU time, and the products of vectors "
        f"{units.duration(products.device_ns)}. So it is the larger of the two inputs that is normalised: "
        "those that are searched, which do not change.",
        saving=saving,
        certainty="likely",
        fix=_FIX,
        check="stepscope show step_ops: less device time in aten::linalg_vector_norm and aten::div.",
        evidence={
            "norms_per_step": calls / mean_step.steps,
            "device_ns": round(cost.device_ns),
            "products_ns": round(products.device_ns),
        },
        claims=frozenset({Claim(Time.DEVICE, Part.ELEMENTWISE), Claim(Time.DEVICE, Part.NORMALISATION)}),
        locations=places_of(norms),
    )
