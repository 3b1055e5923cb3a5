"""A profile for Accelerate, which knows when gradients are summed up and when weights are updated.

from stepscope.capture.frameworks.accelerate import StepscopeKwargs

with accelerator.profile(StepscopeKwargs(steps=5)):
    train()
"""

from __future__ import annotations

from typing import Any, Unpack

from accelerate.state import GradientState
from accelerate.utils import ProfileKwargs

from stepscope.capture.in_code import STEP, Options, Profile

__all__ = ["StepscopeKwargs"]


class StepscopeKwargs(ProfileKwargs):  # type: ignore[misc]  # accelerate has no types
    """Has `accelerator.profile()` measure and record steps, in place of Accelerate's own profiler.

    A step is an update of the weights: with the optimizer, or where the block calls `step()` of what
    `accelerator.profile()` gives, after each batch. The options are those of `stepscope.profile`.
    """

    def __init__(self, **options: Unpack[Options]) -> None:
        super().__init__()
        self._options = options

    def build(self) -> Any:
        """What `accelerator.profile()` gives: a profile that knows Accelerate's steps."""
        return _Accelerated(self._options)


class _Accelerated(Profile):
    """A profile whose `step` is called for each batch, as that of torch's profiler is."""

    def step(self, name: str = STEP) -> None:
        """Ends a step if the weights were updated with this batch."""
        gradients = GradientState()
        if gradients.sync_gradients:
            batches = gradients.num_steps
            super().step(f"an update with Accelerate of {batches} batches" if batches > 1 else name)
