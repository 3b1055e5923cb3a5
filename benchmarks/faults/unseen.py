"""Programs that no rule was tuned to: those that wait for the host."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from benchmarks.faults.models import DEVICE, HALF, adamw, graphed, on_images, pinned, sized
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


@pair(
    "scalar-reads",
    "A vision transformer clips its gradients with a norm that is added up in Python, tensor by tensor.",
    "clip_grad_norm_ leaves the norm on the device.",
)
def unseen_clip_by_item(faulty: bool) -> Step:
    """A read for every tensor, between backward and the optimizer."""
    model = vit(6, 384)
    optimizer = adamw(model)
    pictures, classes = patches(96, 196)

    def clip(most: float) -> None:
        if not faulty:
            nn.utils.clip_grad_norm_(model.parameters(), most)
            return
        norm = sum(weight.grad.norm().item() ** 2 for weight in model.parameters()) ** 0.5
        if norm > most:
            torch._foreach_mul_([weight.grad for weight in model.parameters()], most / norm)

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(pictures), classes).backward()
        clip(1.0)
        optimizer.step()

    return step


def generator(width: int) -> nn.Module:
    """Pictures of 64 pixels from noise of one."""
    parts: list[nn.Module] = [nn.ConvTranspose2d(64, 8 * width, 4)]
    for inside, outside in ((8, 4), (4, 2), (2, 1)):
        parts += [nn.BatchNorm2d(inside * width), nn.ReLU()]
        parts += [nn.ConvTranspose2d(inside * width, outside * width, 4, 2, 1)]
    parts += [nn.BatchNorm2d(width), nn.ReLU(), nn.ConvTranspose2d(width, 3, 4, 2, 1), nn.Tanh()]
    return on_images(nn.Sequential(*parts))


def critic(width: int) -> nn.Module:
    """One number for a picture of 64 pixels."""
    parts: list[nn.Module] = [nn.Conv2d(3, width, 4, 2, 1), nn.LeakyReLU(0.2)]
    for inside, outside in ((1, 2), (2, 4), (4, 8)):
        parts += [nn.Conv2d(inside * width, outside * width, 4, 2, 1), nn.LeakyReLU(0.2)]
    return on_images(nn.Sequential(*parts, nn.Conv2d(8 * width, 1, 4)))


@pair(
    "scalar-reads",
    "Both sides of a Wasserstein GAN are updated only `if loss > limit`, asked after backward.",
    "Gradients are multiplied by the answer on the device.",
    kind="fair",
)
def unseen_gan_if_loss(faulty: bool) -> Step:
    """The host waits for backward, and the updates that follow are launched late."""
    width, rows = sized(64, 4), sized(128, 2)
    sides = generator(width), critic(width)
    ways = [torch.optim.RMSprop(side.parameters(), lr=1e-5) for side in sides]
    means = [[weight.detach().clone() for weight in side.parameters()] for side in sides]
    real = noise(rows, 3, 64, 64).to(memory_format=torch.channels_last)

    def update(number: int, loss: Tensor) -> None:
        loss.backward()
        weights = list(sides[number].parameters())
        if not faulty:
            asked = (loss.detach() > -1e9).to(HALF)
            torch._foreach_mul_([weight.grad for weight in weights], asked)
        elif loss <= -1e9:
            return
        ways[number].step()
        with torch.no_grad():
            for weight, mean in zip(weights, means[number], strict=True):
                weight.clamp_(-0.05, 0.05)
                mean.lerp_(weight, 0.01)

    def step() -> None:
        made = sides[0](noise(rows, 64, 1, 1))
        ways[1].zero_grad()
        update(1, sides[1](made.detach()).mean() - sides[1](real).mean())
        ways[0].zero_grad()
        update(0, -sides[1](made).mean())

    return step


@pair(
    "implicit-syncs",
    "A speech network takes the scores of every batch to the CPU for its accuracy, before backward.",
    "Hits are counted on the device.",
)
def unseen_accuracy_on_cpu(faulty: bool) -> Step:
    """A metric as libraries keep it: the device waits until the CPU has counted."""
    width, rows, length, count = sized(1024, 16), sized(64, 2), sized(128, 16), 64
    parts: list[nn.Module] = [nn.Conv1d(80, width, 5, padding=2), nn.ReLU()]
    for _ in range(sized(4, 1)):
        parts += [nn.Conv1d(width, width, 5, padding=2), nn.ReLU()]
    model = nn.Sequential(*parts, nn.Conv1d(width, count, 1)).to(DEVICE, HALF)
    optimizer = adamw(model)
    sounds, said = noise(rows, 80, length), labels(count, rows, length)
    device = "cpu" if faulty else DEVICE
    hits, confused = torch.zeros(5, device=device), torch.zeros(count * count, device=device)
    ones = torch.ones(rows * length, device=device)

    def note(scores: Tensor, right: Tensor) -> None:
        scores, right = scores.to(device), right.to(device)
        best = scores.float().softmax(1).transpose(1, 2).flatten(0, 1).topk(5).indices
        hits.add_((best == right.reshape(-1, 1)).float().sum(0).cumsum(0))
        confused.scatter_add_(0, right.flatten() * count + best[:, 0], ones)

    def step() -> None:
        optimizer.zero_grad()
        scores = model(sounds)
        note(scores.detach(), said)
        functional.cross_entropy(scores, said).backward()
        optimizer.step()

    return step


@pair(
    "implicit-syncs",
    "A recommender (DLRM) looks up the unique ids of each of its tables, found by torch.unique.",
    "All ids are looked up as they come.",
)
def unseen_unique_ids(faulty: bool) -> Step:
    """The number of unique ids has to be read before their rows can be taken."""
    tables, rows, width = sized(12, 3), sized(8192, 16), 64
    held = nn.ModuleList(nn.Embedding(20_000, width) for _ in range(tables)).to(DEVICE)
    top = tower(tables * width, 512, 256, 1)
    optimizer = torch.optim.SGD([*held.parameters(), *top.parameters()], lr=1e-3, fused=True)
    ids, clicked = labels(20_000, tables, rows), labels(2, rows).to(HALF)

    def look(table: nn.Module, wanted: Tensor) -> Tensor:
        if not faulty:
            return table(wanted)
        unique, places = torch.unique(wanted, return_inverse=True)
        return table(unique)[places]

    def loss_of() -> Tensor:
        rows_of = [look(table, wanted) for table, wanted in zip(held, ids, strict=True)]
        score = top(torch.cat(rows_of, 1).to(HALF))[:, 0]
        return functional.binary_cross_entropy_with_logits(score, clicked)

    return training(loss_of, optimizer)


class Timer:
    """Times parts of the program by events, and waits for each."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Adds the time inside to that of this name."""
        if DEVICE == "cpu":
            start = time.perf_counter()
            yield
            self.spent[name] = self.spent.get(name, 0.0) + time.perf_counter() - start
            return
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        yield
        last.record()
        last.synchronize()
        self.spent[name] = self.spent.get(name, 0.0) + first.elapsed_time(last)


