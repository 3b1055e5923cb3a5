"""The loss reads and writes the logits many times."""

from __future__ import annotations

import re

from stepscope import units
from stepscope.analyses.copies import Copy
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice, Category, Saving, rule
from stepscope.findings._fewer_calls import called_as
from stepscope.findings._op_costs import OpCost, cost_of, places_of
from stepscope.findings._phrases import times
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.fixes import Change, fix_of, line
from stepscope.findings.mean_step import MeanStep
from stepscope.patterns import late_pattern
from stepscope.records import dataclass
from stepscope.tables import Table

__all__ = ["unfused_loss"]

_NODE = "autograd::engine::evaluate_function: "
# Cross entropy and divergence as a program calls them, as one operator or two, and their autograd nodes.
_OWN = late_pattern(
    r"aten::(cross_entropy_loss|log_softmax|nll_loss|nll_loss_nd|nll_loss2d|kl_div)|"
    + _NODE
    + r"(LogSoftmaxBackward0|NllLossBackward0|NllLoss2DBackward0)"
)
# The kernels that must read all logits.
_SOFTMAX = late_pattern(r"aten::_log_softmax(_backward_data)?")
_CAST = late_pattern(rf"aten::(to|_to_copy|float)|{_NODE}ToCopyBackward0")
# What hand-written losses do to logits: temperatures, masks, smoothing, sums. Layers rarely do that to
# tensors of this size.
_WORDS = (
    "add sub rsub mul div neg exp exp2 log log1p logsumexp pow square sqrt sum mean amax max softmax where "
    "masked_fill clamp clamp_min gather scatter lerp xlogy isinf ones_like zeros_like"
)
_ARITHMETIC = frozenset(f"aten::{word}" for word in _WORDS.split())
_FEW = 4
"""Calls of one operator for each log_softmax: layers call theirs more often."""
# What makes tensors that may be as large as the logits: attention scores, feature maps.
_AS_LARGE = late_pattern(r"aten::(bmm|baddbmm|convolution|_softmax)")
# What is not part of a loss, although it may be called next to it.
_HEAVY = late_pattern(r"linear|matmul|mm\b|mm_?Backward|conv|attention|embedding|norm|Norm", re.IGNORECASE)
_ONE_HOT = "aten::one_hot"
_FILLS = {"forward": (3.5, 7.5), "backward": (1.0, 1.5)}
"""What dense targets take beyond classes, in fills of the one-hot rows, at least and at most.

The fill writes eight bytes for each logit, an int64. A cast to fp32 moves twelve, the product with the
logarithms twelve, its gradient eight, smoothing sixteen and the sum four; of these a loss by classes needs
the sum and a fill with four at most. What reads and writes is up to a fifth slower than what only writes.
"""
LEAST_GAIN = 0.01
LEAST_KERNEL_NS = 20_000
"""A faster log_softmax has few logits."""


@dataclass(frozen=True, slots=True)
class _Loss:
    """The operators of the loss, and others that move as much memory."""

    own: tuple[StepOp, ...]
    sized: tuple[StepOp, ...]
    """Casts and arithmetic that are recognised only by their size."""
    beside: tuple[StepOp, ...]
    """Others called by the same function of the user."""
    forward: OpCost
    """The kernel of log_softmax."""
    backward: OpCost
    """The kernel of its backward."""
    is_cast: bool
    fill_ns: float
    """GPU time for filling one-hot rows as large as the logits, in a step."""

    @property
    def ops(self) -> tuple[StepOp, ...]:
        return self.own + self.sized + self.beside

    def dense_ns(self, mean_step: MeanStep) -> tuple[float, float]:
        """What dense targets take beyond the operators that are known, at least and at most."""
        phases = ("forward", "backward") if self.backward.calls else ("forward",)
        known = cost_of(self.sized + self.beside, mean_step).device_ns
        least, most = (sum(_FILLS[phase][end] for phase in phases) * self.fill_ns for end in (0, 1))
        return max(0.0, least - known), max(0.0, most - known)


_CLASSES = "cross_entropy(logits, targets, label_smoothing=0.1)    # classes, not one_hot() over all of them"
_FIX = """\
@torch.compile    # fuses the loss: one pass forward, one backward
def loss_of(logits, targets):    # logits as the model returns them, without .float()
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
# or never make all logits at once: liger_kernel.transformers.LigerFusedLinearCrossEntropyLoss
# or only those with a target, where most are -100, as of masked words: head(hidden[places])"""


@rule(category=Category.DEVICE)
def unfused_loss(
    mean_step: MeanStep, step_ops: Table[StepOp], copies_by_op: Table[Copy], *, least_share: float = 0.05
) -> Advice | None:
    """Cross entropy reads and writes the logits many times, in one operator after the other.

    Gain: a fused loss reads the logits once in forward, and reads and writes them once in backward.

    - at most: all but the backward of log_softmax, which takes as long as a whole fused loss; half of that
      goes as well if the logits were cast to fp32 for the loss, which is not needed.
    - at least: log_softmax and its backward stay. The fills and the operators beside them go, and 3/4 of
      casts and arithmetic that are recognised only by their size.

    One-hot rows as large as the logits are dense targets. Their fill shows how long a pass takes, also of
    those that cannot be told from others of the model: cast, product and its gradient are 4.5 of them at
    least, and 9 at most with smoothing.
    """
    moved = sum(row.total_ns for row in copies_by_op if row.direction in ("HtoD", "DtoH"))
    loss = _loss(step_ops, mean_step, moved)
    whole = cost_of(loss.ops, mean_step)
    dense = loss.dense_ns(mean_step)
    large = whole.device_ns + dense[0] >= least_share * mean_step.busy_ns
    if loss.forward.mean_device_ns < LEAST_KERNEL_NS or not large:
        return None
    stays = loss.backward.device_ns * (0.5 if loss.is_cast else 1.0)
    most = min(mean_step.busy_ns, max(0.0, whole.device_ns + dense[1] - stays))
    sure = whole.device_ns - cost_of(loss.sized, mean_step).device_ns / 4
    least = min(most, max(0.0, sure - loss.forward.device_ns - loss.backward.device_ns) + dense[0])
    saving = Saving(device_ns=(least, most))
    if mean_step.gain(saving).high_share < LEAST_GAIN:
        return None
    return _advice(loss, whole, saving, mean_step)


