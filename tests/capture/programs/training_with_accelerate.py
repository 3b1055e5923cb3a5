"""A training with Accelerate: the run folder is its argument, `step` has each batch tell its end."""

from __future__ import annotations

import sys

import torch
from accelerate import Accelerator

from stepscope.capture.frameworks.accelerate import StepscopeKwargs

out, *more = sys.argv[1:]
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
plain = torch.nn.Linear(16, 1)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(512, 16)), batch_size=8)
model, optimizer, batches = accelerator.prepare(plain, torch.optim.AdamW(plain.parameters()), loader)
updates = 0
with accelerator.profile(StepscopeKwargs(steps=3, skip=4, out=out)) as profile:
    for (batch,) in batches:
        with accelerator.accumulate(model):
            loss = model(batch).pow(2).mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        updates += accelerator.sync_gradients
        if more == ["step"]:
            profile.step()
print("trained", updates, profile.folder)
