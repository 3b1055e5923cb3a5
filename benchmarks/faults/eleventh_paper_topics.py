"""A graph network of torch-geometric over a whole citation graph."""

from __future__ import annotations

import torch
from benchmarks.faults.library_models import noise, tokens
from benchmarks.faults.models import DEVICE, adamw, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional

FEATURES, HIDDEN, TOPICS = 64, 16, 16


@pair(
    "normalisation-of-a-fixed-graph-computed-again",
    "Every GCNConv adds the self-loops and computes the degrees of the same graph again in every step.",
    "GCNConv(cached=True), since the graph never changes.",
)
def eleventh_paper_topics(faulty: bool) -> Step:
    """Papers are sorted into topics from what they cite."""
    from torch_geometric.nn import GCNConv

    papers, citations = sized(600_000, 50), sized(12_000_000, 200)

    class Topics(nn.Module):
        """Three layers, each mixing a paper with those next to it."""

        def __init__(self) -> None:
            super().__init__()
            sizes = [(FEATURES, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, TOPICS)]
            self.layers = nn.ModuleList(
                GCNConv(inside, outside, cached=not faulty) for inside, outside in sizes
            )

        def forward(self, x: Tensor, edges: Tensor) -> Tensor:
            """Scores of the topics."""
            for layer in self.layers[:-1]:
                x = functional.dropout(torch.relu(layer(x, edges)), 0.5, self.training)
            return self.layers[-1](x, edges)

    model = Topics().to(DEVICE)
    optimizer = adamw(model)
    features = noise(papers, FEATURES, dtype=torch.float32)
    edges = tokens(papers, 2, citations)
    labelled = torch.randperm(papers, device=DEVICE)[: papers // 10]
    topics = tokens(TOPICS, labelled.numel())

    def step() -> None:
        optimizer.zero_grad()
        scores = model(features, edges)
        loss = functional.cross_entropy(scores[labelled], topics)
        loss.backward()
        optimizer.step()

    return step
