"""The program creates and fills the same tensors again in every step."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.starving_phases import StarvingPhase
from stepscope.analyses.step_classes import StepClass
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice, Bounds, Category, Saving, rule
from stepscope.findings._op_costs import OpCost, cost_of, places_of, python_beside, waits_of
from stepscope.findings._phrases import often
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.fixes import Change, FixLine, fix_of, line
from stepscope.findings.mean_step import MeanStep
from stepscope.patterns import late_pattern
from stepscope.records import dataclass
from stepscope.tables import Table

__all__ = ["allocation_churn"]

# Operators that create or fill tensors, as a program calls them.
_MAKING = late_pattern(
    r"aten::((new_)?(empty|zeros|ones|full)(_like|_strided)?|arange|linspace|eye|scalar_tensor|resize_|fill_|zero_|"
    r"full)"
)
# zero_grad(set_to_none=False), for single tensors or for lists.
_CLEARING = late_pattern(r"aten::(zero_|fill_|_foreach_zero_)")
LEAST_GAIN = 0.01
LEAST_CALLS = 16
"""A few tensors a step cost next to nothing."""


@dataclass(frozen=True, slots=True)
class _Churn:
    """The operators that create and fill tensors, in the program and in its zero_grad."""

    making: tuple[StepOp, ...]
    clearing: tuple[StepOp, ...]
    adding: tuple[StepOp, ...]
    """Additions of gradients to these zeros; without the zeros, a gradient is taken as it is."""

    @property
    def ops(self) -> tuple[StepOp, ...]:
        return self.making + self.clearing + self.adding


@rule(category=Category.HOST)
def allocation_churn(
    mean_step: MeanStep,
    starving_phases: Table[StarvingPhase],
    step_classes: Table[StepClass],
    step_ops: Table[StepOp],
    *,
    least_share: float = 0.02,
) -> Advice | None:
    """Tensors are created and filled again in every step, although they could be kept.

    Gain:

    - at most: the time the GPU waits for these calls and for the Python around them, and their GPU time.
    - at least: half of that without the Python, because some tensors must be cleared before they are reused.
    - zero_grad(set_to_none=False): all of its fills and of the additions to the zeros, at most and at least.
    """
    churn = _churn(step_ops, step_classes)
    making, clearing = cost_of(churn.making, mean_step), cost_of(churn.clearing + churn.adding, mean_step)
    made, cleared = (
        waits_of(one.starved_ns, one.launches, mean_step, starving_phases) for one in (making, clearing)
    )
    whole_ns = made[0] + cleared[0] + making.device_ns + clearing.device_ns
    if mean_step.share(whole_ns) < least_share or making.calls + clearing.calls < LEAST_CALLS:
        return None
    beside_ns = python_beside(making, mean_step, starving_phases, step_ops)
    starved: Bounds = (made[0] / 2 + cleared[0], min(mean_step.starved_ns, made[1] + beside_ns + cleared[1]))
    device: Bounds = (making.device_ns / 2 + clearing.device_ns, making.device_ns + clearing.device_ns)
    saving = Saving(starved_ns=(min(starved), starved[1]), device_ns=device)
    if mean_step.gain(saving).high_share < LEAST_GAIN:
        return None
    return _advice(churn, making, clearing, saving, mean_step)


def _churn(step_ops: Table[StepOp], step_classes: Table[StepClass]) -> _Churn:
    outer = [op for op in step_ops if op.within is None]
    clearing = [op for op in outer if op.phase == "optimizer" and _CLEARING.fullmatch(op.name or "")]
    # With several backward passes most additions belong to them.
    once = all((row.backward_passes or 0) <= 1 for row in step_classes)
    filled = any(op.launches for op in clearing)
    adding = [
        op for op in step_ops if op.name == "aten::add_" and op.within == "torch::autograd::AccumulateGrad"
    ]
    return _Churn(
        making=tuple(
            op for op in outer if op.phase in ("forward", "other") and _MAKING.fullmatch(op.name or "")
        ),
        clearing=tuple(clearing),
        adding=tuple(adding) if filled and once else (),
    )


def _advice(churn: _Churn, making: OpCost, clearing: OpCost, saving: Saving, mean_step: MeanStep) -> Advice:
    reasons: list[str] = []
    lines: list[FixLine | str] = []
    if making.calls >= LEAST_CALLS:
        reasons.append(f"{units.tally(making.calls)} calls a step create or fill tensors.")
        lines.append(
            "buffer = torch.zeros(shape, device=device)    # once, before the loop; in it: buffer.zero_()"
        )
        lines.append("torch.mul(x, y, out=buffer)    # or write the result into an existing tensor")
    if clearing.calls:
        reasons.append(f"Zeroing gradients and adding to the zeros takes {often(clearing.calls, 'call')}.")
        lines.append(
            line(
                Change.ZERO_GRAD,
                "optimizer.zero_grad(set_to_none=True)    # or plain zero_grad(): this is the default",
            )
        )
    starved_ns = mean_step.with_latency(making.starved_ns + clearing.starved_ns)
    device_ns = making.device_ns + clearing.device_ns
    if starved_ns:
        reasons.append(f"The GPU waits {units.duration(starved_ns)} of a step for these calls.")
    if device_ns:
        reasons.append(f"Their kernels take {units.duration(device_ns)}.")
    return Advice(
        title="Tensors are created and filled again in every step",
        because=" ".join(reasons),
        saving=saving,
        certainty="likely",
        fix=fix_of(*lines),
        check="stepscope show step_ops: fewer calls of zeros, full, empty, arange and fill_.",
        evidence={
            "making_calls_per_step": making.calls,
            "making_starved_ns": making.starved_ns,
            "making_device_ns": making.device_ns,
            "clearing_calls_per_step": clearing.calls,
            "clearing_starved_ns": clearing.starved_ns,
            "clearing_device_ns": clearing.device_ns,
        },
        claims=frozenset(
            {
                Claim(Time.STARVED, Part.ALLOCATION),
                Claim(Time.DEVICE, Part.FILLS),
                *({Claim(Time.STARVED, Part.OPTIMIZER)} if clearing.calls else ()),
            }
        ),
        locations=places_of(churn.ops),
    )
