"""Programs that no rule was tuned to: batches, copies, and what the size of a batch makes of a step."""

from __future__ import annotations

import zlib
from typing import Any

import torch
from benchmarks.faults.inputs import Ahead, endless
from benchmarks.faults.models import DEVICE, HALF, adamw, on_images, pinned, sized
from benchmarks.faults.registry import Step, pair
from benchmarks.faults.unseen_models import (
    FP16,
    labels,
    noise,
    patches,
    tower,
    training,
    vit,
)
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset


class Sounds(Dataset[Any]):
    """A second of sound: stretched, transformed, in bands, normalised."""

    def __init__(self) -> None:
        self.window = torch.hann_window(400)

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        sound = torch.sin(torch.arange(16_000) * (0.01 + index % 97 / 500))[None, None]
        sound = functional.interpolate(sound, scale_factor=1.1, mode="linear")[0, 0, :16_000]
        waves = torch.stft(sound, 400, 160, window=self.window, return_complex=True)
        bands = functional.adaptive_avg_pool1d(waves.abs().square().T, 80).T
        mel = torch.log(bands + 1e-6)
        return (mel - mel.mean(1, keepdim=True)) / (mel.std(1, keepdim=True) + 1e-3), index % 40


class Texts(Dataset[Any]):
    """Texts that are cut into pieces and numbered in Python."""

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        text = " ".join(f"word{index * number % 977:03d}" for number in range(160))
        pieces = [zlib.crc32(text[place : place + 4].encode()) % 20_000 for place in range(len(text) - 4)]
        return torch.tensor(pieces[:1024:8]), index % 40


@pair(
    "dataloader-waits",
    "A speech network has its sounds transformed by the training process itself.",
    "Worker processes do it ahead.",
)
def unseen_speech_loader(faulty: bool) -> Step:
    """num_workers=0 with a Fourier transform in each item."""
    ways: dict[str, Any] = {} if faulty else {"num_workers": sized(6, 1), "persistent_workers": True}
    pin = not faulty and DEVICE == "cuda"
    batches = endless(DataLoader(Sounds(), batch_size=sized(8, 2), pin_memory=pin, **ways))
    layers = [
        nn.Conv1d(80, 256, 5, 2),
        nn.ReLU(),
        nn.Conv1d(256, 256, 5, 2),
        nn.ReLU(),
        nn.Conv1d(256, 40, 1),
    ]
    model = nn.Sequential(*layers).to(DEVICE, HALF)
    optimizer = adamw(model)

    def loss_of() -> Tensor:
        sounds, said = next(batches)
        sounds = sounds.to(DEVICE, HALF, non_blocking=True)
        return functional.cross_entropy(model(sounds).mean(-1), said.to(DEVICE, non_blocking=True))

    return training(loss_of, optimizer)


@pair(
    "dataloader-waits",
    "An LSTM reads texts that a single worker cuts into pieces, in Python.",
    "Six workers do.",
)
def unseen_one_worker(faulty: bool) -> Step:
    """Too few workers for what an item costs."""
    workers = 1 if faulty else sized(6, 1)
    loader = DataLoader(
        Texts(), sized(24, 2), num_workers=workers, persistent_workers=True, pin_memory=DEVICE == "cuda"
    )
    batches = endless(loader)
    embedding, layer, head = (
        nn.Embedding(20_000, 128),
        nn.LSTM(128, 256, batch_first=True),
        nn.Linear(256, 40),
    )
    model = nn.ModuleList([embedding, layer, head]).to(DEVICE, FP16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, fused=True)

    def loss_of() -> Tensor:
        texts, kinds = (part.to(DEVICE, non_blocking=True) for part in next(batches))
        return functional.cross_entropy(head(layer(embedding(texts))[0][:, -1]).float(), kinds)

    return training(loss_of, optimizer)


@pair(
    "pageable-copies",
    "A variational autoencoder asks for its spectrograms with non_blocking=True, but from pageable memory.",
    "They lie in pinned memory.",
)
def unseen_unpinned_vae(faulty: bool) -> Step:
    """What does not block in the code blocks in the driver."""
    rows, side = sized(64, 2), sized(512, 32)
    stored = torch.randn(rows, 1, side, side)
    if not faulty:
        stored = pinned(stored)
    encoder = nn.Sequential(nn.Conv2d(1, 32, 4, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 4), nn.ReLU())
    decoder = nn.Sequential(nn.ConvTranspose2d(32, 32, 4, 4), nn.ReLU(), nn.ConvTranspose2d(32, 1, 4, 4))
    model = on_images(nn.ModuleList([encoder, decoder]))
    optimizer = adamw(model)

    def loss_of() -> Tensor:
        sounds = stored.to(DEVICE, non_blocking=True).to(HALF)
        mean, spread = encoder(sounds).chunk(2, 1)
        made = decoder(mean + torch.randn_like(mean) * torch.exp(0.5 * spread))
        outside = (mean.square() + spread.exp() - spread - 1).mean()
        return functional.mse_loss(made, sounds) + 0.1 * outside

    return training(loss_of, optimizer)


