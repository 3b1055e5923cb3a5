"""A callback for the Trainer of Hugging Face transformers, and trainers that are made of it.

from stepscope.capture.frameworks.transformers import StepscopeCallback

trainer = Trainer(..., callbacks=[StepscopeCallback(steps=5)])
"""

from __future__ import annotations

from typing import Any, Unpack

from transformers import TrainerCallback

from stepscope.capture.in_code import Options, Profile

__all__ = ["StepscopeCallback"]


class StepscopeCallback(TrainerCallback):  # type: ignore[misc]  # transformers has no types here
    """Measures and records steps of the first training; the report says what is slow in them.

    A step is an update of the weights, with all batches whose gradients it sums up. The options are those of
    `stepscope.profile`.
    """

    def __init__(self, **options: Unpack[Options]) -> None:
        self.profile = Profile(options, by_hand=True)
        """Has the run folder, and the report when the training has ended."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **_more: Any) -> None:  # noqa: ARG002
        """Starts to listen; a training that failed before has left no word of its end."""
        self.profile.end(failed=True)
        if not self.profile.has_begun:
            self.profile.begin()

    def on_step_end(self, args: Any, state: Any, control: Any, **_more: Any) -> None:  # noqa: ARG002
        """Ends a step: the weights were updated."""
        batches = args.gradient_accumulation_steps
        of = f" of {batches} batches" if batches > 1 else ""
        self.profile.step(f"an update by the Trainer{of}")

    def on_train_end(self, args: Any, state: Any, control: Any, **_more: Any) -> None:  # noqa: ARG002
        """Keeps what there is."""
        self.profile.end()
