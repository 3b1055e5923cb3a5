"""A callback for Lightning, of the package `lightning` or `pytorch_lightning`.

from stepscope.capture.frameworks.lightning import StepscopeCallback

trainer = Trainer(callbacks=[StepscopeCallback(steps=5)])
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any, Unpack

from stepscope.capture.in_code import Options, Profile

__all__ = ["StepscopeCallback"]

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def _callbacks() -> tuple[type, ...]:
    """What a callback is for the program: each package has a class of its own, and wants that one."""
    used = [name for name in _PACKAGES if name in sys.modules]
    if not used:
        try:
            import_module(_PACKAGES[0])
            used = [_PACKAGES[0]]
        except ImportError:
            used = [_PACKAGES[1]]
    return tuple(import_module(name).Callback for name in used)


class StepscopeCallback(*_callbacks()):  # type: ignore[misc]  # known when it runs
    """Measures and records steps of the first training; the report says what is slow in them.

    A step is an update of the weights, with all batches whose gradients it sums up. The options are those of
    `stepscope.profile`.
    """

    def __init__(self, **options: Unpack[Options]) -> None:
        super().__init__()
        self.profile = Profile(options, by_hand=True)
        """Has the run folder, and the report when the training has ended."""
        self._updates = 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002  # names of Lightning
        """Starts to listen."""
        self._updates = trainer.global_step
        if not self.profile.has_begun:
            self.profile.begin()

    def on_train_batch_end(self, trainer: Any, *_args: Any, **_kwargs: Any) -> None:
        """Ends a step if the weights were updated."""
        if trainer.global_step != self._updates:
            self._updates = trainer.global_step
            batches = trainer.accumulate_grad_batches
            of = f" of {batches} batches" if batches > 1 else ""
            self.profile.step(f"an update by Lightning's Trainer{of}")

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Keeps what there is."""
        self.profile.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ARG002
        """Keeps what there is of a training that failed or was stopped."""
        self.profile.end(failed=True)
