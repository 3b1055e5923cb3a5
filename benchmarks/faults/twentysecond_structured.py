"""Models of molecules, listeners, ground motion and documents, whose inputs have a structure."""

from __future__ import annotations

from typing import Any

import torch
from benchmarks.faults.library_models import autocast, noise, tokens
from benchmarks.faults.models import DEVICE, adamw, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional

# ---------------------------------------------------------------- molecules


class BondAttention(nn.Module):
    """Attention among atoms with a bias for how far apart they are."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, bias: Tensor) -> Tensor:
        """New features of all atoms."""
        rows, atoms, width = x.shape
        parts = self.qkv(self.norms[0](x)).view(rows, atoms, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=bias.to(query.dtype))
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, atoms, width))
        return x + self.feed(self.norms[1](x))


class OdourNet(nn.Module):
    """A graph transformer in the style of Graphormer."""

    def __init__(self, layers: int, width: int, heads: int, *, reach: int, indexed: bool) -> None:
        super().__init__()
        self.indexed = indexed
        self.atoms = nn.Embedding(120, width)
        self.degrees = nn.Embedding(16, width)
        self.hops = nn.Parameter(torch.randn(reach, heads) * 0.02)
        self.layers = nn.ModuleList(BondAttention(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 138)

    def bias(self, distances: Tensor) -> Tensor:
        """What attention adds for every pair of atoms, by head."""
        picked = self.hops[distances] if self.indexed else functional.embedding(distances, self.hops)
        return picked.permute(0, 3, 1, 2).contiguous()

    def forward(self, atoms: Tensor, degrees: Tensor, distances: Tensor) -> Tensor:
        """Scores of the smells."""
        x = self.atoms(atoms) + self.degrees(degrees)
        bias = self.bias(distances)
        for layer in self.layers:
            x = layer(x, bias)
        return self.head(self.norm(x).mean(1))


@pair(
    "table-of-few-rows-indexed-with-gradient",
    "The bias of attention is hops[distances]: half a million indices into 32 rows, whose backward is an"
    " index_put_ that adds up equal indices one after the other.",
    "functional.embedding(distances, hops), whose backward splits equal indices into parts.",
)
def aroma_chemist(faulty: bool) -> Step:
    """Smells are told from molecules."""
    rows, atoms, reach = sized(48, 2), sized(96, 8), 32
    model = OdourNet(sized(10, 1), sized(768, 32), sized(16, 4), reach=reach, indexed=faulty).to(DEVICE)
    optimizer = adamw(model)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100_000)
    kinds, degrees = tokens(120, rows, atoms), tokens(6, rows, atoms)
    spots = torch.rand(rows, atoms, 2, device=DEVICE) * 24
    sizes = torch.randint(3 * atoms // 4, atoms + 1, (rows, 1), device=DEVICE)
    real = torch.arange(atoms, device=DEVICE) < sizes
    distances = (torch.cdist(spots, spots).round().long() + 1).clamp(max=reach - 1)
    distances = distances.masked_fill(~(real[:, :, None] & real[:, None, :]), 0)
    smells = (torch.rand(rows, 138, device=DEVICE) < 0.05).float()

    def step() -> None:
        with autocast():
            scores = model(kinds, degrees, distances)
        loss = functional.binary_cross_entropy_with_logits(scores.float(), smells)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()

    return step


# ---------------------------------------------------------------- listeners and records


class Spread(torch.autograd.Function):
    """A product with a symmetric sparse matrix, which is its own transpose."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, x: Tensor) -> Tensor:
        """What the neighbours say."""
        ctx.matrix = matrix
        return torch.sparse.mm(matrix, x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor]:  # type: ignore[override]
        """The same product of the gradient."""
        return None, torch.sparse.mm(ctx.matrix, gradient.contiguous())


