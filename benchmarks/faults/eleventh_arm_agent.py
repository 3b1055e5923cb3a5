"""An agent that moves robot arms and learns from what a simulator on the device returns."""

from __future__ import annotations

import torch
from benchmarks.faults.library_models import noise
from benchmarks.faults.models import DEVICE, adamw, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn

SEEN, MOVES = 48, 7
DISCOUNT, SMOOTHING = 0.99, 0.95


class Agent(nn.Module):
    """What to do, and what is expected to come of it."""

    def __init__(self, width: int = 512) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(SEEN, width), nn.ELU(), nn.Linear(width, width), nn.ELU())
        self.mean = nn.Linear(width, MOVES)
        self.value = nn.Linear(width, 1)
        self.spread = nn.Parameter(torch.zeros(MOVES))

    def forward(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        """Means of the moves, and the value."""
        x = self.body(seen)
        return self.mean(x), self.value(x).squeeze(-1)

    def chance(self, mean: Tensor, moves: Tensor) -> Tensor:
        """Logarithm of the chance of moves, but for a constant."""
        return (-0.5 * ((moves - mean) / self.spread.exp()).square() - self.spread).sum(-1)


def advantages_by_time(surprise: Tensor, going_on: Tensor) -> Tensor:
    """Sums of the surprises to come, from the last moment to the first."""
    found = torch.zeros_like(surprise)
    running = torch.zeros_like(surprise[0])
    for moment in reversed(range(surprise.shape[0])):
        running = surprise[moment] + DISCOUNT * SMOOTHING * going_on[moment] * running
        found[moment] = running
    return found


def advantages_by_doubling(surprise: Tensor, going_on: Tensor) -> Tensor:
    """Sums of the surprises to come, over spans twice as long in every turn."""
    found, factor = surprise, DISCOUNT * SMOOTHING * going_on
    span = 1
    while span < surprise.shape[0]:
        later = torch.zeros_like(found)
        later[:-span] = found[span:]
        weight = torch.zeros_like(factor)
        weight[:-span] = factor[span:]
        found, factor = torch.addcmul(found, factor, later), factor * weight
        span *= 2
    return found


@pair(
    "recurrence-over-time-launched-from-python",
    "The advantages are computed by a Python loop over 512 moments on the device, a few tiny kernels each.",
    "Spans are doubled instead: nine turns over all moments at once.",
)
def eleventh_arm_agent(faulty: bool) -> Step:
    """An iteration of PPO: advantages, then some passes over the moments in parts."""
    moments, arms = sized(512, 8), sized(512, 4)
    model = Agent().to(DEVICE)
    optimizer = adamw(model)
    seen = noise(moments, arms, SEEN, dtype=torch.float32)
    moves = noise(moments, arms, MOVES, dtype=torch.float32)
    rewards = noise(moments, arms, dtype=torch.float32)
    going_on = (torch.rand(moments, arms, device=DEVICE) > 0.01).float()
    advantages_of = advantages_by_time if faulty else advantages_by_doubling

    def step() -> None:
        with torch.no_grad():
            mean, value = model(seen)
            before = model.chance(mean, moves)
            after = torch.cat([value[1:], value[-1:]])
            advantage = advantages_of(rewards + DISCOUNT * going_on * after - value, going_on)
            goal = advantage + value
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        for _ in range(2):
            order = torch.randperm(moments * arms, device=DEVICE)
            for part in order.chunk(4):
                mean, value = model(seen.flatten(0, 1)[part])
                ratio = (model.chance(mean, moves.flatten(0, 1)[part]) - before.flatten()[part]).exp()
                gain = advantage.flatten()[part]
                clipped = torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain)
                loss = (value - goal.flatten()[part]).square().mean() - clipped.mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()

    return step