@pair(
    "launch-bound",
    "A network learns Burgers' equation from its own first and second derivatives, eagerly.",
    "The step is captured in a CUDA graph.",
)
def unseen_pinn(faulty: bool) -> Step:
    """Backward of backward: hundreds of kernels on a few thousand points."""
    width, count = sized(64, 16), sized(4096, 32)
    parts: list[nn.Module] = [nn.Linear(2, width), nn.Tanh()]
    for _ in range(4):
        parts += [nn.Linear(width, width), nn.Tanh()]
    model = nn.Sequential(*parts, nn.Linear(width, 1)).to(DEVICE)
    optimizer = adamw(model, capturable=DEVICE == "cuda")
    places = torch.rand(count, 2, device=DEVICE, requires_grad=True)
    weights = list(model.parameters())

    def slope(of: Tensor) -> Tensor:
        return torch.autograd.grad(of.sum(), places, create_graph=True)[0]

    def step() -> None:
        optimizer.zero_grad()
        value = model(places)
        first = slope(value)
        second = slope(first[:, 0])
        wrong = first[:, 1] + value[:, 0] * first[:, 0] - 0.003 * second[:, 0]
        wrong.square().mean().backward(inputs=weights)
        optimizer.step()

    return step if faulty else graphed(step)


@pair(
    "repeated-calls",
    "A speech network runs its recurrent layer cell by cell, in a loop over 48 moments.",
    "torch.nn.GRU runs all moments in one call.",
)
def unseen_gru_cells(faulty: bool) -> Step:
    """A loop over time in Python, forward and backward."""
    rows, moments, width = sized(64, 2), sized(48, 4), sized(256, 16)
    layer = nn.GRU(80, width, batch_first=False).to(DEVICE, FP16)
    head = nn.Linear(width, 40).to(DEVICE, FP16)
    optimizer = torch.optim.SGD([*layer.parameters(), *head.parameters()], lr=1e-4, fused=True)
    sounds, said = noise(moments, rows, 80, dtype=FP16), labels(40, moments * rows)

    def hidden() -> Tensor:
        if not faulty:
            return layer(sounds)[0]
        weights = layer.weight_ih_l0, layer.weight_hh_l0, layer.bias_ih_l0, layer.bias_hh_l0
        state = torch.zeros(rows, width, device=DEVICE, dtype=FP16)
        states = []
        for sound in sounds:
            state = torch.gru_cell(sound, state, *weights)
            states.append(state)
        return torch.stack(states)

    return training(lambda: functional.cross_entropy(head(hidden()).flatten(0, 1).float(), said), optimizer)


