"""Recommenders and graphs: who watches what, what plays next, what a paper is about."""

from __future__ import annotations

import random

import torch
from benchmarks.faults.library_models import autocast, tokens
from benchmarks.faults.models import DEVICE, adamw, pinned, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional


class FilmScorer(nn.Module):
    """Tells from a viewer, what they saw, and a film whether they will watch it."""

    def __init__(self, viewers: int, films: int, width: int, *, sparse: bool) -> None:
        super().__init__()
        self.viewers = nn.Embedding(viewers, width, sparse=sparse)
        self.films = nn.Embedding(films, width, sparse=sparse)
        self.mlp = nn.Sequential(
            nn.Linear(3 * width + 16, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 1)
        )

    def forward(self, viewer: Tensor, film: Tensor, seen: Tensor, facts: Tensor) -> Tensor:
        """A score for each row."""
        films = self.films(torch.cat([film[:, None], seen], 1))
        parts = [self.viewers(viewer), films[:, 0], films[:, 1:].mean(1), facts]
        return self.mlp(torch.cat(parts, -1)).squeeze(-1)


@pair(
    "whole-embedding-tables-updated",
    "Tables of 18 million rows get dense gradients: Adam reads and writes every row in every step.",
    "nn.Embedding(sparse=True) with SparseAdam for the tables.",
)
def thirteenth_film_picker(faulty: bool) -> Step:
    """A recommender learns which films a viewer watches."""
    viewers, films, rows, history = sized(16_000_000, 500), sized(2_000_000, 200), sized(8192, 8), 10
    with torch.device(DEVICE):
        model = FilmScorer(viewers, films, sized(64, 8), sparse=not faulty)
    tables = [model.viewers.weight, model.films.weight]
    if faulty:
        optimizers: list[torch.optim.Optimizer] = [torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)]
    else:
        optimizers = [
            torch.optim.SparseAdam(tables, lr=1e-3),
            torch.optim.Adam(model.mlp.parameters(), lr=1e-3, fused=True),
        ]
    viewer, film = tokens(viewers, rows), tokens(films, rows)
    seen = tokens(films, rows, history)
    facts = torch.randn(rows, 16, device=DEVICE)
    watched = torch.randint(0, 2, (rows,), device=DEVICE).float()
    running = torch.zeros((), device=DEVICE)

    def step() -> Tensor:
        with autocast():
            scores = model(viewer, film, seen, facts)
        loss = functional.binary_cross_entropy_with_logits(scores.float(), watched)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        running.lerp_(loss.detach(), 0.01)
        return loss.detach()

    return step


class Listener(nn.Module):
    """Tells from the songs so far what a listener wants next."""

    def __init__(self, songs: int, width: int, layers: int, length: int) -> None:
        super().__init__()
        self.songs = nn.Embedding(songs, width)
        self.places = nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(
            width, max(1, width // 64), 4 * width, 0.1, "gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        self.mask: Tensor
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, heard: Tensor) -> Tensor:
        """What comes after each song."""
        x = self.songs(heard) + self.places.weight
        return self.layers(x, mask=self.mask, is_causal=True)


def unheard(histories: list[set[int]], length: int, songs: int) -> Tensor:
    """For each place of each listener a song that this listener never played."""
    rows = []
    for known in histories:
        row = []
        for _ in range(length):
            song = random.randrange(songs)
            while song in known:
                song = random.randrange(songs)
            row.append(song)
        rows.append(row)
    return pinned(torch.tensor(rows)).to(DEVICE, non_blocking=True)


def unheard_on_device(heard: Tensor, after: Tensor, songs: int) -> Tensor:
    """The same on the device: what a listener played is replaced by another draw."""
    drawn = torch.randint(0, songs, after.shape, device=after.device)
    again = torch.randint(0, songs, after.shape, device=after.device)
    played = torch.cat([heard, after[:, -1:]], 1).sort(1).values
    place = torch.searchsorted(played, drawn).clamp(max=played.shape[1] - 1)
    return torch.where(played.gather(1, place) == drawn, again, drawn)


@pair(
    "negatives-drawn-one-by-one-in-python",
    "A recommender draws a song never played for every place in Python, 51,200 a step.",
    "They are drawn on the device by torch.randint, and looked up by torch.searchsorted.",
)
def thirteenth_playlist_maker(faulty: bool) -> Step:
    """A transformer learns which song a listener plays next."""
    songs, rows, length = sized(60_000, 300), sized(512, 4), sized(100, 8)
    model = Listener(songs, sized(256, 64), sized(3, 1), length).to(DEVICE)
    optimizer = adamw(model, weight_decay=0.0)
    played = tokens(songs, rows, length + 1)
    heard, after = played[:, :-1].contiguous(), played[:, 1:].contiguous()
    histories = [set(row) for row in played.tolist()]

    def step() -> Tensor:
        if faulty:
            others = unheard(histories, length, songs)
        else:
            others = unheard_on_device(heard, after, songs)
        with autocast():
            wish = model(heard)
            good = (wish * model.songs(after)).sum(-1).float()
            bad = (wish * model.songs(others)).sum(-1).float()
        loss = functional.softplus(-good).mean() + functional.softplus(bad).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def citations(papers: int, links: int) -> Tensor:
    """Who cites whom, both ways; few papers are cited by many."""
    from torch_geometric.utils import to_undirected

    citing = torch.randint(0, papers, (links,), device=DEVICE)
    cited = (torch.rand(links, device=DEVICE).pow(2) * papers).long().clamp(max=papers - 1)
    return to_undirected(torch.stack([citing, cited]), num_nodes=papers)


@pair(
    "features-of-a-fixed-graph-spread-again",
    "A tagger spreads the papers' features over three hops of the graph in every step, without any weights.",
    "They are spread once before the training.",
)
def thirteenth_citation_tagger(faulty: bool) -> Step:
    """A simple graph network tells the field of a paper."""
    from torch_geometric.nn import LGConv

    papers, width, classes, hops = sized(300_000, 60), sized(128, 8), 40, 3
    links = citations(papers, sized(3_000_000, 150))
    features = torch.randn(papers, width, device=DEVICE)
    labels = torch.randint(0, classes, (papers,), device=DEVICE)
    learned = torch.randperm(papers, device=DEVICE)[: papers // 2]
    spread = LGConv(normalize=True).to(DEVICE)
    wide = sized(1024, 16)
    model = nn.Sequential(
        nn.Linear((hops + 1) * width, wide),
        nn.BatchNorm1d(wide),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Linear(wide, wide),
        nn.BatchNorm1d(wide),
        nn.ReLU(),
        nn.Linear(wide, classes),
    ).to(DEVICE)
    optimizer = adamw(model, weight_decay=1e-4)

    def gathered() -> Tensor:
        kept = [features]
        for _ in range(hops):
            kept.append(spread(kept[-1], links))
        return torch.cat(kept, -1)[learned]

    wanted = labels[learned]
    ready = None if faulty else gathered()

    def step() -> Tensor:
        known = gathered() if ready is None else ready
        with autocast():
            loss = functional.cross_entropy(model(known), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step
