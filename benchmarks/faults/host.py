"""Programs that wait for the host: reads, synchronisation, launches, Python."""

from __future__ import annotations

import itertools
import json
from typing import Any

import torch
from benchmarks.faults.models import (
    DEVICE,
    HALF,
    Policy,
    ResNet,
    UNet,
    adamw,
    gpt,
    graphed,
    images,
    on_images,
    sized,
    synchronize,
    train_words,
    wide_mlp,
    words,
)
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional


@pair(
    "scalar-reads",
    "A small GPT logs the size of every layer's activations and gradients with .item().",
    "The sizes stay on the device.",
)
def scalar_reads_layers(faulty: bool) -> Step:
    """Reads in every layer: the host waits for the device, then the device for the host."""
    model = gpt(3, 512)
    optimizer = adamw(model)
    tokens = words(32, 512)
    history: list[Any] = []

    def note(value: Tensor) -> None:
        history.append(value.item() if faulty else value)

    for layer in model.layers:
        layer.register_forward_hook(lambda _, __, x: note(x.detach().abs().mean()))

    def step() -> None:
        history.clear()
        note(train_words(model, tokens, optimizer))
        for layer in model.layers:
            note(layer.up.weight.grad.norm())

    return step


@pair(
    "scalar-reads",
    "A recommender reads its loss every step, which empties a deep queue; then it must make its features.",
    "The loss is added up on the device.",
)
def scalar_reads_queue(faulty: bool) -> Step:
    """Many short kernels first, long ones after them: only a full queue hides the former."""
    columns, width = sized(40, 3), sized(4096, 64)
    tables = [torch.randn(10_000, 32, device=DEVICE, dtype=HALF) for _ in range(columns)]
    raw = torch.randint(0, 1 << 30, (columns, sized(8192, 16)), device=DEVICE)
    top = nn.Sequential(nn.Linear(32 * columns, width), nn.ReLU(), wide_mlp(4096, 3), nn.Linear(width, 1))
    top = top.to(DEVICE, HALF)
    optimizer = torch.optim.SGD(top.parameters(), lr=1e-4, fused=True)
    total = torch.zeros((), device=DEVICE)
    losses = []

    def feature(number: int) -> Tensor:
        ids = (raw[number] * 31 + number) % 10_000
        row = tables[number][ids]
        return torch.tanh(row - row.mean()) * torch.rsqrt(row.var() + 1e-3)

    def step() -> None:
        with torch.no_grad():
            features = torch.cat([feature(number) for number in range(columns)], 1)
        optimizer.zero_grad()
        loss = functional.softplus(top(features)).mean()
        loss.backward()
        optimizer.step()
        if faulty:
            losses.append(loss.item())
        else:
            total.add_(loss.detach())

    return step


@pair(
    "scalar-reads",
    "Linear layers of 8192 read their loss once a step.",
    "The loss is added up on the device.",
    kind="fair",
)
def fair_scalar_read(faulty: bool) -> Step:
    """One read a step, hidden by long products."""
    model = wide_mlp(8192, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, fused=True)
    batch = torch.randn(sized(8192, 16), sized(8192, 64), device=DEVICE, dtype=HALF)
    total = torch.zeros((), device=DEVICE)
    losses = []

    def step() -> None:
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        if faulty:
            losses.append(loss.item())
        else:
            total.add_(loss.detach())

    return step


@pair(
    "implicit-syncs",
    "A segmentation loss picks the pixels of each class with a boolean mask.",
    "The masks are multiplied.",
)
def implicit_syncs_masks(faulty: bool) -> Step:
    """Every mask must be counted before its pixels can be taken."""
    classes = 8
    model = on_images(UNet(32, classes))
    optimizer = adamw(model)
    pictures = images(8, 128)
    labels = torch.randint(0, classes, pictures[:, 0].shape, device=DEVICE)
    time = torch.zeros(len(pictures), 64, device=DEVICE, dtype=HALF)

    def step() -> None:
        optimizer.zero_grad()
        errors = functional.cross_entropy(model(pictures, time), labels, reduction="none")
        loss = errors.new_zeros(())
        for number in range(classes):
            mask = labels == number
            if faulty:
                loss = loss + errors[mask].mean()
            else:
                loss = loss + (errors * mask).sum() / mask.sum()
        loss.backward()
        optimizer.step()

    return step


