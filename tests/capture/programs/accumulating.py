"""Four backward passes an update, from a loader with a worker."""

from __future__ import annotations

import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    context = sys.argv[1]
    loader = DataLoader(
        TensorDataset(torch.randn(2400, 16)), batch_size=4, num_workers=1, multiprocessing_context=context
    )
    model = torch.nn.Linear(16, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number, (batch,) in enumerate(loader):
        (model(batch).mean() / 4).backward()
        if number % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