@pair(
    "exposed-copies",
    "Two towers learn from stored features that are copied on the stream of the model.",
    "The next features come on a stream of their own.",
)
def unseen_features_on_stream(faulty: bool) -> Step:
    """Pinned, not blocking, and yet nothing runs beside the copy."""
    width, rows = sized(2048, 16), sized(8192, 8)
    model = tower(width, 2 * width, 2 * width, 64)
    stored = pinned(torch.randn(rows, width))
    ahead = None if faulty or DEVICE == "cpu" else Ahead(stored)

    def loss_of() -> Tensor:
        features = ahead.take() if ahead else stored.to(DEVICE, non_blocking=True)
        made = functional.normalize(model(features.to(HALF)), dim=-1)
        return (made[::2] - made[1::2]).square().mean()

    return training(loss_of, torch.optim.SGD(model.parameters(), lr=1e-4, fused=True))


@pair(
    "misaligned-matmuls",
    "A recommender's layers are as wide as its features happen to be many: 1999.",
    "They are padded to 2048.",
)
def unseen_odd_features(faulty: bool) -> Step:
    """Odd widths in every layer."""
    width = sized(1999 if faulty else 2048, 15)
    model = tower(width, width, width, width, 64)
    batch = noise(sized(16_384, 4), width)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, fused=True)
    return training(lambda: model(batch).square().mean(), optimizer)


@pair(
    "optimizer-share",
    "A recommender's table of six million rows has dense gradients, and AdamW updates every row.",
    "Gradients are sparse, and SparseAdam updates the rows that were looked up.",
)
def unseen_dense_table(faulty: bool) -> Step:
    """The optimizer goes through gigabytes for some thousand rows."""
    entries, rows = sized(6_000_000, 100), sized(4096, 4)
    table = nn.EmbeddingBag(entries, 64, mode="sum", sparse=not faulty).to(DEVICE)
    top = tower(64, 512, 512, 1)
    ids, clicked = labels(entries, rows, 16), labels(2, rows).to(HALF)
    small = adamw(top)
    large = adamw(table) if faulty else torch.optim.SparseAdam(list(table.parameters()), lr=1e-4)

    def step() -> None:
        small.zero_grad()
        large.zero_grad()
        score = top(table(ids).to(HALF))[:, 0]
        functional.binary_cross_entropy_with_logits(score, clicked).backward()
        small.step()
        large.step()

    return step


@pair(
    "device-unfilled",
    "A vision transformer gathers its gradients over sixteen batches of four pictures.",
    "One batch has all of them.",
)
def unseen_tiny_batches(faulty: bool) -> Step:
    """Gradient accumulation where memory would hold far more."""
    model = vit(4, 384)
    optimizer = adamw(model)
    pictures, classes = patches(64, 64)
    parts = sized(16, 2) if faulty else 1

    def step() -> None:
        optimizer.zero_grad()
        for some, their in zip(pictures.chunk(parts), classes.chunk(parts), strict=True):
            (functional.cross_entropy(model(some), their) / parts).backward()
        optimizer.step()

    return step


@pair(
    "needless-transfers",
    "A graph network makes the edges of its 40 molecules with torch.tensor(list, device=…) in every step.",
    "The edges of all of them are one tensor that stays on the device.",
)
def unseen_tensors_of_lists(faulty: bool) -> Step:
    """Many small copies, and a wait for each."""
    molecules, atoms, width = sized(40, 3), 20, sized(128, 16)
    edges = [[(atom, (atom * 7 + number) % atoms) for atom in range(atoms)] for number in range(molecules)]
    mixes = nn.ModuleList(nn.Linear(width, width) for _ in range(3)).to(DEVICE)
    optimizer = torch.optim.SGD(mixes.parameters(), lr=1e-3, fused=True)
    first = noise(molecules * atoms, width, dtype=torch.float32)

    def joined() -> Tensor:
        made = [torch.tensor(pairs, device=DEVICE) + atoms * number for number, pairs in enumerate(edges)]
        return torch.cat(made)

    kept = joined()

    def loss_of() -> Tensor:
        sources, targets = (joined() if faulty else kept).unbind(1)
        x = first
        for mix in mixes:
            x = x.index_add(0, targets, torch.relu(mix(x)).index_select(0, sources))
        return x.square().mean()

    return training(loss_of, optimizer)


@pair(
    "needless-transfers",
    "The softened answers of a teacher in eval mode go to the CPU and back before the student learns them.",
    "They stay on the device.",
)
def unseen_teacher_by_cpu(faulty: bool) -> Step:
    """Logits over the bus, twice."""
    rows, width, count = sized(2048, 8), sized(1024, 32), sized(2048, 32)
    teacher, student = tower(width, 4 * width, count).eval(), tower(width, width, count)
    optimizer = adamw(student)
    batches = [noise(rows, width) for _ in range(2)]

    def loss_of() -> Tensor:
        loss = torch.zeros((), device=DEVICE)
        for batch in batches:
            with torch.no_grad():
                answer = teacher(batch)
                answer = answer.cpu() if faulty else answer
                wanted = (answer / 4).softmax(-1).to(DEVICE)
            loss = loss - (wanted * (student(batch) / 4).log_softmax(-1)).sum(-1).mean()
        return loss

    return training(loss_of, optimizer)
