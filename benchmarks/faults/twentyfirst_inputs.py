"""Programs that feed a model: rows of a table, pictures and the memory of a player."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from benchmarks.faults.library_models import autocast
from benchmarks.faults.models import DEVICE, ResNet, adamw, on_images, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset


def epochs(loader: DataLoader[Any]) -> Iterator[Any]:
    """Batches, one epoch after another."""
    while True:
        yield from loader


# ---------------------------------------------------------------- a table


class LoanTable(Dataset[tuple[Tensor, Tensor, Tensor]]):
    """Loans with numbers, categories and whether they were paid back."""

    def __init__(self, rows: int, numbers: int, categories: int) -> None:
        self.numeric = torch.randn(rows, numbers)
        self.categorical = torch.randint(0, 100, (rows, categories))
        self.target = torch.randint(0, 2, (rows,)).float()

    def __len__(self) -> int:
        return len(self.target)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, Tensor]:
        return self.numeric[index], self.categorical[index], self.target[index]


class DeviceBatches:
    """Shuffled batches of a table that lies on the device."""

    def __init__(self, table: LoanTable, size: int) -> None:
        self.columns = [part.to(DEVICE) for part in (table.numeric, table.categorical, table.target)]
        self.size = size

    def __iter__(self) -> Iterator[list[Tensor]]:
        count = self.columns[0].shape[0]
        while True:
            order = torch.randperm(count, device=DEVICE)
            for start in range(0, count - self.size + 1, self.size):
                picked = order[start : start + self.size]
                yield [column.index_select(0, picked) for column in self.columns]


class LoanNet(nn.Module):
    """Embeddings of the categories beside the numbers, then a residual network."""

    def __init__(self, numbers: int, categories: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100 * categories, 16)
        self.register_buffer("offsets", 100 * torch.arange(categories), persistent=False)
        self.first = nn.Linear(numbers + 16 * categories, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.BatchNorm1d(width), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
            for _ in range(sized(12, 2))
        )
        self.head = nn.Linear(width, 1)

    def forward(self, numeric: Tensor, categorical: Tensor) -> Tensor:
        """The logit of a loss."""
        named = self.embedding(categorical + self.offsets).flatten(1)
        x = self.first(torch.cat([numeric, named], 1))
        for block in self.blocks:
            x = x + block(x)
        return self.head(torch.relu(x)).squeeze(1)


@pair(
    "row-by-row-dataset-in-memory",
    "A table that fits into memory many times goes through a Dataset of single rows: each batch is 4096 "
    "calls of __getitem__ and three stacks of 4096 small tensors.",
    "The table lies on the device, and a batch is an index_select of each column.",
)
def loan_desk(faulty: bool) -> Step:
    """A bank learns which loans are paid back."""
    torch.set_float32_matmul_precision("high")
    numbers, categories, size = 40, 12, sized(4096, 16)
    table = LoanTable(sized(2_000_000, 200), numbers, categories)
    model = LoanNet(numbers, categories, sized(1024, 32)).to(DEVICE)
    optimizer = adamw(model, weight_decay=1e-5)
    if faulty:
        loader: DataLoader[Any] = DataLoader(
            table,
            size,
            shuffle=True,
            drop_last=True,
            num_workers=2,
            pin_memory=DEVICE == "cuda",
            persistent_workers=True,
        )
        batches: Iterator[Any] = epochs(loader)
    else:
        batches = iter(DeviceBatches(table, size))
    epoch_loss = torch.zeros((), device=DEVICE)

    def step() -> None:
        numeric, categorical, target = (part.to(DEVICE, non_blocking=True) for part in next(batches))
        loss = functional.binary_cross_entropy_with_logits(model(numeric, categorical), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        epoch_loss.add_(loss.detach())

    return step


# ---------------------------------------------------------------- pictures

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Ferns(Dataset[tuple[Tensor, int]]):
    """Pictures of ferns out of one packed array."""

    def __init__(self, packed: np.ndarray, kinds: np.ndarray, *, scaled: bool) -> None:
        self.packed = packed
        self.kinds = kinds
        self.scaled = scaled
        self.mean = torch.tensor(MEAN).view(3, 1, 1)
        self.std = torch.tensor(STD).view(3, 1, 1)

    def __len__(self) -> int:
        return len(self.packed)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        picture = torch.from_numpy(self.packed[index])
        if random.random() < 0.5:
            picture = picture.flip(1)
        if self.scaled:
            picture = picture.permute(2, 0, 1).contiguous().to(torch.float32).div(255)
            picture = (picture - self.mean) / self.std
        return picture, int(self.kinds[index])


class Normalize(nn.Module):
    """Bytes to numbers around zero, on the device."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", 255 * torch.tensor(MEAN).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("scale", 1 / (255 * torch.tensor(STD).view(1, 3, 1, 1)), persistent=False)

    def forward(self, pictures: Tensor) -> Tensor:
        """The batch as the network wants it."""
        return (pictures.permute(0, 3, 1, 2).float() - self.mean) * self.scale


@pair(
    "pictures-scaled-to-floats-by-the-loader",
    "The workers turn bytes into normalized floats, so that scaling, collating, sharing, pinning and copying "
    "all handle four times the bytes.",
    "The loader hands out bytes, and the device scales them.",
)
def fern_album(faulty: bool) -> Step:
    """Ferns are told apart on photographs."""
    side, count, size = sized(224, 32), sized(2048, 16), sized(256, 4)
    shape = (count, side, side, 3)
    packed = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    ferns = Ferns(packed, np.arange(count) % 100, scaled=faulty)
    loader: DataLoader[Any] = DataLoader(
        ferns,
        size,
        shuffle=True,
        drop_last=True,
        num_workers=sized(4, 1),
        pin_memory=DEVICE == "cuda",
        persistent_workers=True,
    )
    batches = epochs(loader)
    normalize = nn.Identity() if faulty else Normalize().to(DEVICE)
    model = on_images(ResNet(sized(48, 8), 1, 100), dtype=torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4, fused=True)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    seen = torch.zeros(2, device=DEVICE)

    def step() -> None:
        pictures, kinds = (part.to(DEVICE, non_blocking=True) for part in next(batches))
        pictures = normalize(pictures).contiguous(memory_format=torch.channels_last)
        with autocast():
            scores = model(pictures)
        loss = criterion(scores.float(), kinds)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen[0] += loss.detach()
        seen[1] += (scores.argmax(1) == kinds).float().mean()

    return step


