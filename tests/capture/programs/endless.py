"""Trains until somebody ends it."""

from __future__ import annotations

import signal
import sys

import torch

if "own-handler" in sys.argv:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
model = torch.nn.Linear(32, 32)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
steps = 0
while True:
    model(torch.randn(16, 32)).mean().backward()
    optimizer.step()
    steps += 1
    if steps == 20:
        print("training", flush=True)