def taste_graph(listeners: int, records: int, plays: int) -> Tensor:
    """Who owns what, in both directions, normalised by degrees."""
    generator = torch.Generator().manual_seed(3)
    who = torch.randint(0, listeners, (plays,), generator=generator)
    what = (torch.rand(plays, generator=generator).square() * (records - 1)).long() + listeners
    source, target = torch.cat([who, what]), torch.cat([what, who])
    count = listeners + records
    degree = torch.bincount(target, minlength=count).clamp(min=1).float()
    weights = (degree[source] * degree[target]).rsqrt()
    return torch.sparse_coo_tensor(torch.stack([target, source]), weights, (count, count)).to(DEVICE)


class TasteModel(nn.Module):
    """LightGCN: embeddings spread over the graph, and their mean."""

    def __init__(self, graph: Tensor, width: int, *, rows_packed: bool) -> None:
        super().__init__()
        self.rows_packed = rows_packed
        self.graph = graph.coalesce().to_sparse_csr() if rows_packed else graph
        self.table = nn.Parameter(torch.randn(graph.shape[0], width, device=DEVICE) * 0.1)

    def forward(self) -> Tensor:
        """The embeddings of all listeners and records."""
        total = x = self.table
        for _ in range(3):
            x = Spread.apply(self.graph, x) if self.rows_packed else torch.sparse.mm(self.graph, x)
            total = total + x
        return total / 4


@pair(
    "uncoalesced-sparse-matrix",
    "The adjacency of a LightGCN is a COO tensor that nobody coalesced: each of three products, and each of"
    " their backwards, sorts six million entries anew.",
    "Coalesced and turned into CSR once; the backward takes the same matrix, as it is symmetric.",
)
def vinyl_recommender(faulty: bool) -> Step:
    """Records are recommended to collectors."""
    listeners, records, plays = sized(200_000, 40), sized(50_000, 30), sized(3_000_000, 300)
    rows = sized(8192, 16)
    graph = taste_graph(listeners, records, plays)
    model = TasteModel(graph, sized(128, 8), rows_packed=not faulty)
    optimizer = adamw(model, weight_decay=0.0)
    running = torch.zeros((), device=DEVICE)

    def step() -> None:
        who = torch.randint(0, listeners, (rows,), device=DEVICE)
        liked = torch.randint(listeners, listeners + records, (rows,), device=DEVICE)
        other = torch.randint(listeners, listeners + records, (rows,), device=DEVICE)
        x = model()
        mine = functional.embedding(who, x)
        better = (mine * functional.embedding(liked, x)).sum(-1)
        worse = (mine * functional.embedding(other, x)).sum(-1)
        loss = functional.softplus(worse - better).mean() + 1e-6 * mine.square().sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        running.lerp_(loss.detach(), 0.05)

    return step


# ---------------------------------------------------------------- ground motion


