"""Weights are cast to another data type in every forward pass."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from stepscope import units
from stepscope.analyses.copies import Copy
from stepscope.analyses.kernel_families import KernelFamily
from stepscope.analyses.kernels import Kernel
from stepscope.analyses.ops import OpOfShape
from stepscope.analyses.product_casts import WEIGHTED, ProductCasts
from stepscope.analyses.starving_phases import StarvingPhase
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice, Category, Certainty, NotKnown, Saving, rule
from stepscope.findings._fewer_calls import host_part, with_their_calls
from stepscope.findings._op_costs import OpCost, cost_of, part_in_steps, places_of, waits_of
from stepscope.findings._phrases import if_idle, times
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.fixes import Change, FixLine, fix_of, line
from stepscope.findings.mean_step import MeanStep
from stepscope.patterns import late_pattern
from stepscope.records import dataclass
from stepscope.tables import Table

__all__ = ["weight_casts"]

_WEIGHTED = late_pattern(WEIGHTED)
_CAST = "aten::_to_copy"
_INPUTS = 1.5
"""Casting the inputs of matrix products takes at most this many times as long as the products."""
_SINGLE = late_pattern(r"^(?!.*bfloat16).*\bfloat\b", re.IGNORECASE)
"""Kernels of fp32 alone, by the types in their names."""
_HALVED = ("elementwise", "normalisation", "reduction")
"""Families of kernels that take half as long with half the bytes."""
LEAST_GAIN = 0.01
LEAST_CASTS = 4


@dataclass(frozen=True, slots=True)
class _Casts:
    """Casts of weights, and of their gradients back, in a mean step."""

    cost: OpCost
    certainty: Certainty
    least_starved: float
    least_device: float
    """The parts of the GPU's waiting for them, and of their GPU time, that surely are of weights and go."""
    shapes_known: bool = False


@rule(category=Category.PRECISION)
def weight_casts(  # noqa: PLR0913, PLR0917  # one parameter for each table
    mean_step: MeanStep,
    starving_phases: Table[StarvingPhase],
    step_ops: Table[StepOp],
    copies: Table[Copy],
    ops_by_shape: Table[OpOfShape],
    product_casts: Table[ProductCasts],
    kernels: Table[Kernel],
    kernel_families: Table[KernelFamily],
    *,
    least_share: float = 0.02,
) -> Advice | None:
    """Weights are cast to another data type in every forward pass, and their gradients back.

    Gain: weights kept in the data type of the matrix products need no casts.

    - at most: all GPU time of the casts, and all of the GPU's waiting for them. Without recorded shapes, of
      all casts inside operators, because without autocast nothing is cast. In inference also half of the
      time of elementwise kernels in fp32, because then they work on bf16, too, and the host's time for casts.
    - at least: all of that in inference, half of it in training, because an optimizer that keeps fp32 weights
      casts them once for each update.
    - at least, without recorded shapes: autocast casts the input of a product first, so the casts after that
      are of weights. Or what inputs cannot explain: casting an input moves 3 times its bytes in bf16,
      products move inputs and outputs, so casts of inputs take at most 1.5 times as long as the products.
    - one cast beside each product: at least half of them.
    """
    products = [op for op in step_ops if op.within is None and _WEIGHTED.fullmatch(op.name or "")]
    asked = [op for op in step_ops if op.name == "aten::to" and op.launches and op.phase == "forward"]
    near = [op for op in asked if op.within is None or _WEIGHTED.fullmatch(op.within)]
    # Fewer casts than that are of batches. What aten::to moves between host and GPU is none.
    least = max(LEAST_CASTS, 0.75 * cost_of(products, mean_step).calls)
    moved = mean_step.per_step(sum(row.calls for row in copies if row.direction in ("HtoD", "DtoH")))
    if not products or cost_of(near, mean_step).launches - moved < least:
        return None
    every = [op for op in step_ops if op.name == _CAST and op.launches and op.phase != "optimizer"]
    whole = cost_of(every, mean_step)
    if mean_step.share(mean_step.with_latency(whole.starved_ns) + whole.device_ns) < least_share:
        return None
    trains = any(op.phase == "backward" for op in step_ops)
    casts = _of_shape(ops_by_shape, whole, trains=trains) or _of_place(
        asked, products, product_casts, mean_step, trains=trains
    )
    starved = waits_of(casts.cost.starved_ns, casts.cost.launches, mean_step, starving_phases)
    device_ns = min(mean_step.busy_ns, casts.cost.device_ns)
    halved_ns = 0.0 if trains else _halved_ns(mean_step, kernels, kernel_families)
    saving = Saving(
        starved_ns=(casts.least_starved * starved[0], starved[1]),
        device_ns=(casts.least_device * device_ns, min(mean_step.busy_ns, device_ns + halved_ns)),
    )
    if not trains:  # the host does not call them either
        called = host_part(every, step_ops) * _part(casts.cost.launches, whole.launches)
        saving = with_their_calls(mean_step, saving, called)
    if (
        mean_step.share(starved[1] + device_ns) < least_share
        or mean_step.gain(saving).high_share < LEAST_GAIN
    ):
        return None
    return _advice(casts, saving, mean_step, asked, trains=trains)


