"""Trains a compiled model."""

from __future__ import annotations

import torch

model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
step = torch.compile(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(300):
    step(torch.randn(8, 16)).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
