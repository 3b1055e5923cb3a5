"""Programs on torch-geometric: graphs."""

from __future__ import annotations

from typing import Any

import torch
from benchmarks.faults.library_models import noise, tokens, training
from benchmarks.faults.models import DEVICE, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional


@pair(
    "python-loop-over-relations",
    "RGCNConv goes through 40 kinds of edges in Python and picks each kind's edges with a mask.",
    "FastRGCNConv.",
)
def library_relations_in_a_loop(faulty: bool) -> Step:
    """A mask that waits for the device, and a few short kernels, for every kind."""
    from torch_geometric.nn import FastRGCNConv, RGCNConv

    nodes, edges, kinds, width = sized(4000, 30), sized(12_000, 90), sized(40, 3), 32
    conv: Any = RGCNConv if faulty else FastRGCNConv
    layers = nn.ModuleList(conv(width, width, kinds) for _ in range(2)).to(DEVICE)
    x, ends, sorts = noise(nodes, width, dtype=torch.float32), tokens(nodes, 2, edges), tokens(kinds, edges)
    labels = tokens(width, nodes)

    def loss() -> Tensor:
        found = x
        for layer in layers:
            found = layer(found, ends, sorts).relu()
        return functional.cross_entropy(found, labels)

    return training(layers, loss)


@pair(
    "same-normalisation-in-every-step",
    "GCNConv adds loops and normalizes the edges of one fixed graph again in each layer of each step.",
    "GCNConv(cached=True).",
)
def library_gcn_not_cached(faulty: bool) -> Step:
    """Degrees of two million edges are counted over and over."""
    from torch_geometric.nn import GCNConv

    nodes, edges, width = sized(200_000, 50), sized(2_000_000, 200), sized(16, 8)
    layers = nn.ModuleList(GCNConv(width, width, cached=not faulty) for _ in range(3)).to(DEVICE)
    x, ends = noise(nodes, width, dtype=torch.float32), tokens(nodes, 2, edges)
    labels = tokens(8, nodes)

    def loss() -> Tensor:
        found = x
        for layer in layers:
            found = layer(found, ends).relu()
        return functional.cross_entropy(found, labels)

    return training(layers, loss)


@pair(
    "scatter-in-place-of-dense",
    "TransformerConv attends over complete graphs of 64 atoms by way of their edges.",
    "The atoms of all molecules are one dense batch for scaled_dot_product_attention.",
)
def library_complete_graphs(faulty: bool) -> Step:
    """Keys and values are gathered for every pair, and added up by scatter."""
    from torch_geometric.nn import TransformerConv

    molecules, atoms, heads, size = sized(64, 2), sized(64, 5), 4, 32
    width = heads * size
    conv = TransformerConv(width, size, heads).to(DEVICE)
    x = noise(molecules * atoms, width, dtype=torch.float32)
    pairs = torch.cartesian_prod(*[torch.arange(atoms, device=DEVICE)] * 2).T
    starts = torch.arange(molecules, device=DEVICE) * atoms
    edges = (pairs[:, None] + starts[None, :, None]).flatten(1)

    def split(values: Tensor) -> Tensor:
        return values.view(molecules, atoms, heads, size).transpose(1, 2)

    def dense() -> Tensor:
        query, key, value = (split(part(x)) for part in (conv.lin_query, conv.lin_key, conv.lin_value))
        mixed = functional.scaled_dot_product_attention(query, key, value)
        return mixed.transpose(1, 2).reshape(-1, width) + conv.lin_skip(x)

    return training(conv, lambda: (conv(x, edges) if faulty else dense()).square().mean())
