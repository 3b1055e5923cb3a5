"""Kernels with their launch shapes, and their time in a step.

Shared by the rules that look at single kernels. The table of kernels covers the whole trace, so its times are
scaled to the steps.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable

from stepscope.analyses.kernels import Kernel
from stepscope.analyses.steps import Step
from stepscope.findings.mean_step import MeanStep
from stepscope.records import dataclass

__all__ = ["Ran", "product_of", "ran_in_steps"]


@dataclass(frozen=True, slots=True)
class Ran:
    """A kernel with one launch shape, in a mean step."""

    kernel: Kernel
    ns: float
    blocks: int | None
    """In its grid; None if the profile does not say."""

    @property
    def name(self) -> str:
        """Its name; kernels without one are rare."""
        return self.kernel.name or ""


def ran_in_steps(kernels: Iterable[Kernel], steps_by_any: Iterable[Step], mean_step: MeanStep) -> list[Ran]:
    """All kernels that compute, in the table's order, with their time in a mean step."""
    computing = [kernel for kernel in kernels if kernel.family != "communication"]
    whole = sum(kernel.exclusive_ns for kernel in computing)
    inside = sum(step.kernel_ns for step in steps_by_any)
    scale = min(1.0, inside / whole) if whole else 0.0
    return [
        Ran(kernel, mean_step.per_step(scale * kernel.exclusive_ns), product_of(kernel.grid))
        for kernel in computing
    ]


def product_of(sizes: str | None) -> int | None:
    """The size of a grid or a block, written `[8,1,6]`; None if the profile does not say."""
    try:
        product = math.prod(int(size) for size in json.loads(sizes or ""))
    except (TypeError, ValueError):
        return None
    return product if product > 0 else None
