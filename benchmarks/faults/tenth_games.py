"""An agent that plays and learns from what it has played."""

from __future__ import annotations

import numpy as np
import torch
from benchmarks.faults.models import DEVICE, adamw, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional


class Maze:
    """A game on a small board: the player looks for the goal."""

    def __init__(self, seed: int, side: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.side = side
        self.walls = (self.rng.random((side, side)) < 0.2).astype(np.float32)
        self.player, self.goal = self.rng.integers(0, side, (2, 2))

    def view(self) -> np.ndarray:
        """The board as three pictures: walls, player and goal."""
        board = np.zeros((3, self.side, self.side), dtype=np.float32)
        board[0] = self.walls
        board[1, self.player[0], self.player[1]] = 1
        board[2, self.goal[0], self.goal[1]] = 1
        return board

    def move(self, action: int) -> tuple[np.ndarray, float]:
        """What is seen after a move, and its reward."""
        self.player = (self.player + ((-1, 0), (1, 0), (0, -1), (0, 1))[action]) % self.side
        if (self.player == self.goal).all():
            self.goal = self.rng.integers(0, self.side, 2)
            return self.view(), 1.0
        return self.view(), -0.01 - float(self.walls[tuple(self.player)])


class Player(nn.Module):
    """Scores of the four moves and the value of the board."""

    def __init__(self, side: int, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 32, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(64 * ((side + 1) // 2) ** 2, width),
            nn.ReLU(),
        )
        self.moves = nn.Linear(width, 4)
        self.value = nn.Linear(width, 1)

    def forward(self, boards: Tensor) -> tuple[Tensor, Tensor]:
        """Of every board."""
        x = self.body(boards)
        return self.moves(x), self.value(x).squeeze(-1)


@torch.no_grad()
def chosen_moves(player: Player, views: list[np.ndarray]) -> tuple[list[int], list[float]]:
    """A move for each view, drawn by the scores, and its logarithmic chance."""
    boards = torch.from_numpy(np.stack(views)).to(DEVICE)
    scores, _ = player(boards)
    chances = scores.log_softmax(-1)
    moves = torch.multinomial(chances.exp(), 1)
    both = torch.cat([moves.to(chances.dtype), chances.gather(1, moves)], 1).cpu().numpy()
    return both[:, 0].astype(int).tolist(), both[:, 1].tolist()


@pair(
    "policy-one-game-at-a-time",
    "PPO learns to walk through mazes; sixteen games are played for eight moves, then learned from.",
    "The player is asked for the moves of all sixteen games at once.",
)
def tenth_maze_agent(faulty: bool) -> Step:
    """A player of mazes."""
    side, count, moments = sized(16, 8), sized(16, 2), sized(8, 2)
    games = [Maze(seed, side) for seed in range(count)]
    views = [game.view() for game in games]
    player = Player(side, sized(512, 32)).to(DEVICE)
    optimizer = adamw(player)

    def ask() -> tuple[list[int], list[float]]:
        if not faulty:
            return chosen_moves(player, views)
        answers = [chosen_moves(player, [view]) for view in views]
        return [moves[0] for moves, _ in answers], [chances[0] for _, chances in answers]

    def played() -> list[Tensor]:
        seen, taken, before, rewards = [], [], [], []
        for _ in range(moments):
            moves, chances = ask()
            seen.append(np.stack(views))
            results = [game.move(move) for game, move in zip(games, moves, strict=True)]
            views[:] = [view for view, _ in results]
            taken.append(moves)
            before.append(chances)
            rewards.append([reward for _, reward in results])
        arrays = [np.concatenate(seen), np.array(taken), np.float32(before), np.float32(rewards)]
        return [torch.from_numpy(np.ascontiguousarray(array)).to(DEVICE) for array in arrays]

    def step() -> None:
        boards, moves, before, rewards = played()
        earned = rewards.flip(0).cumsum(0).flip(0).flatten()
        for _ in range(2):
            scores, value = player(boards)
            chance = scores.log_softmax(-1).gather(1, moves.view(-1, 1)).squeeze(1)
            gain = (earned - value.detach()) / (earned.std() + 1e-6)
            ratio = (chance - before.flatten()).exp()
            surrogate = torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
            loss = 0.5 * functional.mse_loss(value, earned) - surrogate
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(player.parameters(), 0.5)
            optimizer.step()

    return step
