"""A training with Lightning: the package and the run folder are its arguments, `fail` makes it fail."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import torch

package, out, *more = sys.argv[1:]
pl = import_module(package)

from stepscope.capture.frameworks.lightning import StepscopeCallback  # noqa: E402  # after the package


class Net(pl.LightningModule):  # type: ignore[misc, name-defined]
    """A model that is small enough for a test."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(16, 1)

    def training_step(self, batch: Any, index: int) -> Any:
        if more == ["fail"] and self.global_step == 11:
            raise ValueError("a fault of the program")
        return self.layer(batch[0]).pow(2).mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters())


rows = torch.utils.data.TensorDataset(torch.randn(1024, 16))
callback = StepscopeCallback(steps=3, skip=4, out=out)
trainer = pl.Trainer(
    accelerator="cpu",
    max_steps=30,
    accumulate_grad_batches=2,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    callbacks=[callback],
)
trainer.fit(Net(), torch.utils.data.DataLoader(rows, batch_size=8))
trainer.fit_loop.epoch_loop.max_steps = 40
trainer.fit(trainer.lightning_module, torch.utils.data.DataLoader(rows, batch_size=8))
print("trained", trainer.global_step, callback.profile.folder)
