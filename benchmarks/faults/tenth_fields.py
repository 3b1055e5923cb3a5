"""Programs of several fields: forecasts, events, crowds, speech, citations and games."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import torch
from benchmarks.faults.library_models import autocast, noise, tokens, training
from benchmarks.faults.models import DEVICE, HALF, adamw, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional

# ---------------------------------------------------------------- demand of energy


class DemandForecaster(nn.Module):
    """Tells the demand of the next day from that of the days before."""

    def __init__(self, columns: int, width: int, layers: int, horizon: int) -> None:
        super().__init__()
        self.project = nn.Linear(columns, width)
        layer = nn.TransformerEncoderLayer(
            width, max(1, width // 64), 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, horizon)

    def forward(self, series: Tensor) -> Tensor:
        """The demand of the next hours."""
        return self.head(self.encoder(self.project(series)).mean(1))


@pair(
    "float64-model",
    "A transformer forecasts the demand of energy from a table of hourly readings.",
    "The table is read as float32, the model stays in it, and autocast computes in bf16.",
)
def tenth_energy_forecast(faulty: bool) -> Step:
    """Eight days of readings tell the next one."""
    length, columns, rows, horizon = sized(192, 12), 24, sized(128, 2), 24
    table = np.random.default_rng(5).normal(size=(sized(20_000, 100), columns))
    table = (table - table.mean(0)) / table.std(0)
    model: nn.Module = DemandForecaster(columns, sized(512, 64), sized(6, 1), horizon).to(DEVICE)
    if faulty:
        model = model.double()
    else:
        table = table.astype(np.float32)
    readings = torch.from_numpy(table).to(DEVICE)
    optimizer = adamw(model)
    hours = torch.arange(length + horizon, device=DEVICE)

    def step() -> None:
        start = torch.randint(0, len(readings) - length - horizon, (rows, 1), device=DEVICE)
        window = readings[start + hours]
        with autocast(enabled=not faulty):
            predicted = model(window[:, :length])
        loss = functional.huber_loss(predicted.to(window.dtype), window[:, length:, 0])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


# ---------------------------------------------------------------- events of users


class EventLayer(nn.Module):
    """A layer over the events of a session."""

    def __init__(self, width: int, options: dict[str, Any]) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, max(1, width // 64), dropout=0.1, batch_first=True)
        self.options = options
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.forward_part = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Attention and two linear layers."""
        y = self.norms[0](x)
        x = x + self.attention(y, y, y, **self.options)[0]
        return x + self.forward_part(self.norms[1](x))


@pair(
    "weights-of-attention-returned",
    "An encoder of nn.MultiheadAttention layers learns to fill gaps in streams of 2048 events.",
    "need_weights=False.",
)
def tenth_event_stream(faulty: bool) -> Step:
    """Hidden events are told from those around them."""
    width, rows, length, kinds = sized(512, 64), sized(16, 2), sized(2048, 16), sized(4096, 64)
    options: dict[str, Any] = {} if faulty else {"need_weights": False}
    layers = [EventLayer(width, options) for _ in range(sized(6, 1))]
    model = nn.Sequential(nn.Embedding(kinds, width), *layers, nn.LayerNorm(width), nn.Linear(width, kinds))
    model = model.to(DEVICE, HALF)
    events = tokens(kinds, rows, length)
    hidden = events.masked_fill(torch.rand(rows, length, device=DEVICE) < 0.15, 0)
    return training(model, lambda: functional.cross_entropy(model(hidden).flatten(0, 1), events.flatten()))


# ---------------------------------------------------------------- crowds in pictures


class DensityNet(nn.Module):
    """Tells how many people stand at every place of a picture."""

    def __init__(self) -> None:
        super().__init__()
        import timm

        self.body = timm.create_model("resnet18", features_only=True, out_indices=(1, 2, 3))
        channels = self.body.feature_info.channels()
        self.sides = nn.ModuleList(nn.Conv2d(channel, 64, 1) for channel in channels)
        self.head = nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 1, 1))

    def forward(self, pictures: Tensor) -> Tensor:
        """A map of a quarter of the size."""
        maps = [side(found) for side, found in zip(self.sides, self.body(pictures), strict=True)]
        size = maps[0].shape[-2:]
        summed = maps[0]
        for coarse in maps[1:]:
            summed = summed + functional.interpolate(coarse, size)
        return self.head(summed).squeeze(1)


def loss_by_picture(predicted: Tensor, density: Tensor, region: Tensor) -> Tensor:
    """Mean error within the region of each picture that somebody has counted."""
    losses = []
    for index in range(len(predicted)):
        inside = region[index]
        if inside.sum() > 0:
            losses.append(functional.l1_loss(predicted[index][inside], density[index][inside]))
    return torch.stack(losses).mean()


def loss_of_batch(predicted: Tensor, density: Tensor, region: Tensor) -> Tensor:
    """The same of all pictures at once."""
    weight = region.float()
    inside = weight.sum((1, 2))
    error = ((predicted - density).abs() * weight).sum((1, 2)) / inside.clamp(min=1)
    counted = (inside > 0).float()
    return (error * counted).sum() / counted.sum().clamp(min=1)


