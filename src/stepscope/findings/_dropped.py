"""Calls that a program can leave out altogether, because it needs no result of theirs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from stepscope.findings import Saving
from stepscope.findings._fewer_calls import fewer_calls, host_part
from stepscope.findings._op_costs import cost_of

if TYPE_CHECKING:
    from stepscope.analyses.step_ops import StepOp
    from stepscope.findings.mean_step import MeanStep

__all__ = ["saved_by_dropping", "saved_by_dropping_stretches"]

_LEAST, _MOST = 0.85, 1.5
"""Of their part of the host's time: Python around them may take less than around others, or more, because
they are called through functions or modules of their own."""

_MOST_OF_STRETCHES = 1.3
"""Of theirs: it has the Python between their operators, but not that before the first and after the last."""


def saved_by_dropping(
    ops: Iterable[StepOp], step_ops: Iterable[StepOp], mean_step: MeanStep, *, waits_go: bool = False
) -> Saving:
    """What is gained if these operators are not called, nor the Python around them.

    - at most: 1.5 times their part of the host's time in operators, and all of their time on the GPU.
    - at least: 85 % of that part, and all of their time on the GPU.
    """
    dropped = list(ops)
    part = host_part(dropped, step_ops)
    device_ns = min(mean_step.busy_ns, cost_of(dropped, mean_step).device_ns)
    parts = _LEAST * part, min(1.0, _MOST * part)
    return fewer_calls(mean_step, parts, (device_ns, device_ns), waits_go=waits_go)


def saved_by_dropping_stretches(
    mean_step: MeanStep, host_ns: float, device_ns: float, *, waits_go: bool = False
) -> Saving:
    """What is gained if stretches of a step go that take so long on the host and so long on the GPU.

    - at most: 1.3 times their part of the recorded step, and all of their time on the GPU.
    - at least: 85 % of that part, and all of their time on the GPU.
    """
    part = min(1.0, mean_step.share(host_ns))
    parts = _LEAST * part, min(1.0, _MOST_OF_STRETCHES * part)
    return fewer_calls(mean_step, parts, (min(mean_step.busy_ns, device_ns),) * 2, waits_go=waits_go)
