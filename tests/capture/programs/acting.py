"""Acts in an environment, then learns in 16 updates, and so on."""

from __future__ import annotations

import torch
from torch import nn

policy = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 4))
optimizer = torch.optim.Adam(policy.parameters())
for _ in range(150):
    seen = []
    for _ in range(32):
        with torch.no_grad():
            policy(torch.randn(1, 8))
        seen.append(torch.randn(8))
    for _ in range(4):
        for part in torch.stack(seen).split(8):
            optimizer.zero_grad()
            policy(part).pow(2).mean().backward()
            optimizer.step()
