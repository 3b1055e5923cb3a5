"""How much shorter a step gets if the host calls fewer operators and the GPU works less for them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from stepscope.findings import Bounds, Saving
from stepscope.findings._waits import of_shares
from stepscope.findings.mean_step import Length
from stepscope.patterns import late_pattern

if TYPE_CHECKING:
    from stepscope.analyses.step_ops import StepOp
    from stepscope.findings.mean_step import MeanStep

__all__ = ["called_as", "fewer_calls", "host_part", "run_ahead", "with_their_calls"]

# How torch names the autograd node of an operator: MulBackward0 for aten::mul.
_GRADIENT = late_pattern(r"autograd::engine::evaluate_function: (\w+?)Backward\d+")
_WORD = late_pattern(r"(?<=[a-z0-9])(?=[A-Z])")


def called_as(op: StepOp) -> str | None:
    """The operator that the program called: this one, or the one whose gradient it is."""
    found = _GRADIENT.fullmatch(op.name or "")
    return f"aten::{_WORD.sub('_', found[1]).lower()}" if found else op.name


def host_part(ops: Iterable[StepOp], step_ops: Iterable[StepOp]) -> float:
    """The part of the host's work in these operators; Python around them is taken to be the same part."""
    whole = sum(op.host_ns for op in step_ops if op.within is None)
    return min(1.0, sum(op.host_ns for op in ops) / whole) if whole else 0.0


def fewer_calls(
    mean_step: MeanStep, host_parts: Bounds, device_ns: Bounds, *, waits_go: bool = False
) -> Saving:
    """The gain if this part of the host's work and this much of the GPU's goes.

    The slower of the two sets the pace of a step: the host alone, from a simulation with a GPU that takes no
    time, or the GPU alone.

    - at most: the step takes as long as the slower of what is left of both, and gets shorter by no more than
      what goes of both. If the calls wait for the GPU (`waits_go`), it may: after them the host runs ahead
      of the GPU again.
    - at least: the step stays as far above that as it is above the slower one now, because they wait for each
      other.
    """
    lengths = [length for length in Length if mean_step.unprofiled_ns[length]]
    (least_host, most_host), (least_device, most_device) = host_parts, device_ns
    lows = (_gain(mean_step, length, least_host, least_device) for length in lengths)
    highs = (_gain(mean_step, length, most_host, most_device, waits_go=waits_go) for length in lengths)
    low = min((gain[0] for gain in lows), default=0.0)
    high = max((gain[1] for gain in highs), default=0.0)
    return of_shares(mean_step, low, max(low, high))


def run_ahead(mean_step: MeanStep, saving: Saving, host_ns: float, device_ns: float = 0.0) -> Saving:
    """A saving of host work that the GPU waits for, where the host may run ahead of the GPU after it.

    Such work lets the GPU finish all that was launched, so that it waits for each of the next launches, too.
    Without it the host launches the next step while the GPU works on this one: at most, the step takes as
    long as the slower of what is left of both. So much host time goes at most, and so much GPU time with it.
    """
    return mean_step.up_to(saving, max(_ahead(mean_step, length, host_ns, device_ns) for length in Length))


def with_their_calls(mean_step: MeanStep, saving: Saving, host_part: float) -> Saving:
    """A saving of GPU work whose kernels go altogether, and with them at most this part of the host's work.

    A GPU with less work waits for the host sooner, but the host has less to do, too.
    """
    lengths = [length for length in Length if mean_step.unprofiled_ns[length]]
    highs = (_gain(mean_step, length, host_part, saving.device_ns[1])[1] for length in lengths)
    return mean_step.up_to(saving, max(highs, default=0.0))


def _ahead(mean_step: MeanStep, length: Length, host_ns: float, device_ns: float) -> float:
    """The part of an unprofiled step that goes if the slower of what is left of host and GPU is all of it."""
    host, device = _alone(mean_step, length)
    step = max(mean_step.unprofiled_ns[length], host, device, 1.0)
    return max(0.0, 1 - max(host - host_ns, device - mean_step.of_one_device(device_ns)) / step)


def _alone(mean_step: MeanStep, length: Length) -> Bounds:
    """How long the host takes for an unprofiled step with a GPU that takes no time, and how long the GPU."""
    simulated = mean_step.faster_device
    alone = simulated[-1].left(length) if simulated else mean_step.host_path_share
    return mean_step.unprofiled_ns[length] * alone, mean_step.busy_ns + mean_step.waiting_ns


def _gain(
    mean_step: MeanStep, length: Length, host_part: float, device_ns: float, *, waits_go: bool = False
) -> Bounds:
    """The part of an unprofiled step that these savings take off it, if it has this length."""
    step = mean_step.unprofiled_ns[length]
    host, device = _alone(mean_step, length)
    saved = host * host_part, mean_step.of_one_device(device_ns)
    left = max(host - saved[0], device - saved[1])
    slower = max(host, device, 1.0)
    most = 1 - left / max(step, slower)
    if not waits_go:
        most = min(most, sum(saved) / step)
    return max(0.0, min(1 - left / slower, most)), max(0.0, most)
