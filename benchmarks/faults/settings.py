"""Programs with a setting that was forgotten, or an algorithm that does more than is wanted."""

from __future__ import annotations

import torch
from benchmarks.faults.models import DEVICE, HALF, Attention, adamw, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional


class _Block(nn.Module):
    """Attention and a perceptron, each with dropout behind it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.before_attention, self.before_hidden = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.hidden = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        """Adds what both find to the input."""
        x = x + self.drop(self.attention(self.before_attention(x)))
        return x + self.drop(self.hidden(self.before_hidden(x)))


def _encoder(layers: int, width: int) -> nn.Sequential:
    return nn.Sequential(*[_Block(width, 8) for _ in range(layers)]).to(DEVICE, HALF)


@pair(
    "autograd-in-inference",
    "An encoder embeds small batches of texts while gradients are on.",
    "torch.inference_mode().",
)
def settings_text_embedder(faulty: bool) -> Step:
    """The host sets the pace, and autograd records a node for nearly each of its operators."""
    width = sized(512, 32)
    model = _encoder(sized(24, 2), width).eval()
    texts = torch.randn(4, 64, width, device=DEVICE, dtype=HALF)

    def step() -> Tensor:
        with torch.inference_mode(mode=not faulty):
            return functional.normalize(model(texts).mean(1), dim=-1)

    return step


@pair(
    "training-mode-in-inference",
    "An encoder scores long batches without model.eval().",
    "model.eval().",
)
def settings_risk_scorer(faulty: bool) -> Step:
    """Dropout runs behind each layer, on large activations."""
    width = sized(1024, 32)
    model = _encoder(sized(8, 2), width).train(faulty)
    records = torch.randn(sized(64, 2), sized(512, 8), width, device=DEVICE, dtype=HALF)

    def step() -> Tensor:
        with torch.inference_mode():
            return model(records).mean((1, 2)).sigmoid()

    return step


@pair(
    "deterministic-algorithms",
    "A model of baskets is trained with torch.use_deterministic_algorithms(True).",
    "Without it.",
    environment={"CUBLAS_WORKSPACE_CONFIG": ":4096:8"},
)
def settings_basket_model(faulty: bool) -> Step:
    """Sums over indices are made in order, and new memory is filled."""
    torch.use_deterministic_algorithms(faulty)
    width, products = sized(256, 16), sized(50_000, 100)
    table = nn.Embedding(products, width).to(DEVICE)
    model = nn.Sequential(*[nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(6)]).to(DEVICE)
    both = nn.ModuleList([table, model])
    optimizer = adamw(both)
    shape = (sized(4096, 8), 20)
    items = torch.randint(products, shape, device=DEVICE)
    basket = torch.arange(shape[0], device=DEVICE).repeat_interleave(shape[1])

    def step() -> None:
        with torch.autocast(DEVICE, torch.bfloat16):
            found = model(table(items).flatten(0, 1)).float()
        sums = torch.zeros(shape[0], width, device=DEVICE).index_add(0, basket, found)
        loss = functional.mse_loss(sums[basket], found)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


@pair(
    "matrix-decompositions",
    "A critic divides its weights by their largest singular value, from a full decomposition.",
    "One power iteration a step.",
)
def settings_image_critic(faulty: bool) -> Step:
    """A norm needs one singular value, not all."""
    width = sized(768, 16)
    layers = nn.ModuleList([nn.Linear(width, width) for _ in range(3)]).to(DEVICE)
    vectors = [functional.normalize(torch.randn(width, device=DEVICE), dim=0) for _ in layers]
    optimizer = adamw(layers)
    pictures = torch.randn(sized(4096, 4), width, device=DEVICE)

    def norm(weight: Tensor, place: int) -> Tensor:
        if faulty:
            return torch.linalg.matrix_norm(weight, 2)
        with torch.no_grad():
            left = functional.normalize(weight @ vectors[place], dim=0)
            vectors[place] = functional.normalize(weight.T @ left, dim=0)
        return torch.dot(left, weight @ vectors[place])

    def step() -> None:
        x = pictures
        for place, layer in enumerate(layers):
            x = functional.leaky_relu(
                functional.linear(x, layer.weight / norm(layer.weight, place), layer.bias)
            )
        x.mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


@pair(
    "full-sorts",
    "An evaluation sorts the scores of all songs of each listener to see where one song stands.",
    "Songs with a higher score are counted.",
)
def settings_song_ranking(faulty: bool) -> Step:
    """The rank of one item needs no order of the others."""
    songs, width = sized(100_000, 200), sized(256, 16)
    table = torch.randn(songs, width, device=DEVICE, dtype=HALF)
    listeners = torch.randn(sized(1024, 4), width, device=DEVICE, dtype=HALF)
    target = torch.randint(songs, (len(listeners), 1), device=DEVICE)

    def step() -> Tensor:
        with torch.inference_mode():
            scores = (listeners @ table.T).float()
            if faulty:
                order = scores.argsort(dim=1, descending=True)
                rank = (order == target).int().argmax(1)
            else:
                rank = (scores > scores.gather(1, target)).sum(1)
            return (rank < 10).float().mean()

    return step
