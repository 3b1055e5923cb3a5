"""Trains a compiled model; its argument is the backend."""

from __future__ import annotations

import sys

import torch

model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
step = torch.compile(model, backend=sys.argv[1])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(300):
    step(torch.randn(8, 16)).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
