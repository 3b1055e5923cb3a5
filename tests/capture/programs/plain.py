"""A plain training loop; what it is told on the command line decides how it ends."""

from __future__ import annotations

import argparse
import os
import sys
import time

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--out", default="")
parser.add_argument("--light", action="store_true")
parser.add_argument("--end", default="")
parser.add_argument("--sleep", type=float, default=0.0)
given = parser.parse_args()

torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
optimizer = torch.optim.AdamW(model.parameters())
for _step in range(given.steps):
    loss = model(torch.randn(16, 32)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(given.sleep)
if given.end == "raise":
    raise ValueError("as told")
if given.end == "os._exit":
    sys.stdout.flush()
    os._exit(4)
if given.end == "wait":
    print("waiting", flush=True)
    while True:
        time.sleep(0.01)
if given.end.isdigit():
    sys.exit(int(given.end))
print(f"steps {given.steps}, out {given.out!r}, light {given.light}, read {sys.stdin.read()!r}")
