"""A recommender that learns which of the offers shown are clicked."""

from __future__ import annotations

import torch
from benchmarks.faults.library_models import noise, tokens
from benchmarks.faults.models import DEVICE, adamw, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional

WIDTH = 64


class Ranker(nn.Module):
    """Tables of users, items and shops, and a network over what they say."""

    def __init__(self, counts: tuple[int, ...], *, sparse: bool) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(count, WIDTH, sparse=sparse) for count in counts)
        self.dense = nn.Sequential(nn.Linear(13, 256), nn.ReLU(), nn.Linear(256, WIDTH))
        joined = WIDTH * (len(counts) + 1)
        self.top = nn.Sequential(
            nn.Linear(joined, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 1)
        )

    def forward(self, ids: Tensor, numbers: Tensor) -> Tensor:
        """How likely a click is, for every row."""
        looked_up = [table(ids[:, place]) for place, table in enumerate(self.tables)]
        return self.top(torch.cat([self.dense(numbers), *looked_up], -1)).squeeze(-1)


@pair(
    "dense-gradient-of-a-large-table",
    "Tables of 18 million rows have dense gradients: Adam reads and writes every row for the 8192 looked up.",
    "nn.Embedding(sparse=True) and SparseAdam for the tables.",
)
def eleventh_click_ranker(faulty: bool) -> Step:
    """A ranker of offers is trained on one batch of impressions after another."""
    counts = (sized(8_000_000, 100), sized(6_000_000, 80), sized(4_000_000, 50))
    rows = sized(8192, 8)
    with torch.device(DEVICE):
        model = Ranker(counts, sparse=not faulty)
    tables = list(model.tables.parameters())
    if faulty:
        table_optimizer: torch.optim.Optimizer = torch.optim.Adam(tables, lr=1e-3, fused=True)
    else:
        table_optimizer = torch.optim.SparseAdam(tables, lr=1e-3)
    network_optimizer = adamw(nn.ModuleList([model.dense, model.top]))
    ids = torch.stack([tokens(count, rows) for count in counts], 1)
    numbers = noise(rows, 13, dtype=torch.float32)
    clicked = (torch.rand(rows, device=DEVICE) < 0.1).float()

    def step() -> None:
        loss = functional.binary_cross_entropy_with_logits(model(ids, numbers), clicked)
        table_optimizer.zero_grad()
        network_optimizer.zero_grad()
        loss.backward()
        table_optimizer.step()
        network_optimizer.step()

    return step