# ---------------------------------------------------------------- a player


class Transition(NamedTuple):
    """What the player saw, did and got."""

    state: np.ndarray
    action: int
    reward: float
    next_state: np.ndarray
    done: bool


class ReplayMemory:
    """The last transitions, of which some are drawn."""

    def __init__(self, capacity: int) -> None:
        self.memory: deque[Transition] = deque(maxlen=capacity)

    def push(self, transition: Transition) -> None:
        """Keeps a transition."""
        self.memory.append(transition)

    def sample(self, count: int) -> list[Tensor]:
        """A batch on the device."""
        batch = Transition(*zip(*random.sample(self.memory, count), strict=True))
        state = torch.tensor(np.array(batch.state), dtype=torch.float32, device=DEVICE) / 255
        action = torch.tensor(batch.action, device=DEVICE)
        reward = torch.tensor(batch.reward, dtype=torch.float32, device=DEVICE)
        next_state = torch.tensor(np.array(batch.next_state), dtype=torch.float32, device=DEVICE) / 255
        done = torch.tensor(batch.done, dtype=torch.float32, device=DEVICE)
        return [state, action, reward, next_state, done]


class DeviceReplayMemory:
    """The same in a ring of tensors on the device."""

    def __init__(self, capacity: int, shape: tuple[int, ...]) -> None:
        self.states = torch.empty((2, capacity, *shape), dtype=torch.uint8, device=DEVICE)
        self.numbers = torch.empty((capacity, 3), device=DEVICE)
        self.capacity = capacity
        self.pushed = 0

    def push(self, transition: Transition) -> None:
        """Keeps a transition."""
        place = self.pushed % self.capacity
        self.states[0, place].copy_(torch.from_numpy(transition.state))
        self.states[1, place].copy_(torch.from_numpy(transition.next_state))
        numbers = [float(transition.action), transition.reward, float(transition.done)]
        self.numbers[place].copy_(torch.tensor(numbers))
        self.pushed += 1

    def sample(self, count: int) -> list[Tensor]:
        """A batch on the device."""
        places = torch.randint(0, min(self.pushed, self.capacity), (count,), device=DEVICE)
        action, reward, done = self.numbers.index_select(0, places).unbind(1)
        state, next_state = self.states[:, places].float().div_(255).unbind(0)
        return [state, action.long(), reward, next_state, done]


class QNetwork(nn.Sequential):
    """The network of the paper in Nature."""

    def __init__(self, actions: int) -> None:
        super().__init__(
            nn.Conv2d(4, 32, 8, 4),
            nn.ReLU(),
            nn.Conv2d(32, 64, 4, 2),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(64 * 7 * 7, 512),
            nn.ReLU(),
            nn.Linear(512, actions),
        )


class Pinball:
    """A game that shows noise."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(1)
        self.frames = self.rng.integers(0, 256, (4, 84, 84), dtype=np.uint8)

    def act(self, action: int) -> tuple[np.ndarray, float, bool]:
        """The next four frames, a reward and whether the ball is lost."""
        frame = self.rng.integers(0, 256, (1, 84, 84), dtype=np.uint8)
        self.frames = np.concatenate([self.frames[1:], frame])
        return self.frames, float(action == 0), bool(self.rng.random() < 0.01)


@pair(
    "replay-memory-of-python-objects",
    "Transitions lie in a deque; every batch is gathered by a loop, joined by np.array, made float on the "
    "host and copied from pageable memory.",
    "A ring of bytes on the device: drawing a batch is an index and a division there.",
)
def pinball_agent(faulty: bool) -> Step:
    """An agent learns pinball from frames by deep Q-learning."""
    actions, size, capacity = 6, sized(128, 4), sized(10_000, 20)
    game, online, target = Pinball(), QNetwork(actions).to(DEVICE), QNetwork(actions).to(DEVICE)
    target.load_state_dict(online.state_dict())
    optimizer = torch.optim.Adam(online.parameters(), lr=1e-4, fused=True)
    memory: Any = ReplayMemory(capacity) if faulty else DeviceReplayMemory(capacity, (4, 84, 84))
    state = game.frames

    def play() -> None:
        nonlocal state
        with torch.no_grad():
            seen = torch.from_numpy(state).to(DEVICE).unsqueeze(0).float() / 255
            action = (
                int(online(seen).argmax(1).item()) if random.random() > 0.05 else random.randrange(actions)
            )
        next_state, reward, done = game.act(action)
        memory.push(Transition(state, action, reward, next_state, done))
        state = next_state

    def step() -> None:
        for _ in range(4):
            play()
        seen, action, reward, then, done = memory.sample(size)
        value = online(seen).gather(1, action[:, None]).squeeze(1)
        with torch.no_grad():
            best = target(then).amax(1)
        loss = functional.smooth_l1_loss(value, reward + 0.99 * (1 - done) * best)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    for _ in range(sized(4000, 10)):
        past, (frames, reward, done) = game.frames, game.act(random.randrange(actions))
        memory.push(Transition(past, 0, reward, frames, done))
    state = game.frames
    return step