class LongFilter(nn.Module):
    """A causal convolution with filters as long as the record, by Fourier transforms."""

    def __init__(self, width: int, length: int, *, padded: bool) -> None:
        super().__init__()
        self.padded = padded
        self.taps = nn.Parameter(torch.randn(width, length) * 0.02)
        self.register_buffer("fade", torch.exp(-torch.linspace(0, 8, length)), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Filters (rows, width, length)."""
        length = x.shape[-1]
        points = length + self.taps.shape[-1] - 1
        if self.padded:
            points = 1 << (points - 1).bit_length()
        spectrum = torch.fft.rfft(x, n=points) * torch.fft.rfft(self.taps * self.fade, n=points)
        return torch.fft.irfft(spectrum, n=points)[..., :length]


class QuakeLayer(nn.Module):
    """A gated long filter and a feed-forward part."""

    def __init__(self, width: int, length: int, *, padded: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.enter = nn.Linear(width, 2 * width)
        self.filter = LongFilter(width, length, padded=padded)
        self.leave = nn.Linear(width, width)
        self.feed = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Keeps the shape (rows, length, width)."""
        value, gate = self.enter(self.norm(x)).chunk(2, -1)
        filtered = self.filter(value.float().transpose(1, 2).contiguous()).transpose(1, 2)
        x = x + self.leave(filtered.to(gate.dtype) * functional.silu(gate))
        return x + self.feed(x)


@pair(
    "transform-of-an-awkward-length",
    "Long convolutions take Fourier transforms of 16384 + 16384 - 1 = 7 * 31 * 151 points, for which cuFFT"
    " has only Bluestein's algorithm.",
    "The length is padded to the next power of two.",
)
def quake_archive(faulty: bool) -> Step:
    """Arrivals of waves are picked in old seismograms."""
    length, width, rows = sized(16_384, 64), sized(256, 16), sized(8, 2)
    station = nn.Linear(3, width)
    layers = nn.ModuleList(QuakeLayer(width, length, padded=not faulty) for _ in range(sized(4, 1)))
    model = nn.ModuleDict({"station": station, "layers": layers, "head": nn.Linear(width, 3)}).to(DEVICE)
    optimizer = adamw(model)
    motion = noise(rows, length, 3, dtype=torch.float32)
    phases = tokens(3, rows, length)

    def step() -> None:
        with autocast():
            x = station(motion)
            for layer in layers:
                x = layer(x)
            scores = model["head"](x)
        loss = functional.cross_entropy(scores.flatten(0, 1).float(), phases.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


# ---------------------------------------------------------------- documents


class PairHead(nn.Module):
    """Tells for any two words of a text how they are related."""

    def __init__(self, width: int, inner: int, relations: int, *, joined: bool) -> None:
        super().__init__()
        self.joined = joined
        self.enter = nn.Linear(2 * width, inner)
        self.leave = nn.Linear(inner, relations)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the relations, of shape (rows, length, length, relations)."""
        rows, length, width = x.shape
        if self.joined:
            heads = x.unsqueeze(2).repeat(1, 1, length, 1)
            tails = x.unsqueeze(1).repeat(1, length, 1, 1)
            hidden = self.enter(torch.cat([heads, tails], -1))
        else:
            left, right = self.enter.weight.split(width, 1)
            heads = functional.linear(x, left, self.enter.bias).unsqueeze(2)
            hidden = heads + functional.linear(x, right).view(rows, 1, length, -1)
        return self.leave(torch.tanh(hidden))


class CharterModel(nn.Module):
    """BERT and a head for pairs."""

    def __init__(self, layers: int, width: int, *, joined: bool) -> None:
        super().__init__()
        from transformers import BertConfig, BertModel

        config = BertConfig(
            vocab_size=sized(30_528, 256),
            hidden_size=width,
            intermediate_size=4 * width,
            num_hidden_layers=layers,
            num_attention_heads=max(1, width // 64),
            attn_implementation="sdpa",
        )
        self.encoder = BertModel(config, add_pooling_layer=False)
        self.pairs = PairHead(width, sized(512, 32), 24, joined=joined)

    def forward(self, ids: Tensor) -> Tensor:
        """Scores of the relations of all pairs."""
        return self.pairs(self.encoder(input_ids=ids).last_hidden_state)


@pair(
    "pairs-joined-before-the-linear-layer",
    "A head for relations repeats the words into all pairs, joins them and multiplies 614,000 rows of 1536.",
    "The linear layer is applied to each word, left and right half apart, and the results are added by"
    " broadcasting.",
)
def charter_linker(faulty: bool) -> Step:
    """People and places in medieval charters are linked."""
    from accelerate import Accelerator

    rows, length = sized(24, 2), sized(160, 12)
    accelerator = Accelerator(mixed_precision="bf16" if DEVICE == "cuda" else "no", cpu=DEVICE == "cpu")
    plain = CharterModel(sized(12, 1), sized(768, 64), joined=faulty)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=3e-5, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda turn: min(1.0, (turn + 1) / 1000))
    model, optimizer, schedule = accelerator.prepare(plain, optimizer, schedule)
    ids = tokens(sized(30_528, 256), rows, length)
    related = tokens(24, rows, length, length)

    def step() -> None:
        scores = model(ids)
        loss = functional.cross_entropy(scores.flatten(0, 2).float(), related.flatten())
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()

    return step
