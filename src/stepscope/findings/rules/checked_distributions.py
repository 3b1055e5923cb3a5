"""torch.distributions checks its arguments, and the host reads the result of each check."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice, Category, rule
from stepscope.findings._dropped import saved_by_dropping
from stepscope.findings._fewer_calls import host_part
from stepscope.findings._op_costs import cost_of, part_of, places_of
from stepscope.findings._phrases import often
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.fixes import fix_of
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["checked_distributions"]

# Of torch.distributions alone: all values of a tensor are compared, and the answer is used in an `if`.
_ALL = "aten::_is_all_true"
_READ = "aten::is_nonzero"
_COMPARES = ("aten::eq", "aten::ne", "aten::gt", "aten::ge", "aten::lt", "aten::le")
_FIX = fix_of(
    "torch.distributions.Distribution.set_default_validate_args(False)    # once, before the loop",
    "Normal(mean, scale, validate_args=False)    # or for one distribution",
)


@rule(category=Category.SYNC)
def checked_distributions(
    mean_step: MeanStep, step_ops: Table[StepOp], *, least_share: float = 0.02
) -> Advice | None:
    """Checks of torch.distributions compare arguments and samples, and the host waits for each answer.

    Gain: comparisons, tests and reads go, as many of each as there are checks.

    - at most: 1.5 times their part of the host's time in operators, because Python code walks over
      constraints for each; and all of their time on the GPU. The host runs ahead of the GPU again.
    - at least: 85 % of that part, and all of their time on the GPU.
    """
    tests = [op for op in step_ops if op.name == _ALL and op.within is None]
    checks = sum(op.calls for op in tests)
    if not checks:
        return None
    ops = [*tests, *_as_many(step_ops, (_READ,), checks), *_as_many(step_ops, _COMPARES, checks)]
    saving = saved_by_dropping(ops, step_ops, mean_step, waits_go=True)
    if mean_step.gain(saving).high_share < least_share:
        return None
    part, per_step = host_part(ops, step_ops), mean_step.per_step(checks)
    return Advice(
        title="torch.distributions checks its arguments with reads",
        because=f"{often(per_step, 'check')}: each compares a tensor, tests all its values, and the host "
        f"waits for the answer. That is {units.share(part)} of the host's time in operators.",
        saving=saving,
        certainty="likely",
        fix=_FIX,
        check="stepscope show step_ops: no aten::_is_all_true.",
        evidence={
            "checks_per_step": per_step,
            "host_part": part,
            "device_ns": cost_of(ops, mean_step).device_ns,
        },
        claims=frozenset({Claim(Time.STARVED, Part.SYNCS)}),
        locations=places_of(tests, "check"),
    )


def _as_many(step_ops: Table[StepOp], names: tuple[str, ...], checks: int) -> list[StepOp]:
    """Calls of these operators, but no more than there are checks."""
    ops = [op for op in step_ops if op.name in names and op.within is None]
    calls = sum(op.calls for op in ops)
    return [part_of(op, min(1.0, checks / calls)) for op in ops] if calls else []
