"""Trains a small model with DistributedDataParallel over gloo; one rank has a fault that is asked for.

`training.py STEPS RANK FAULT MS`: the rank spends so many milliseconds more in each step, or saves a
checkpoint for so long in every fourth. Faults sleep rather than compute where they can, for the ranks of a
test share few cores.
"""

from __future__ import annotations

import gc
import os
import sys
import tempfile
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

STEPS, LATE, FAULT, MS = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], float(sys.argv[4])
WIDTH, ROWS = 256, 64


class Rows(Dataset):  # type: ignore[misc]  # torch is not installed for the type checker
    """Random rows, which are slow to read on one rank."""

    def __init__(self, late_s: float) -> None:
        self.late_s = late_s

    def __len__(self) -> int:
        return ROWS * (STEPS + 1)

    def __getitem__(self, place: int) -> torch.Tensor:
        if self.late_s and place % ROWS == 0:
            read_slowly(self.late_s)
        return torch.full((WIDTH,), float(place % 7))


def read_slowly(seconds: float) -> None:
    """As from a disk that is far away."""
    time.sleep(seconds)


def more_work(rows: torch.Tensor, seconds: float) -> None:
    """Other ranks do not have this."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        torch.mm(rows, rows.t())


def prepare_metrics(seconds: float) -> int:
    """Python that computes no tensor."""
    total, until = 0, time.perf_counter() + seconds
    while time.perf_counter() < until:
        total += sum(range(100))
        time.sleep(0.001)
    return total


def collect_garbage() -> None:
    """A collection of everything, as some libraries ask for."""
    gc.collect()


def save_checkpoint(model: torch.nn.Module, seconds: float) -> None:
    """Written to a disk that takes its time."""
    with tempfile.NamedTemporaryFile() as file:
        torch.save(model.state_dict(), file)
        os.fsync(file.fileno())
    time.sleep(seconds)


def garbage(milliseconds: float) -> list[list[int]]:
    """So many objects that a collection takes that long."""
    kept: list[list[int]] = []
    spent = 0.0
    while spent < milliseconds / 1000 and len(kept) < 20_000_000:
        kept += [[number] for number in range(100_000)]
        start = time.perf_counter()
        gc.collect()
        spent = time.perf_counter() - start
    return kept


def main() -> None:
    """Every rank the same steps."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    late = dist.get_rank() == LATE
    fault, seconds = (FAULT if late else "none"), MS / 1000
    torch.manual_seed(0)
    layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(3)]
    model = DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    kept = garbage(MS) if fault == "collector" else []
    gc.disable()
    loader = DataLoader(Rows(seconds if fault == "input" else 0.0), batch_size=ROWS)
    dist.barrier()
    for number, rows in zip(range(STEPS), loader, strict=False):
        if fault == "work":
            more_work(rows, seconds)
        if fault == "host":
            prepare_metrics(seconds)
        if fault == "collector":
            collect_garbage()
        loss = model(rows).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if fault == "checkpoint" and number % 4 == 0:
            save_checkpoint(model, seconds)
    assert kept is not None
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
