"""Two optimizers that take turns, one three times as often."""

from __future__ import annotations

import torch
from torch import nn

generator, critic = nn.Linear(8, 8), nn.Linear(8, 1)
for_generator = torch.optim.Adam(generator.parameters())
for_critic = torch.optim.Adam(critic.parameters())
for _ in range(200):
    for _ in range(3):
        for_critic.zero_grad()
        critic(generator(torch.randn(4, 8)).detach()).mean().backward()
        for_critic.step()
    for_generator.zero_grad()
    (-critic(generator(torch.randn(4, 8))).mean()).backward()
    for_generator.step()