@pair(
    "loop-with-boolean-masks",
    "A network over a ResNet of timm learns to count people in the regions that were marked.",
    "The loss multiplies by the mask instead of picking the marked places of each picture.",
)
def tenth_crowd_counter(faulty: bool) -> Step:
    """People are counted by a map of their density."""
    rows, side = sized(64, 2), sized(224, 32)
    model = DensityNet().to(DEVICE, memory_format=torch.channels_last)
    optimizer = adamw(model)
    pictures = noise(rows, 3, side, side, dtype=torch.float32).to(memory_format=torch.channels_last)
    density = torch.rand(rows, side // 4, side // 4, device=DEVICE)
    region = torch.rand(rows, side // 4, side // 4, device=DEVICE) < 0.6
    criterion = loss_by_picture if faulty else loss_of_batch

    def step() -> None:
        with autocast():
            predicted = model(pictures)
        loss = criterion(predicted.float(), density, region)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


# ---------------------------------------------------------------- a codec of speech


class SpeechCodec(nn.Module):
    """Speech as the numbers of vectors in four code books, and back."""

    def __init__(self, width: int, codes: int, *, wide: bool) -> None:
        super().__init__()
        self.wide = wide
        self.encoder = nn.Sequential(
            nn.Conv1d(1, width // 2, 7, 4, 3),
            nn.GELU(),
            nn.Conv1d(width // 2, width, 8, 4, 2),
            nn.GELU(),
            nn.Conv1d(width, width, 8, 4, 2),
        )
        self.decoder = nn.Sequential(
            nn.ConvTranspose1d(width, width, 8, 4, 2),
            nn.GELU(),
            nn.ConvTranspose1d(width, width // 2, 8, 4, 2),
            nn.GELU(),
            nn.ConvTranspose1d(width // 2, 1, 8, 4, 2),
        )
        self.books = nn.ParameterList(torch.randn(codes, width) for _ in range(4))

    @torch.no_grad()
    def nearest(self, vectors: Tensor, book: Tensor) -> Tensor:
        """The number of the code that lies nearest to each vector."""
        if self.wide:
            distance = ((vectors[:, None] - book[None]) ** 2).sum(-1)
        else:
            distance = book.pow(2).sum(-1) - 2 * vectors @ book.T
        return distance.argmin(-1)

    def forward(self, waves: Tensor) -> Tensor:
        """The loss of a batch of waves."""
        found = self.encoder(waves)
        left = found.transpose(1, 2).flatten(0, 1).float()
        chosen, loss = torch.zeros_like(left), torch.zeros((), device=waves.device)
        for book in self.books:
            picked = functional.embedding(self.nearest(left, book), book)
            loss = loss + functional.mse_loss(picked, left.detach())
            loss = loss + 0.25 * functional.mse_loss(left, picked.detach())
            chosen = chosen + picked.detach()
            left = left - picked.detach()
        rows, width, length = found.shape
        codes = chosen.view(rows, length, width).transpose(1, 2)
        heard = self.decoder(found + (codes - found).detach())
        return loss + functional.l1_loss(heard.float(), waves)


@pair(
    "distances-by-broadcasting",
    "A codec with four residual code books learns to write speech as numbers.",
    "The distances come from one matrix product instead of all differences.",
)
def tenth_speech_codes(faulty: bool) -> Step:
    """Two seconds of speech become 512 frames of four codes."""
    model = SpeechCodec(sized(128, 16), sized(1024, 32), wide=faulty).to(DEVICE)
    waves = 0.1 * noise(sized(16, 2), 1, sized(32_768, 1024), dtype=torch.float32)
    optimizer = adamw(model, betas=(0.8, 0.99))

    def step() -> None:
        with autocast():
            loss = model(waves)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


# ---------------------------------------------------------------- a network of citations


class PaperNet(nn.Module):
    """Three layers of graph convolution."""

    def __init__(self, features: int, hidden: int, topics: int, **options: Any) -> None:
        super().__init__()
        from torch_geometric.nn import GCNConv

        widths = [features, hidden, hidden, topics]
        self.layers = nn.ModuleList(
            GCNConv(inside, outside, **options) for inside, outside in pairwise(widths)
        )

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        """Scores of the topics of every paper."""
        for layer in self.layers[:-1]:
            x = functional.relu(layer(x, edges))
        return self.layers[-1](x, edges)


@pair(
    "normalised-in-every-layer",
    "A GCN of torch-geometric learns the topics of papers from all of one network of citations.",
    "GCNConv(cached=True): the network is the same in every step.",
)
def tenth_citation_network(faulty: bool) -> Step:
    """The whole network is one batch."""
    papers, citations, features, topics = sized(1_000_000, 50), sized(8_000_000, 200), 64, 16
    x = noise(papers, features, dtype=torch.float32)
    one_way = tokens(papers, 2, citations)
    edges = torch.cat([one_way, one_way.flip(0)], 1)
    known = torch.randperm(papers, device=DEVICE)[: papers // 10]
    topic = tokens(topics, len(known))
    options: dict[str, Any] = {} if faulty else {"cached": True}
    model = PaperNet(features, 16, topics, **options).to(DEVICE)
    return training(
        model,
        lambda: functional.cross_entropy(model(x, edges)[known], topic),
        adamw(model, weight_decay=5e-4),
    )
