"""Models that answer: one reads lines of handwriting aloud and one ranks the drivers of a taxi service."""

from __future__ import annotations

import torch
from benchmarks.faults.library_models import halved, noise
from benchmarks.faults.models import DEVICE, HALF, Block, pinned, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional

BEGIN = 1


class Reader(nn.Module):
    """An encoder of what is on the paper and a decoder of the letters."""

    def __init__(self, width: int, letters: int, length: int) -> None:
        super().__init__()
        heads = max(1, width // 64)
        options = {"batch_first": True, "norm_first": True, "dropout": 0.0}
        self.see = nn.Linear(3 * 16 * 16, width)
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(width, heads, 4 * width, **options),
            sized(8, 1),
            enable_nested_tensor=False,
        )
        self.letters = nn.Embedding(letters, width)
        self.places = nn.Embedding(length + 1, width)
        self.decoder = nn.TransformerDecoder(
            nn.TransformerDecoderLayer(width, heads, 4 * width, **options), sized(2, 1)
        )
        self.head = nn.Linear(width, letters)

    def encode(self, patches: Tensor) -> Tensor:
        """What is on the paper."""
        return self.encoder(self.see(patches))

    def decode(self, seen: Tensor, written: Tensor) -> Tensor:
        """Scores of the letter after each of those written."""
        length = written.shape[1]
        places = torch.arange(length, device=written.device)
        future = torch.ones(length, length, dtype=torch.bool, device=written.device).triu(1)
        x = self.letters(written) + self.places(places)
        return self.head(self.decoder(x, seen, tgt_mask=future, tgt_is_causal=True))

    def forward(self, patches: Tensor, written: Tensor) -> Tensor:
        """As it is trained: both at once."""
        return self.decode(self.encode(patches), written)


@pair(
    "encoder-run-for-every-token",
    "The letters are chosen one after the other by calling the whole model, as in training, so that the"
    " encoder reads the same paper again for each letter.",
    "Encode once before the loop and call only the decoder in it.",
)
def seventeenth_letter_archive(faulty: bool) -> Step:
    """Lines of old letters are read, always taking the likeliest next letter."""
    length, letters = sized(16, 3), sized(128, 16)
    model: Reader = halved(Reader(sized(512, 64), letters, length)).eval()
    patches = noise(sized(32, 2), sized(256, 8), 3 * 16 * 16)

    @torch.inference_mode()
    def step() -> Tensor:
        written = torch.full((len(patches), 1), BEGIN, device=DEVICE)
        seen = None if faulty else model.encode(patches)
        for _ in range(length):
            scores = model(patches, written) if seen is None else model.decode(seen, written)
            written = torch.cat([written, scores[:, -1:].argmax(-1)], 1)
        return written[:, 1:].cpu()

    return step


class Ranker(nn.Module):
    """Looks at all drivers near a caller together and scores each."""

    def __init__(self, features: int, width: int, layers: int) -> None:
        super().__init__()
        self.first = nn.Linear(features, width)
        heads = max(1, width // 64)
        self.layers = nn.ModuleList(Block(width, heads, 4 * width) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 1)

    def forward(self, drivers: Tensor) -> Tensor:
        """One score for each driver of each caller."""
        x = functional.gelu(self.first(drivers))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x)).squeeze(-1).float()


@pair(
    "compiled-without-cuda-graphs",
    "The model is compiled in the default mode. Requests are small, so each fused kernel and each product"
    " still takes less time on the device than Python takes to launch it, and the device waits in between.",
    'torch.compile(model, mode="reduce-overhead"): all shapes are the same, so the launches are recorded in'
    " a CUDA graph and replayed.",
)
def seventeenth_taxi_dispatch(faulty: bool) -> Step:
    """A compiled ranker answers a row of requests, one after the other as they come."""
    features = sized(96, 8)
    model = Ranker(features, sized(384, 64), sized(12, 1)).to(DEVICE, HALF).eval()
    ranker = model
    if DEVICE == "cuda":
        mode = "default" if faulty else "reduce-overhead"
        ranker = torch.compile(model, mode=mode, fullgraph=True, dynamic=False)
    requests = [pinned(torch.randn(2, sized(32, 4), features).to(HALF)) for _ in range(sized(16, 2))]

    @torch.inference_mode()
    def step() -> list[Tensor]:
        answers = []
        for request in requests:
            scores = ranker(request.to(DEVICE, non_blocking=True))
            answers.append(scores.topk(3).indices.cpu())
        return answers

    return step
