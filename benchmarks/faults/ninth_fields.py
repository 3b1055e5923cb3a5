"""Training loops of other fields: series, made pictures, instructions and agents."""

from __future__ import annotations

import gc
import math

import numpy as np
import torch
from benchmarks.faults.library_models import autocast, llama, noise, tokens
from benchmarks.faults.models import DEVICE, UNet, adamw, on_images, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional


class SeriesAttention(nn.Module):
    """Every hour looks at the hours before it."""

    def __init__(self, width: int, heads: int, *, fused: bool) -> None:
        super().__init__()
        self.heads, self.fused, self.rate = heads, fused, 0.1
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def split(self, x: Tensor) -> Tensor:
        """The heads apart from each other."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        """Mixes the hours."""
        query, key, value = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        rate = self.rate if self.training else 0.0
        if self.fused:
            mixed = functional.scaled_dot_product_attention(query, key, value, dropout_p=rate, is_causal=True)
        else:
            scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(query.shape[-1])
            scores = scores.masked_fill(seen == 0, -1e9)
            weights = functional.dropout(functional.softmax(scores, dim=-1), rate)
            mixed = torch.matmul(weights, value)
        return self.out(mixed.transpose(1, 2).flatten(2))


class SeriesBlock(nn.Module):
    """One layer of the forecaster."""

    def __init__(self, width: int, heads: int, *, fused: bool) -> None:
        super().__init__()
        self.attention = SeriesAttention(width, heads, fused=fused)
        self.inner = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        """Attention, then two linear layers."""
        x = x + self.attention(self.first(x), seen)
        return x + self.inner(self.second(x))


class Forecaster(nn.Module):
    """Tells the next hours of the load of a power grid."""

    def __init__(self, channels: int, width: int, layers: int, length: int, *, fused: bool) -> None:
        super().__init__()
        self.inside = nn.Linear(channels, width)
        self.place = nn.Parameter(0.02 * torch.randn(length, width))
        heads = max(1, width // 64)
        self.blocks = nn.ModuleList(SeriesBlock(width, heads, fused=fused) for _ in range(layers))
        self.outside = nn.Linear(width, channels)
        self.register_buffer("seen", torch.ones(length, length).tril())

    def forward(self, series: Tensor) -> Tensor:
        """The hour after each hour."""
        x = self.inside(series) + self.place
        for block in self.blocks:
            x = block(x, self.seen)
        return self.outside(x)


@pair(
    "attention-by-matrix-products",
    "Attention over eight weeks of hours is written by hand: products, mask, softmax, dropout, product.",
    "functional.scaled_dot_product_attention(is_causal=True).",
)
def ninth_load_forecaster(faulty: bool) -> Step:
    """A transformer learns the load of a power grid, hour by hour."""
    length, channels, rows = sized(1344, 24), 21, sized(16, 2)
    model = Forecaster(channels, sized(512, 64), sized(4, 1), length, fused=not faulty).to(DEVICE)
    optimizer = adamw(model, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=100_000)
    history = noise(8, rows, length + 1, channels, dtype=torch.float32)
    turn = 0

    def step() -> None:
        nonlocal turn
        turn = (turn + 1) % len(history)
        window = history[turn]
        middle, spread = window.mean(1, keepdim=True), window.std(1, keepdim=True) + 1e-5
        window = (window - middle) / spread
        with autocast():
            guess = model(window[:, :-1])
        loss = functional.huber_loss(guess.float(), window[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()

    return step


@pair(
    "memory-given-back-every-step",
    "gc.collect() and torch.cuda.empty_cache() at the end of every step, against running out of memory.",
    "Neither: the allocator keeps its blocks for the next step.",
)
def ninth_texture_painter(faulty: bool) -> Step:
    """A diffusion model learns to paint textures."""
    rows, side = sized(32, 2), sized(128, 16)
    model = on_images(UNet(sized(96, 8)), dtype=torch.float32)
    average = on_images(UNet(sized(96, 8)), dtype=torch.float32).requires_grad_(False)
    average.load_state_dict(model.state_dict())
    optimizer = adamw(model)
    kept = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000, device=DEVICE), 0)
    angles = torch.exp(-torch.arange(32, device=DEVICE) / 4)
    textures = torch.randint(0, 256, (4 * rows, 3, side, side), dtype=torch.uint8, device=DEVICE)

    def noisy(clean: Tensor, added: Tensor, moment: Tensor) -> Tensor:
        share = kept[moment][:, None, None, None]
        return share.sqrt() * clean + (1 - share).sqrt() * added

    def step() -> None:
        chosen = torch.randint(0, len(textures), (rows,), device=DEVICE)
        clean = (textures[chosen].float() / 127.5 - 1).contiguous(memory_format=torch.channels_last)
        added = torch.randn_like(clean)
        moment = torch.randint(0, 1000, (rows,), device=DEVICE)
        phase = moment[:, None] * angles
        with autocast():
            guess = model(noisy(clean, added, moment), torch.cat([phase.sin(), phase.cos()], -1))
        loss = functional.mse_loss(guess.float(), added)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 0.001)
        if faulty:
            del clean, added, guess, loss
            gc.collect()
            torch.cuda.empty_cache()

    return step


@pair(
    "micro-batches-of-one",
    "A batch of eight is trained as eight micro-batches of one text whose gradients are accumulated.",
    "All eight in one pass: they fit in memory many times over.",
)
def ninth_recipe_tuner(faulty: bool) -> Step:
    """A language model is tuned on blocks of recipes."""
    rows, length = sized(8, 4), sized(256, 16)
    micro = 1 if faulty else rows
    parts = rows // micro
    model = llama(6, 1024).train()
    optimizer = adamw(model, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda turn: min(1.0, (turn + 1) / 100))
    corpus = tokens(128, 64 * rows, length)
    running = torch.zeros((), device=DEVICE)
    turn = 0

    def step() -> None:
        nonlocal turn
        turn = (turn + 1) % 64
        batch = corpus[turn * rows : (turn + 1) * rows]
        for block in batch.split(micro):
            loss = model(input_ids=block, labels=block).loss / parts
            loss.backward()
            running.add_(loss.detach())
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()

    return step


class Lander(nn.Module):
    """A policy and its value."""

    def __init__(self, seen: int, actions: int, width: int = 256) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(seen, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.act, self.value = nn.Linear(width, actions), nn.Linear(width, 1)

    def forward(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        """Logarithms of the chances of the actions, and the value."""
        inner = self.body(seen)
        return functional.log_softmax(self.act(inner), -1), self.value(inner).squeeze(-1)


def advantages_of(rewards: Tensor, values: Tensor, ended: Tensor) -> Tensor:
    """Generalised advantages of a rollout whose first dimension is time."""
    found = torch.zeros_like(rewards)
    last = torch.zeros_like(rewards[0])
    for moment in reversed(range(len(rewards))):
        going_on = 1.0 - ended[moment]
        surprise = rewards[moment] + 0.99 * values[moment + 1] * going_on - values[moment]
        last = surprise + 0.99 * 0.95 * going_on * last
        found[moment] = last
    return found


def advantages_by_numpy(rewards: Tensor, values: Tensor, ended: Tensor) -> Tensor:
    """The same numbers."""
    expected = values.cpu().numpy()
    going_on = 1.0 - ended.cpu().numpy()
    surprise = rewards.cpu().numpy() + 0.99 * expected[1:] * going_on - expected[:-1]
    kept = 0.99 * 0.95 * going_on
    found = np.zeros_like(surprise)
    last = np.zeros_like(surprise[0])
    for moment in reversed(range(len(surprise))):
        last = surprise[moment] + kept[moment] * last
        found[moment] = last
    return torch.from_numpy(found).to(rewards.device)


@pair(
    "python-loop-over-time-on-the-device",
    "PPO's advantages are computed by a loop over 256 moments of tensors on the device.",
    "The rollout's rewards are copied to the CPU once and the loop runs in numpy.",
)
def ninth_lander_agent(faulty: bool) -> Step:
    """The learner of PPO is given a rollout of many landers and improves their policy."""
    moments, landers, seen, actions = sized(256, 8), sized(64, 4), 8, 4
    model = Lander(seen, actions).to(DEVICE)
    optimizer = adamw(model, eps=1e-5)
    states = noise(moments + 1, landers, seen, dtype=torch.float32)
    taken = tokens(actions, moments, landers)
    rewards = noise(moments, landers, dtype=torch.float32)
    ended = (torch.rand(moments, landers, device=DEVICE) < 0.01).float()

    def improve(state: Tensor, action: Tensor, before: Tensor, gain: Tensor, goal: Tensor) -> None:
        chances, value = model(state)
        chance = chances.gather(-1, action[:, None]).squeeze(-1)
        ratio = (chance - before).exp()
        gain = (gain - gain.mean()) / (gain.std() + 1e-8)
        policy_loss = -torch.minimum(gain * ratio, gain * ratio.clamp(0.8, 1.2)).mean()
        surprise = -(chances.exp() * chances).sum(-1).mean()
        loss = policy_loss + 0.5 * functional.mse_loss(value, goal) - 0.01 * surprise
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()

    def step() -> None:
        with torch.no_grad():
            chances, values = model(states)
            before = chances[:-1].gather(-1, taken[..., None]).squeeze(-1)
            gain = (advantages_of if faulty else advantages_by_numpy)(rewards, values, ended)
        columns = [part.flatten(0, 1) for part in (states[:-1], taken, before, gain, gain + values[:-1])]
        for _ in range(2):
            order = torch.randperm(moments * landers, device=DEVICE)
            for chosen in order.chunk(4):
                improve(*(column[chosen] for column in columns))

    return step
