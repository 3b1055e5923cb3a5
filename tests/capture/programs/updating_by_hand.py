"""Updates its weights itself."""

from __future__ import annotations

import torch

model = torch.nn.Linear(16, 16)
for _ in range(800):
    model(torch.randn(8, 16)).mean().backward()
    with torch.no_grad():
        for weights in model.parameters():
            weights -= 0.1 * weights.grad
            weights.grad = None
