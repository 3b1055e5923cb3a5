"""Uses the profiler itself, in the middle of its steps."""

from __future__ import annotations

import sys

import torch

model = torch.nn.Linear(32, 32)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def step() -> None:
    """One update."""
    model(torch.randn(8, 32)).mean().backward()
    optimizer.step()


first = int(sys.argv[1])
for _ in range(first):
    step()
with torch.profiler.profile() as profiler:
    for _ in range(10):
        step()
for _ in range(200):
    step()
print("own events", sum(one.count for one in profiler.key_averages() if one.key == "aten::addmm"))
