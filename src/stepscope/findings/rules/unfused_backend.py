"""Compiled code is traced, but a backend that fuses nothing runs it."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.kernel_chains import FUSED, JOINS, KernelChain
from stepscope.analyses.kernels import Kernel
from stepscope.analyses.step_ops import StepOp
from stepscope.costs.families import family_of
from stepscope.findings import Advice, Category, rule
from stepscope.findings._chains import saved_by_fusing
from stepscope.findings._fewer_calls import fewer_calls
from stepscope.findings._op_costs import places_of
from stepscope.findings._phrases import often
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.fixes import fix_of
from stepscope.findings.mean_step import MeanStep
from stepscope.patterns import late_pattern
from stepscope.records import dataclass
from stepscope.tables import Table

__all__ = ["unfused_backend"]

# What runs compiled code: the region as Dynamo marks it, and autograd's function of a traced graph, which
# others than torch.compile make as well.
_REGION = late_pattern(r"Torch-Compiled Region.*")
_COMPILED = late_pattern(rf"{_REGION.pattern}|CompiledFunction(Backward)?")
_INDUCTOR = late_pattern(r"## Call CompiledFxGraph.*")
_FIX = fix_of(
    "model = torch.compile(model)    # the default backend, inductor, fuses; aot_eager and eager only trace",
    "TORCHDYNAMO_DISABLE=1 python train.py    # runs it without compiling, to debug",
)


@rule(category=Category.COMPILE)
def unfused_backend(
    mean_step: MeanStep,
    kernels: Table[Kernel],
    kernel_chains: Table[KernelChain],
    step_ops: Table[StepOp],
    *,
    least_ops: float = 8.0,
) -> Advice | None:
    """Compiled code calls torch's operators one by one: the backend of torch.compile fuses nothing.

    Gain: the default backend makes one kernel of the operators between two matrix products.

    - at most: of each chain of kernels, the time of the shortest is left; and of the host's time in compiled
      code, with the Python that calls the operators, as many calls as there are chains.
    - at least: 0.4 of that on the GPU, and half of the host's time in the operators that are fused.
    """
    if any(FUSED.match(row.name or "") for row in kernels):
        return None
    names = {row.name or "" for row in step_ops}
    if any(map(_INDUCTOR.fullmatch, names)) or not any(map(_REGION.fullmatch, names)):
        return None
    code = _Code.of(step_ops)
    if mean_step.per_step(code.fusible_calls) < least_ops:
        return None
    time_ns = sum(row.device_ns for row in kernel_chains)
    parts = code.fused_part / 2, code.fewer_part
    saving = fewer_calls(mean_step, parts, saved_by_fusing(mean_step, kernel_chains))
    inside = [op for op in step_ops if _COMPILED.fullmatch(op.name or "") and op.within is None]
    return Advice(
        title="torch.compile runs with a backend that fuses nothing",
        because=f"Compiled code calls {often(mean_step.per_step(code.fusible_calls), 'operator')} one by one "
        f"that could be fused, and no kernel is a fused one. Chains of such kernels take "
        f"{units.duration(mean_step.per_step(time_ns))} of GPU time.",
        saving=saving,
        certainty="likely",
        fix=_FIX,
        check="stepscope show kernels: there are kernels named triton_….",
        evidence={
            "fusible_ops_per_step": mean_step.per_step(code.fusible_calls),
            "chains_ns": mean_step.per_step(time_ns),
            "host_part": code.fused_part,
        },
        claims=frozenset({Claim(Time.STARVED), Claim(Time.DEVICE, Part.ELEMENTWISE)}),
        locations=places_of(inside, "run"),
    )


@dataclass(frozen=True, slots=True)
class _Code:
    """Operators that compiled code calls itself, in all steps."""

    fusible_calls: int
    fused_part: float
    """The part of the host's work that is inside operators that a compiler fuses."""
    fewer_part: float
    """The part that goes if one call for each chain is left, with the Python around the calls."""

    @classmethod
    def of(cls, step_ops: Table[StepOp]) -> _Code:
        """What the operators cost, of all the host does."""
        called = [op for op in step_ops if _COMPILED.fullmatch(op.within or "") and op.launches]
        called = [op for op in called if not _COMPILED.fullmatch(op.name or "")]
        fusible = [op for op in called if family_of(None, op.name) in (*JOINS, "copy")]
        others = sum(op.calls for op in called) - sum(op.calls for op in fusible)
        calls = sum(op.calls for op in fusible)
        whole = sum(op.host_ns for op in step_ops if op.within is None)
        if not whole or not calls:
            return cls(0, 0.0, 0.0)
        inside = sum(op.host_ns for op in step_ops if op.within is None and _runs_code(op))
        part = sum(op.host_ns for op in fusible) / whole
        fewer = max(0, calls - others) / (calls + others)
        return cls(calls, min(1.0, part), min(1.0, max(part / 2, inside / whole * fewer)))


def _runs_code(op: StepOp) -> bool:
    """Whether it is compiled code, or the backward pass of it."""
    name = (op.name or "").removeprefix("autograd::engine::evaluate_function: ")
    return bool(_COMPILED.fullmatch(name))
