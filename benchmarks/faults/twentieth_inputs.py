"""What models are fed with: windows of a series, moments an arm remembers and columns of a table."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from benchmarks.faults.library_models import autocast, tokens
from benchmarks.faults.models import DEVICE, adamw, pinned, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional


class LoadNet(nn.Module):
    """Looks at patches of a window of past hours and says the hours to come."""

    def __init__(self, channels: int, past: int, ahead: int, width: int, layers: int) -> None:
        super().__init__()
        self.patch = nn.Conv1d(channels, width, 24, stride=24)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.feeds = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(layers)
        )
        self.last = nn.Linear(width * (past // 24), ahead)

    def forward(self, windows: Tensor) -> Tensor:
        """The first channel of the hours to come, from windows of hours and channels."""
        centre = windows.mean(1, keepdim=True)
        spread = windows.std(1, keepdim=True) + 1e-5
        x = self.patch(((windows - centre) / spread).transpose(1, 2)).transpose(1, 2)
        for norm, feed in zip(self.norms, self.feeds, strict=True):
            x = x + feed(norm(x))
        return self.last(x.flatten(1)) * spread[:, 0, :1] + centre[:, 0, :1]


class Stretches:
    """Stretches of the history of substations, cut into windows that overlap."""

    def __init__(self, stations: int, past: int, ahead: int, turns: int) -> None:
        rng = np.random.default_rng(29)
        self.past, self.ahead, self.turns = past, ahead, turns
        hours = past + ahead + turns - 1
        self.history = rng.standard_normal((stations, hours, 4)).astype(np.float32)
        self.ready = pinned(torch.from_numpy(self.history))

    def cut_by_host(self) -> tuple[Tensor, Tensor]:
        """Windows and what follows them, cut by NumPy and then copied."""
        past, ahead = self.past, self.ahead
        windows = np.stack([self.history[:, turn : turn + past] for turn in range(self.turns)], 1)
        follow = np.stack(
            [self.history[:, turn + past : turn + past + ahead, 0] for turn in range(self.turns)], 1
        )
        x = torch.from_numpy(windows.reshape(-1, past, 4)).to(DEVICE)
        return x, torch.from_numpy(follow.reshape(-1, ahead)).to(DEVICE)

    def cut_by_device(self) -> tuple[Tensor, Tensor]:
        """The same, of a stretch that is copied once and cut where it is needed."""
        history = self.ready.to(DEVICE, non_blocking=True)
        windows = history[:, : self.past + self.turns - 1].unfold(1, self.past, 1)
        follow = history[:, self.past :, 0].unfold(1, self.ahead, 1)
        return windows.transpose(2, 3).reshape(-1, self.past, 4), follow.reshape(-1, self.ahead)


@pair(
    "overlapping-windows-copied-from-the-host",
    "Windows that overlap by all but an hour are cut by NumPy and copied: 120 times the data there is.",
    "The stretch is copied from pinned memory and unfolded on the device.",
)
def twentieth_grid_load(faulty: bool) -> Step:
    """The load of substations is foretold a day ahead."""
    torch.manual_seed(29)
    past, ahead = sized(336, 48), sized(24, 4)
    data = Stretches(sized(64, 3), past, ahead, sized(200, 5))
    model = LoadNet(4, past, ahead, sized(256, 16), sized(8, 1)).to(DEVICE)
    optimizer = adamw(model)
    cut = data.cut_by_host if faulty else data.cut_by_device
    error = torch.zeros((), device=DEVICE)

    def step() -> Tensor:
        windows, follow = cut()
        with autocast():
            said = model(windows)
        loss = functional.huber_loss(said.float(), follow)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        error.lerp_((said.detach() - follow).abs().mean(), 0.05)
        return loss.detach()

    return step


class Moment(NamedTuple):
    """What the arm saw and did, and what came of it."""

    state: Tensor
    action: Tensor
    reward: Tensor
    after: Tensor
    alive: Tensor


class Memory:
    """A memory of single moments."""

    def __init__(self, moments: Moment) -> None:
        self.moments = [Moment(*parts) for parts in zip(*moments, strict=True)]

    def sample(self, picks: Tensor) -> Moment:
        """A batch of the moments picked."""
        chosen = [self.moments[pick] for pick in picks.tolist()]
        return Moment(*(torch.stack(parts) for parts in zip(*chosen, strict=True)))


class Ring:
    """A memory that holds each kind of thing in one tensor."""

    def __init__(self, moments: Moment) -> None:
        self.moments = moments

    def sample(self, picks: Tensor) -> Moment:
        """A batch of the moments picked."""
        index = pinned(picks).to(DEVICE, non_blocking=True)
        return Moment(*(part.index_select(0, index) for part in self.moments))


def arm_critic(seen: int, width: int, actions: int) -> nn.Module:
    """The worth of each action."""
    return nn.Sequential(
        nn.Linear(seen, width),
        nn.LayerNorm(width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.LayerNorm(width),
        nn.ReLU(),
        nn.Linear(width, actions),
    ).to(DEVICE)


@pair(
    "replay-memory-of-small-tensors",
    "The replay memory is a list of small tensors on the device; a batch stacks 5 x 256 of them.",
    "One preallocated tensor for each field, and index_select.",
)
def twentieth_bin_picker(faulty: bool) -> Step:
    """An arm learns to pick parts from a bin: six updates of a double Q network in each step."""
    torch.manual_seed(30)
    held, rows, seen, actions = sized(20_000, 100), sized(256, 8), sized(64, 8), sized(18, 4)
    moments = Moment(
        torch.randn(held, seen, device=DEVICE),
        tokens(actions, held),
        torch.randn(held, device=DEVICE),
        torch.randn(held, seen, device=DEVICE),
        (torch.rand(held, device=DEVICE) > 0.02).float(),
    )
    memory = Memory(moments) if faulty else Ring(moments)
    online, target = arm_critic(seen, sized(1024, 16), actions), arm_critic(seen, sized(1024, 16), actions)
    target.load_state_dict(online.state_dict())
    optimizer = adamw(online)
    slow, fast = list(target.parameters()), list(online.parameters())
    chooser = torch.Generator().manual_seed(31)

    def update() -> Tensor:
        batch = memory.sample(torch.randint(0, held, (rows,), generator=chooser))
        with torch.no_grad():
            best = online(batch.after).argmax(-1, keepdim=True)
            worth = target(batch.after).gather(1, best).squeeze(1)
            wanted = batch.reward + 0.99 * batch.alive * worth
        said = online(batch.state).gather(1, batch.action[:, None]).squeeze(1)
        loss = functional.smooth_l1_loss(said, wanted)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            torch._foreach_lerp_(slow, fast, 0.005)
        return loss.detach()

    def step() -> Tensor:
        return torch.stack([update() for _ in range(6)]).mean()

    return step


class ColumnsApart(nn.Module):
    """A table of vectors for each column."""

    def __init__(self, vectors: Tensor, sizes: list[int]) -> None:
        super().__init__()
        self.tables = nn.ModuleList(
            nn.Embedding.from_pretrained(part.clone(), freeze=False) for part in vectors.split(sizes)
        )

    def forward(self, columns: Tensor) -> Tensor:
        """The vectors of all columns, side by side."""
        return torch.cat([table(columns[:, place]) for place, table in enumerate(self.tables)], -1)


class ColumnsTogether(nn.Module):
    """One table for all columns, each of which begins where the last one ended."""

    def __init__(self, vectors: Tensor, sizes: list[int]) -> None:
        super().__init__()
        self.table = nn.Embedding.from_pretrained(vectors, freeze=False)
        begins = torch.tensor([0, *sizes[:-1]], device=vectors.device).cumsum(0)
        self.register_buffer("begins", begins)

    def forward(self, columns: Tensor) -> Tensor:
        """The vectors of all columns, side by side."""
        return self.table(columns + self.begins).flatten(1)


@pair(
    "a-small-table-for-every-column",
    "Two hundred categorical columns each have an embedding of their own, looked up in a loop.",
    "One table with an offset for each column, and one lookup.",
)
def twentieth_coupon_ranker(faulty: bool) -> Step:
    """Shoppers are shown the coupons that they will use."""
    torch.manual_seed(32)
    columns, rows, wide = sized(200, 6), sized(16_384, 8), 8
    sizes = torch.randint(50, sized(4000, 90), (columns,)).tolist()
    vectors = 0.01 * torch.randn(sum(sizes), wide, device=DEVICE)
    table = ColumnsApart(vectors, sizes) if faulty else ColumnsTogether(vectors, sizes)
    width = sized(1024, 32)
    scorer = nn.Sequential(
        nn.Linear(columns * wide, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)
    )
    model = nn.Sequential(table, scorer).to(DEVICE)
    optimizer = adamw(model)
    shoppers = pinned(torch.stack([torch.randint(0, size, (rows,)) for size in sizes], 1))
    used = pinned((torch.rand(rows) < 0.1).float())

    def step() -> Tensor:
        batch = shoppers.to(DEVICE, non_blocking=True)
        labels = used.to(DEVICE, non_blocking=True)
        with autocast():
            scores = model(batch).squeeze(-1)
        loss = functional.binary_cross_entropy_with_logits(scores.float(), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step
