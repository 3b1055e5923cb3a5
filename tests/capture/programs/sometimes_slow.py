"""Trains; every twentieth step takes much longer."""

from __future__ import annotations

import time

import torch

torch.set_num_threads(1)
model = torch.nn.Linear(32, 32)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(100):
    model(torch.randn(8, 32)).mean().backward()
    time.sleep(0.9 if number % 20 == 19 else 0.12)  # long beside what a busy machine may add
    optimizer.step()