class SumTree:
    """Priorities of a memory for replay, in a list."""

    def __init__(self, leaves: int) -> None:
        self.leaves = leaves
        self.sums = [0.0] * leaves + [1.0 + number % 7 for number in range(leaves)]
        for number in range(leaves - 1, 0, -1):
            self.sums[number] = self.sums[2 * number] + self.sums[2 * number + 1]

    def find(self, place: float) -> int:
        """The leaf in whose part of the sum the place lies."""
        number = 1
        while number < self.leaves:
            number *= 2
            if place > self.sums[number]:
                place -= self.sums[number]
                number += 1
        return number - self.leaves

    def change(self, leaf: int, priority: float) -> None:
        """Sets a priority, and all sums above it."""
        number = leaf + self.leaves
        difference = priority - self.sums[number]
        while number:
            self.sums[number] += difference
            number //= 2


@pair(
    "python-between-ops",
    "A Q-learner draws its batch from a sum tree that is walked in Python, leaf by leaf.",
    "The device draws, by torch.multinomial.",
)
def unseen_sum_tree(faulty: bool) -> Step:
    """Prioritised replay: the device waits while Python walks."""
    leaves, rows = sized(8192, 64), sized(512, 8)
    seen, after, won = noise(leaves, 128), noise(leaves, 128), noise(leaves)
    done = labels(16, leaves)
    learner, target = tower(128, 512, 512, 16), tower(128, 512, 512, 16)
    optimizer = adamw(learner)
    tree, chance = SumTree(leaves), random.Random(1)
    priorities = torch.tensor([1.0 + number % 7 for number in range(leaves)], device=DEVICE)

    def draw() -> Tensor:
        if not faulty:
            return torch.multinomial(priorities, rows)
        part = tree.sums[1] / rows
        drawn = [tree.find((number + chance.random()) * part) for number in range(rows)]
        for number, leaf in enumerate(drawn):
            tree.change(leaf, 1.0 + number % 7)
        return pinned(torch.tensor(drawn)).to(DEVICE, non_blocking=True)

    def loss_of() -> Tensor:
        rows_now = draw()
        with torch.no_grad():
            wanted = won[rows_now] + 0.99 * target(after[rows_now]).amax(-1)
        values = learner(seen[rows_now]).gather(1, done[rows_now, None])[:, 0]
        return functional.smooth_l1_loss(values, wanted)

    return training(loss_of, optimizer)