@pair(
    "implicit-syncs",
    "A mixture of experts looks up the rows of each expert with nonzero().",
    "Every expert sees every row, and a mask keeps its own.",
)
def implicit_syncs_experts(faulty: bool) -> Step:
    """Routing on the host: the number of rows of an expert is not known before it is read."""
    experts, width, layers = 8, sized(256, 32), sized(2, 1)
    gates = nn.ModuleList(nn.Linear(width, experts) for _ in range(layers)).to(DEVICE, HALF)
    shape = (layers, experts, width, width)
    weights = (torch.randn(shape, device=DEVICE, dtype=HALF) / width**0.5).requires_grad_()
    optimizer = torch.optim.SGD([*gates.parameters(), weights], lr=1e-4, fused=True)
    batch = torch.randn(sized(2048, 16), width, device=DEVICE, dtype=HALF)

    def layer(x: Tensor, number: int) -> Tensor:
        shares, chosen = torch.softmax(gates[number](x), -1).max(-1)
        if not faulty:
            mask = functional.one_hot(chosen, experts).to(x.dtype) * shares[:, None]
            return x + torch.einsum("enw,ne->nw", torch.matmul(x, weights[number]), mask)
        mixed = torch.zeros_like(x)
        for expert in range(experts):
            rows = (chosen == expert).nonzero().squeeze(1)
            part = x[rows] @ weights[number, expert] * shares[rows, None]
            mixed = mixed.index_add(0, rows, part)
        return x + mixed

    def step() -> None:
        optimizer.zero_grad()
        x = batch
        for number in range(layers):
            x = layer(x, number)
        x.square().mean().backward()
        optimizer.step()

    return step


@pair(
    "explicit-syncs",
    "A diffusion model waits for the device after every phase, for timing that was left in.",
    "The waits are gone.",
)
def explicit_syncs(faulty: bool) -> Step:
    """Phases that the host leads and phases that the device leads no longer overlap."""
    model = on_images(UNet(64))
    optimizer = adamw(model, fused=False, foreach=True)
    pictures = images(56, 64)
    time = torch.randn(len(pictures), 64, device=DEVICE, dtype=HALF)
    phase = synchronize if faulty else lambda: None

    def step() -> None:
        optimizer.zero_grad()
        noise = torch.randn_like(pictures)
        noisy = pictures * 0.8 + noise * 0.6
        phase()
        guess = model(noisy, time)
        phase()
        loss = functional.mse_loss(guess, noise)
        phase()
        loss.backward()
        phase()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        phase()
        optimizer.step()
        phase()

    return step


@pair(
    "explicit-syncs",
    "Linear layers of 8192 wait for the device at the end of each step.",
    "The wait is gone.",
    kind="fair",
)
def fair_synchronize(faulty: bool) -> Step:
    """One wait a step, in a program that the device leads."""
    model = wide_mlp(8192, 4)
    batch = torch.randn(sized(8192, 16), sized(8192, 64), device=DEVICE, dtype=HALF)

    def step() -> None:
        with torch.no_grad():
            model(batch)
            model(batch)
        if faulty:
            synchronize()

    return step


@pair(
    "launch-bound",
    "A small GPT is trained eagerly: hundreds of short kernels, each launched from Python.",
    "The whole step is captured in a CUDA graph.",
)
def launch_bound_training(faulty: bool) -> Step:
    """Training where the device waits for each launch."""
    model = gpt(4, 256)
    optimizer = adamw(model, capturable=DEVICE == "cuda")
    tokens = words(16, 64)

    def step() -> None:
        train_words(model, tokens, optimizer)

    return step if faulty else graphed(step)