def _loss(step_ops: Table[StepOp], mean_step: MeanStep, moved_ns: float) -> _Loss:
    softmax = [op for op in step_ops if _SOFTMAX.fullmatch(op.name or "")]
    forward = cost_of((op for op in softmax if op.phase != "backward"), mean_step)
    backward = cost_of((op for op in softmax if op.phase == "backward"), mean_step)
    outer = [op for op in step_ops if op.within is None and op.phase != "optimizer" and op.launches]
    own = [op for op in outer if _OWN.fullmatch(op.name or "")]
    # Without stacks only its size tells that a cast is one of the logits.
    casts = [op for op in outer if _CAST.fullmatch(op.name or "") and _large(op, forward, 0.25)]
    # What moves logits to the host is called alike, and no fused loss makes it shorter.
    if 2 * moved_ns > sum(op.device_ns for op in casts):
        casts = []
    frames = {op.user_frame for op in own} - {None}
    if _calls_model(outer, frames, forward):
        frames = set()
    largest = not any(_AS_LARGE.fullmatch(op.name or "") and _large(op, forward, 0.25) for op in step_ops)
    arithmetic = [op for op in outer if largest and _is_arithmetic(op, forward, frames) and op not in own]
    sized = [*casts, *arithmetic]
    known = {id(op) for op in (*own, *sized)}
    beside = [
        op
        for op in outer
        if op.user_frame in frames and id(op) not in known and not _HEAVY.search(op.name or "")
    ]
    inside = [op for op in step_ops if op.name == "aten::to" and _OWN.fullmatch(op.within or "")]
    return _Loss(
        own=tuple(own),
        sized=tuple(sized),
        beside=tuple(op for op in beside if _large(op, forward, 0.5)),
        forward=forward,
        backward=backward,
        is_cast=bool(casts) or any(op.device_ns for op in inside),
        fill_ns=_filled_ns(step_ops, forward, mean_step),
    )


def _calls_model(outer: list[StepOp], frames: set[str | None], forward: OpCost) -> bool:
    """Whether these functions call the whole model, too, as where a library computes the loss."""
    heavy = (op for op in outer if op.user_frame in frames and _HEAVY.search(op.name or ""))
    return sum(op.per_step for op in heavy if op.phase != "backward") > _FEW * forward.calls


def _filled_ns(step_ops: Table[StepOp], forward: OpCost, mean_step: MeanStep) -> float:
    """The time for zeros of one-hot rows, if there are as many as calls of log_softmax, and as large."""
    fills = [op for op in step_ops if op.name == "aten::zeros" and op.within == _ONE_HOT]
    filled = cost_of(fills, mean_step)
    # log_softmax moves four to twelve bytes for each logit, where the fill moves eight.
    as_large = 0.25 * forward.device_ns <= filled.device_ns <= 2.5 * forward.device_ns
    return filled.device_ns if filled.calls <= forward.calls and as_large else 0.0


def _is_arithmetic(op: StepOp, forward: OpCost, frames: set[str | None]) -> bool:
    """Whether it goes through the logits like a loss; if functions are known, only theirs count."""
    if frames and op.user_frame is not None:
        return False
    few = op.per_step <= _FEW * forward.calls
    return called_as(op) in _ARITHMETIC and few and _large(op, forward, 0.25)


def _large(op: StepOp, forward: OpCost, part: float) -> bool:
    """Whether its launches take at least this part of the time of log_softmax."""
    return bool(forward.device_ns) and op.device_ns >= part * op.launches * forward.mean_device_ns


def _advice(loss: _Loss, whole: OpCost, saving: Saving, mean_step: MeanStep) -> Advice:
    cast = " The logits are cast to fp32 for it." if loss.is_cast else ""
    if loss.fill_ns:
        cast += f" Targets are one-hot rows as large as the logits: {units.duration(loss.fill_ns)} for zeros."
    share = units.share(whole.device_ns / mean_step.busy_ns if mean_step.busy_ns else 0.0)
    return Advice(
        title="The loss reads and writes the logits many times",
        because=f"The loss and its backward take {units.duration(whole.device_ns)} of GPU time a step, "
        f"{share} of the GPU's work, in {times(whole.launches, 'kernel')} that go through the logits.{cast}",
        saving=saving,
        certainty="likely",
        fix=fix_of(*([_CLASSES] if loss.fill_ns else []), line(Change.LOSS, _FIX)),
        check="stepscope show step_ops: no log_softmax and nll_loss; kernel_families: less reduction.",
        evidence={
            "loss_device_ns": whole.device_ns,
            "log_softmax_ns": loss.forward.device_ns,
            "log_softmax_backward_ns": loss.backward.device_ns,
            "kernels_per_step": whole.launches,
            "cast_to_fp32": loss.is_cast,
            "one_hot_fill_ns": loss.fill_ns,
        },
        claims=frozenset({Claim(Time.DEVICE, Part.LOSS)}),
        locations=places_of(loss.ops),
    )
