"""Trains on as many ranks as it is started with; one of them may die."""

from __future__ import annotations

import os
import sys
import time

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

distributed.init_process_group("gloo")
rank = distributed.get_rank()
torch.set_num_threads(1)
model = DistributedDataParallel(torch.nn.Linear(32, 32))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(300):
    if rank == 1:
        time.sleep(0.002)
    if "die" in sys.argv and rank == 1 and number == 280:
        os._exit(9)
    model(torch.randn(8, 32)).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
distributed.destroy_process_group()
