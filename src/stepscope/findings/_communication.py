"""Collectives of a step, for the rules about ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stepscope.analyses.kernel_families import KernelFamily
    from stepscope.analyses.step_ops import StepOp
    from stepscope.analyses.steps import Step
    from stepscope.findings.mean_step import MeanStep

__all__ = ["ACCUMULATES", "Exposed", "exposed_of", "kind_of", "kinds_of"]

ACCUMULATES = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
"""The autograd node whose hooks run the reducer of DistributedDataParallel."""

# Operators of torch.distributed are c10d::allreduce_, c10d::_allgather_base_, c10d::alltoall_base_ …; the
# functional ones, which compilers see, are _c10d_functional::all_reduce and so on.
_OPERATORS = ("c10d", "_c10d_functional")
_KINDS = {
    "allreduce": "all-reduce",
    "allgather": "all-gather",
    "reducescatter": "reduce-scatter",
    "alltoall": "all-to-all",
    "broadcast": "broadcast",
    "send": "send",
    "recv": "receive",
}


@dataclass(frozen=True, slots=True)
class Exposed:
    """Communication in the mean step while no kernel and no copy runs, in ns."""

    device_ns: float
    """In kernels, such as those of NCCL."""
    host_ns: float
    """In collectives on the host, such as those of gloo."""

    @property
    def ns(self) -> float:
        """Both together."""
        return self.device_ns + self.host_ns


def exposed_of(
    steps_by_any: Iterable[Step], kernel_families: Iterable[KernelFamily], mean_step: MeanStep
) -> Exposed:
    """The exposed communication: up to the time of its kernels it is the GPU's, the rest is the host's."""
    whole = mean_step.per_step(sum(step.communication_ns for step in steps_by_any))
    kernels = mean_step.per_step(
        sum(row.total_ns for row in kernel_families if row.family == "communication")
    )
    return Exposed(min(whole, kernels, mean_step.busy_ns), max(0.0, whole - kernels))


def kind_of(name: str | None) -> str | None:
    """The kind of collective of an operator, such as all-reduce; None for any other operator."""
    space, _, rest = (name or "").partition("::")
    flat = rest.replace("_", "")
    return next((_KINDS[kind] for kind in _KINDS if space in _OPERATORS and flat.startswith(kind)), None)


def kinds_of(step_ops: Iterable[StepOp]) -> list[str]:
    """The kinds of collectives that were called, by GPU time and then by calls, most first."""
    device: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    for row in step_ops:
        if kind := kind_of(row.name):
            device[kind] += row.device_ns
            calls[kind] += row.calls
    return sorted(calls, key=lambda kind: (-device[kind], -calls[kind], kind))
