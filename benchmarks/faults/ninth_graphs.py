"""A training loop on molecules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from benchmarks.faults.models import DEVICE, adamw, sized
from benchmarks.faults.ninth_inputs import endless
from benchmarks.faults.registry import Step, pair
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

WALK = 20


class Molecules(Dataset[Any]):
    """Small graphs of atoms, with what may be done before they are kept and when they are read."""

    def __init__(
        self,
        count: int,
        transform: Callable[[Any], Any] | None = None,
        pre_transform: Callable[[Any], Any] | None = None,
    ) -> None:
        rng = np.random.default_rng(11)
        graphs = [molecule(rng) for _ in range(count)]
        self.graphs = [pre_transform(graph) for graph in graphs] if pre_transform else graphs
        self.transform = transform

    def __len__(self) -> int:
        return len(self.graphs)

    def __getitem__(self, index: int) -> Any:
        graph = self.graphs[index]
        return self.transform(graph) if self.transform else graph


def molecule(rng: np.random.Generator) -> Any:
    """A chain of atoms with branches."""
    from torch_geometric.data import Data

    atoms = int(rng.integers(16, 36))
    parents = [int(rng.integers(max(0, atom - 3), atom)) for atom in range(1, atoms)]
    bonds = torch.tensor([parents, list(range(1, atoms))])
    kinds = torch.from_numpy(rng.random((atoms - 1, 3), dtype=np.float32))
    return Data(
        x=torch.from_numpy(rng.random((atoms, 9), dtype=np.float32)),
        edge_index=torch.cat([bonds, bonds.flip(0)], 1),
        edge_attr=torch.cat([kinds, kinds]),
        y=torch.from_numpy(rng.random(1, dtype=np.float32)),
    )


class BondNet(nn.Module):
    """Atoms hear from their neighbours five times, then the molecule is summed up."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        from torch_geometric.nn import GINEConv

        self.inside = nn.Linear(9 + WALK, width)
        self.layers = nn.ModuleList(
            GINEConv(
                nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width)),
                edge_dim=3,
            )
            for _ in range(layers)
        )
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(layers))
        self.outside = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, batch: Any) -> torch.Tensor:
        """One number for each molecule."""
        from torch_geometric.nn import global_add_pool

        atoms = self.inside(torch.cat([batch.x, batch.random_walk_pe], -1))
        for layer, norm in zip(self.layers, self.norms, strict=True):
            atoms = atoms + torch.relu(norm(layer(atoms, batch.edge_index, batch.edge_attr)))
        return self.outside(global_add_pool(atoms, batch.batch, size=batch.num_graphs)).squeeze(-1)


@pair(
    "fixed-features-computed-every-time",
    "AddRandomWalkPE is given as transform: it is computed for each molecule whenever a batch is loaded.",
    "It is given as pre_transform: the encodings never change and are computed once.",
)
def ninth_molecule_screen(faulty: bool) -> Step:
    """How well molecules dissolve is learned from their graphs."""
    from torch_geometric.loader import DataLoader
    from torch_geometric.transforms import AddRandomWalkPE

    places = AddRandomWalkPE(WALK)
    count = sized(1024, 16)
    known = Molecules(count, transform=places) if faulty else Molecules(count, pre_transform=places)
    batches = endless(DataLoader(known, batch_size=sized(96, 4), shuffle=True, drop_last=True))
    model = BondNet(sized(256, 16), sized(5, 2)).to(DEVICE)
    optimizer = adamw(model)
    running = torch.zeros((), device=DEVICE)

    def step() -> None:
        batch = next(batches).to(DEVICE)
        loss = functional.l1_loss(model(batch), batch.y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        running.lerp_(loss.detach(), 0.02)

    return step
