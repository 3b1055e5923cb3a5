"""Training loops whose batches come from a buffer of experience or are made on the fly."""

from __future__ import annotations

import random
from typing import NamedTuple

import numpy as np
import torch
from benchmarks.faults.library_models import autocast, noise
from benchmarks.faults.models import DEVICE, UNet, adamw, on_images, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional


class Transition(NamedTuple):
    """One move of the agent."""

    seen: np.ndarray
    action: np.ndarray
    reward: float
    after: np.ndarray


def experience(count: int, seen: int, actions: int) -> list[Transition]:
    """A buffer of moves."""
    rng = np.random.default_rng(3)
    return [
        Transition(
            rng.standard_normal(seen, dtype=np.float32),
            rng.uniform(-1, 1, actions).astype(np.float32),
            float(rng.normal()),
            rng.standard_normal(seen, dtype=np.float32),
        )
        for _ in range(count)
    ]


def network(inside: int, outside: int, width: int = 256) -> nn.Module:
    """Three linear layers."""
    return nn.Sequential(
        nn.Linear(inside, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, outside)
    ).to(DEVICE)


def sampled(buffer: list[Transition], rows: int, *, stacked: bool) -> list[Tensor]:
    """A batch of moves on the device."""
    columns = list(zip(*random.sample(buffer, rows), strict=True))
    if stacked:
        return [torch.from_numpy(np.asarray(column, dtype=np.float32)).to(DEVICE) for column in columns]
    return [torch.tensor(column, dtype=torch.float32).to(DEVICE) for column in columns]


@pair(
    "tensor-from-a-list-of-arrays",
    "A SAC agent builds its batches by torch.tensor() of a tuple of numpy arrays.",
    "The arrays are stacked by numpy first, then torch.from_numpy().",
)
def sixth_walking_agent(faulty: bool) -> Step:
    """An agent with continuous actions learns from its experience."""
    seen, actions, rows = sized(111, 8), sized(8, 2), sized(256, 8)
    buffer = experience(sized(20_000, 64), seen, actions)
    actor = network(seen, 2 * actions)
    critics = nn.ModuleList(network(seen + actions, 1) for _ in range(2))
    targets = nn.ModuleList(network(seen + actions, 1) for _ in range(2))
    targets.load_state_dict(critics.state_dict())
    actor_optimizer, critic_optimizer = adamw(actor), adamw(critics)

    def acted(state: Tensor) -> tuple[Tensor, Tensor]:
        mean, spread = actor(state).chunk(2, -1)
        chosen = torch.distributions.Normal(mean, spread.clamp(-5, 2).exp(), validate_args=False)
        raw = chosen.rsample()
        squashed = torch.tanh(raw)
        chance = chosen.log_prob(raw) - torch.log(1 - squashed.pow(2) + 1e-6)
        return squashed, chance.sum(-1)

    def lower(judges: nn.ModuleList, state: Tensor, action: Tensor) -> Tensor:
        both = torch.cat([state, action], -1)
        return torch.minimum(judges[0](both), judges[1](both)).squeeze(-1)

    def step() -> None:
        state, action, reward, after = sampled(buffer, rows, stacked=not faulty)
        with torch.no_grad():
            next_action, chance = acted(after)
            goal = reward + 0.99 * (lower(targets, after, next_action) - 0.2 * chance)
        both = torch.cat([state, action], -1)
        critic_loss = torch.stack(
            [functional.mse_loss(critic(both).squeeze(-1), goal) for critic in critics]
        ).sum()
        critic_optimizer.zero_grad()
        critic_loss.backward()
        critic_optimizer.step()
        fresh, chance = acted(state)
        actor_loss = (0.2 * chance - lower(critics, state, fresh)).mean()
        actor_optimizer.zero_grad()
        actor_loss.backward()
        actor_optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(list(targets.parameters()), list(critics.parameters()), 0.005)

    return step


@pair(
    "noise-drawn-on-the-cpu",
    "A diffusion model is trained with noise = torch.randn(images.shape).to(device).",
    "torch.randn_like(images).",
)
def sixth_denoiser(faulty: bool) -> Step:
    """A U-shaped network learns to take noise away."""
    rows, side = sized(64, 2), sized(128, 16)
    model = on_images(UNet(sized(64, 8)), dtype=torch.float32)
    optimizer = adamw(model)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda turn: min(1.0, (turn + 1) / 500))
    kept = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000, device=DEVICE), 0)
    angles = torch.exp(-torch.arange(32, device=DEVICE) / 4)
    pictures = noise(rows, 3, side, side, dtype=torch.float32)
    running = torch.zeros((), device=DEVICE)

    def step() -> None:
        if faulty:
            added = torch.randn(pictures.shape).to(DEVICE)
            moment = torch.randint(0, 1000, (rows,)).to(DEVICE)
        else:
            added = torch.randn_like(pictures)
            moment = torch.randint(0, 1000, (rows,), device=DEVICE)
        share = kept[moment][:, None, None, None]
        noisy = share.sqrt() * pictures + (1 - share).sqrt() * added
        phase = moment[:, None] * angles
        with autocast():
            guess = model(noisy, torch.cat([phase.sin(), phase.cos()], -1))
            loss = functional.mse_loss(guess.float(), added)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        running.lerp_(loss.detach(), 0.02)

    return step
