"""Builds long tuples while modules are looked for, and only then takes steps."""

from __future__ import annotations

import copy
import time

import torch

end = time.monotonic() + 2.5
built = 0
while time.monotonic() < end:
    built += len(tuple(number for number in range(200_000)))
model = copy.deepcopy(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()))
with torch.inference_mode():
    for _ in range(2000):
        model(torch.ones(4, 8))
        time.sleep(0.002)
print("built", built > 0)