@pair(
    "launch-bound",
    "A residual network looks at one picture at a time, eagerly.",
    'torch.compile(mode="reduce-overhead").',
)
def launch_bound_inference(faulty: bool) -> Step:
    """Inference where the device waits for each launch."""
    model = on_images(ResNet(64, sized(4, 1))).eval()
    run = model if faulty else torch.compile(model, mode="reduce-overhead")
    picture = images(1, 96)

    def step() -> None:
        with torch.no_grad():
            run(picture)

    return step


@pair(
    "python-between-ops",
    "A reinforcement learner builds, sorts and prints lists of records between its operations.",
    "One number a moment is kept.",
)
def python_between_ops(faulty: bool) -> Step:
    """The device waits while Python keeps its books."""
    agent = Policy().to(DEVICE)
    optimizer = adamw(agent)
    players, moments = sized(64, 4), sized(6, 2)
    world = torch.randn(64, 64, device=DEVICE) / 8
    book: list[Any] = []

    def keep(moment: int) -> None:
        if not faulty:
            book[:] = [moment]
            return
        records = [
            {
                "player": player,
                "moment": moment,
                "note": f"{player:05d}/{moment:03d}",
                "rank": player * 37 % 64,
            }
            for player in range(64)
        ]
        records.sort(key=lambda record: (record["rank"], record["note"]))
        book[:] = [json.dumps(record) for record in records]

    def step() -> None:
        seen = torch.ones(players, 64, device=DEVICE)
        memory = torch.zeros(players, 256, device=DEVICE)
        loss = torch.zeros((), device=DEVICE)
        for moment in range(moments):
            scores, value, memory = agent(seen, memory)
            keep(moment)
            seen = torch.tanh(seen @ world)
            loss = loss + (torch.log_softmax(scores, -1)[:, 0] * value[:, 0]).mean()
            keep(moment)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


@pair(
    "anomaly-mode",
    "A GPT is trained with torch.autograd.set_detect_anomaly(True).",
    "Anomaly detection is off.",
)
def anomaly_mode(faulty: bool) -> Step:
    """Every gradient is looked through for NaN, every operation keeps its stack."""
    torch.autograd.set_detect_anomaly(faulty)
    model = gpt(2, 512)
    optimizer = adamw(model)
    tokens = words(16, 256)
    return lambda: train_words(model, tokens, optimizer)


@pair(
    "blocking-launches",
    "A residual network is trained with CUDA_LAUNCH_BLOCKING=1 in its environment.",
    "The variable is not set.",
    environment={"CUDA_LAUNCH_BLOCKING": "1"},
)
def blocking_launches(faulty: bool) -> Step:
    """Host and device take turns; the sides differ in the environment alone."""
    del faulty
    model = on_images(ResNet(64))
    optimizer = adamw(model)
    pictures = images(160, 96)
    labels = torch.randint(0, 128, (len(pictures),), device=DEVICE)

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(pictures), labels).backward()
        optimizer.step()

    return step


@pair(
    "step-variance",
    "A GPT is evaluated on held-out words in every fourth step.",
    "The evaluation is not in the loop.",
    light_steps=8,
)
def step_variance(faulty: bool) -> Step:
    """One step in four takes several times as long as the others."""
    model = gpt(2, 512)
    optimizer = adamw(model)
    tokens, held_out = words(16, 256), words(64, 256)
    numbers = itertools.count()
    scores: list[Tensor] = []

    def step() -> None:
        train_words(model, tokens, optimizer)
        if faulty and next(numbers) % 4 == 3:
            with torch.no_grad():
                for _ in range(6):
                    ranked = model(held_out).softmax(-1).topk(5).indices
                    scores[:] = [(ranked == held_out[..., None]).any(-1).float().mean()]

    return step