def _of_shape(ops: Table[OpOfShape], whole: OpCost, *, trains: bool) -> _Casts | None:
    """Casts of what has the shape of a weight; None if shapes are not recorded."""
    weights: set[str] = set()
    for op in ops:
        if _WEIGHTED.fullmatch(op.name or "") and op.input_dims:
            weights |= {json.dumps(dims) for dims in json.loads(op.input_dims)[1:3] if dims}
    if not weights:
        return None
    casts = [op for op in ops if op.name == _CAST and op.device_total_ns and op.input_dims]
    of_weights = [op for op in casts if json.dumps(json.loads(op.input_dims or "[[]]")[0]) in weights]
    calls = _part(sum(op.calls for op in of_weights), sum(op.calls for op in casts))
    times = _part(sum(op.device_total_ns for op in of_weights), sum(op.device_total_ns for op in casts))
    cost = OpCost(
        calls=whole.calls * calls,
        starved_ns=whole.starved_ns * calls,
        device_ns=whole.device_ns * times,
        launches=whole.launches * calls,
    )
    least = 0.5 if trains else 1.0
    return _Casts(cost, "likely", least, least, shapes_known=True)


def _part(some: float, of: float) -> float:
    return some / of if of else 0.0


def _halved_ns(mean_step: MeanStep, kernels: Table[Kernel], kernel_families: Table[KernelFamily]) -> float:
    """Half of the time of kernels that work on fp32 alone, and would work on bf16 if weights were in it."""
    inside = part_in_steps(kernels, kernel_families)
    single = (row for row in kernels if row.family in _HALVED and _SINGLE.search(row.name or ""))
    return mean_step.per_step(sum(row.exclusive_ns for row in single) * inside) / 2


def _of_place(
    asked: list[StepOp],
    products: list[StepOp],
    product_casts: Table[ProductCasts],
    mean_step: MeanStep,
    *,
    trains: bool,
) -> _Casts:
    """Casts inside operators, as autocast makes them, or one beside each product."""
    of_products = cost_of((op for op in asked if _WEIGHTED.fullmatch(op.within or "")), mean_step)
    runs = cost_of(products, mean_step).calls
    if of_products.launches:
        every = cost_of((op for op in asked if op.within is not None), mean_step)
        multiplied_ns = cost_of(products, mean_step).device_ns - of_products.device_ns
        later = mean_step.per_step(sum(row.of_weights for row in product_casts))
        later_ns = mean_step.per_step(sum(row.of_weights_ns for row in product_casts))
        unexplained_ns = of_products.device_ns - _INPUTS * multiplied_ns
        calls = min(1.0, _part(later, every.launches))
        times = min(1.0, _part(max(0.0, later_ns, unexplained_ns), every.device_ns))
        kept = 0.5 if trains else 1.0
        return _Casts(every, "likely" if calls or times else "possible", kept * calls, kept * times)
    beside = cost_of((op for op in asked if op.within is None), mean_step)
    if round(beside.launches) == round(runs):
        return _Casts(beside, "possible", 0.5, 0.5)
    raise NotKnown("the profile does not tell which tensors are cast", record="record_shapes=True")


def _advice(
    casts: _Casts, saving: Saving, mean_step: MeanStep, ops: Iterable[StepOp], *, trains: bool
) -> Advice:
    cost = casts.cost
    starved_ns = mean_step.with_latency(cost.starved_ns)
    sure = "" if casts.shapes_known else " (estimated, because shapes were not recorded)"
    of = "of weights and their gradients" if trains else "of weights"
    text = "model = model.to(torch.bfloat16)    # weights in the data type of the matrix products"
    lines: list[FixLine | str] = [line(Change.WEIGHTS, text)]
    if trains:
        lines = [
            f"{text}; use an optimizer that keeps fp32 copies",
            "fully_shard(model, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))    # or FSDP",
        ]
    return Advice(
        title="Weights are cast in every forward pass",
        because=f"{times(cost.calls, 'cast')} {of} a step{sure} take {units.duration(cost.device_ns)} of GPU "
        "time." + if_idle(starved_ns, "The GPU waits {} for them."),
        saving=saving,
        certainty=casts.certainty,
        fix=fix_of(*lines),
        check="stepscope show step_ops: no aten::to inside aten::linear and aten::conv2d.",
        evidence={
            "casts_per_step": cost.calls,
            "casts_device_ns": cost.device_ns,
            "casts_starved_ns": cost.starved_ns,
            "shapes_known": casts.shapes_known,
        },
        claims=frozenset({Claim(Time.STARVED, Part.CASTS), Claim(Time.DEVICE, Part.CASTS)}),
        locations=places_of(ops, "cast"),
    )
