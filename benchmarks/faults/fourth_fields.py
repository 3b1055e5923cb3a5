"""Programs from speech, rendering, graphs, control and compiled training, each with one mistake."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from benchmarks.faults.library_models import autocast, llama, noise, tokens, training
from benchmarks.faults.models import DEVICE, adamw, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.distributions import Independent, Normal
from torch.nn import functional
from torch.nn.utils import parametrize

# ---------------------------------------------------------------- speech


@pair(
    "weight-norm-left-in-for-inference",
    "A vocoder speaks with the weight norm of its training on, so all its weights are made in every call.",
    "Remove the weight norm once after loading.",
)
def fourth_normed_vocoder(faulty: bool) -> Step:
    """Spectrograms become sound, a sentence at a time."""
    from transformers import SpeechT5HifiGan, SpeechT5HifiGanConfig

    config = SpeechT5HifiGanConfig(upsample_initial_channel=sized(256, 32))
    model: Any = SpeechT5HifiGan(config).to(DEVICE).eval()
    model.apply_weight_norm()
    if not faulty:
        for part in [one for one in model.modules() if parametrize.is_parametrized(one)]:
            parametrize.remove_parametrizations(part, "weight")
    frames = noise(sized(60, 6), config.model_in_dim, dtype=torch.float32)

    @torch.inference_mode()
    def step() -> Tensor:
        sound: Tensor = model(frames)
        return sound.cpu()

    return step


# ---------------------------------------------------------------- radiance fields


class Field(nn.Module):
    """Colour and density of points in space, seen in waves."""

    def __init__(self, width: int, layers: int, waves: int = 8) -> None:
        super().__init__()
        self.register_buffer("waves", 2.0 ** torch.arange(waves))
        parts: list[nn.Module] = [nn.Linear(6 * waves, width), nn.ReLU()]
        for _ in range(layers):
            parts += [nn.Linear(width, width), nn.ReLU()]
        self.body = nn.Sequential(*parts, nn.Linear(width, 4))

    def forward(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Three colours, and how much light stops here."""
        angles = (points.unsqueeze(-1) * self.waves).flatten(-2)
        found = self.body(torch.cat((angles.sin(), angles.cos()), -1)).float()
        return torch.sigmoid(found[..., :3]), functional.softplus(found[..., 3])


def rendered(field: Field, starts: Tensor, ways: Tensor, depths: Tensor) -> Tensor:
    """The colours that rays see."""
    points = starts[:, None] + ways[:, None] * depths
    colours, density = field(points)
    stopped = 1 - torch.exp(-density * (depths[1] - depths[0]))
    passed = torch.cumprod(1 - stopped + 1e-10, -1).roll(1, -1)
    passed = torch.cat((torch.ones_like(passed[:, :1]), passed[:, 1:]), -1)
    return ((passed * stopped).unsqueeze(-1) * colours).sum(1)


@pair(
    "few-drawn-by-shuffling-all",
    "A radiance field draws 4096 of 640 thousand pixels with np.random.choice, which shuffles all of them.",
    "Draw with numpy's Generator.choice, which does not shuffle all, or on the device.",
)
def fourth_drawn_rays(faulty: bool) -> Step:
    """One picture a step, and some of its rays, drawn without repetition."""
    side, rays = sized(800, 40), sized(4096, 16)
    field = Field(sized(256, 16), sized(7, 1)).to(DEVICE)
    optimizer = adamw(field)
    starts, ways, colours = (noise(side * side, 3, dtype=torch.float32) for _ in range(3))
    depths = torch.linspace(2, 6, sized(64, 8), device=DEVICE).unsqueeze(-1)
    generator = np.random.default_rng(1)

    def draw() -> Any:
        if faulty:
            return np.random.choice(side * side, rays, replace=False)
        return generator.choice(side * side, rays, replace=False)

    def step() -> Tensor:
        drawn = torch.from_numpy(draw()).to(DEVICE)
        with autocast():
            seen = rendered(field, starts[drawn], ways[drawn], depths)
        loss = functional.mse_loss(seen, colours[drawn])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


# ---------------------------------------------------------------- graphs


class GraphNetwork(nn.Module):
    """Two layers that add up the neighbours of each node, by a full matrix or along the edges."""

    def __init__(self, inside: int, width: int, classes: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(inside, width), nn.Linear(width, width)])
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor, matrix: Tensor | None, edges: Tensor, weights: Tensor) -> Tensor:
        """Scores of the classes of all nodes."""
        for layer in self.layers:
            x = layer(x)
            if matrix is not None:
                x = matrix @ x
            else:
                source, target = edges
                x = torch.zeros_like(x).index_add(0, target, x[source] * weights)
            x = torch.relu(x)
        return self.head(x)


@pair(
    "full-matrix-for-a-sparse-graph",
    "A graph network of 32768 nodes with 12 neighbours each multiplies by a full matrix of all pairs.",
    "Add up along the list of edges, or use a sparse matrix.",
)
def fourth_full_adjacency(faulty: bool) -> Step:
    """All but one in two thousand numbers of the matrix are zero; TF32 is on."""
    torch.set_float32_matmul_precision("high")
    nodes, neighbours, width = sized(32_768, 24), sized(12, 3), sized(256, 16)
    source = tokens(nodes, nodes * neighbours)
    target = torch.arange(nodes, device=DEVICE).repeat_interleave(neighbours)
    edges = torch.stack((source, target))
    weights = torch.full((nodes * neighbours, 1), 1 / neighbours, device=DEVICE)
    matrix = None
    if faulty:
        matrix = torch.zeros(nodes, nodes, device=DEVICE)
        matrix.index_put_((target, source), weights[:, 0], accumulate=True)
    model = GraphNetwork(sized(512, 8), width, 40).to(DEVICE)
    features = noise(nodes, sized(512, 8), dtype=torch.float32)
    labels = tokens(40, nodes)
    return training(model, lambda: functional.cross_entropy(model(features, matrix, edges, weights), labels))


# ---------------------------------------------------------------- control


class Actor(nn.Module):
    """What to do and how sure it is, and the value it expects."""

    def __init__(self, seen: int, width: int, actions: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(seen, width), nn.ELU(), nn.Linear(width, width), nn.ELU())
        self.mean = nn.Linear(width, actions)
        self.value = nn.Linear(width, 1)
        self.spread = nn.Parameter(torch.zeros(actions))

    def forward(self, seen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Mean and spread of the actions, and the value."""
        x = self.body(seen)
        return self.mean(x), self.spread.exp().expand(len(x), -1), self.value(x).squeeze(-1)


class Rollout:
    """Many simulated bodies on the device, moved by one actor, and what was seen on the way."""

    def __init__(self, actor: Actor, rows: int, seen: int, actions: int, *, checked: bool) -> None:
        self.actor, self.checked = actor, checked
        self.start, self.push = noise(rows, seen, dtype=torch.float32), noise(actions, seen).float()

    def chosen(self, mean: Tensor, spread: Tensor) -> Independent:
        """The distribution of the actions; torch checks its arguments unless told otherwise."""
        if self.checked:
            return Independent(Normal(mean, spread), 1)
        return Independent(Normal(mean, spread, validate_args=False), 1, validate_args=False)

    @torch.no_grad()
    def play(self, moments: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """States, actions, their chances and the rewards of all moments."""
        state, kept = self.start, []
        for _ in range(moments):
            mean, spread, value = self.actor(state)
            policy = self.chosen(mean, spread)
            action = policy.sample()
            after = torch.tanh(0.9 * state + 0.1 * action @ self.push)
            reward = after[:, 0] - value
            kept.append((state, action, policy.log_prob(action), reward))
            state = after
        states, actions, chances, rewards = (torch.cat(parts) for parts in zip(*kept, strict=True))
        return states, actions, chances, rewards

    def loss(self, states: Tensor, actions: Tensor, chances: Tensor, rewards: Tensor) -> Tensor:
        """The clipped loss of the policy."""
        mean, spread, value = self.actor(states)
        ratio = (self.chosen(mean, spread).log_prob(actions) - chances).exp()
        gain = (rewards - rewards.mean()) / (rewards.std() + 1e-6)
        clipped = torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain)
        return functional.mse_loss(value, rewards) - clipped.mean()


@pair(
    "arguments-of-distributions-checked-at-every-moment",
    "An agent samples its actions from torch.distributions, which check values and wait for the device.",
    "Build the distributions with validate_args=False.",
)
def fourth_checked_actions(faulty: bool) -> Step:
    """Thirty-two moments of many bodies on the device, then one update of the policy."""
    seen, actions = sized(48, 6), sized(12, 2)
    actor = Actor(seen, sized(256, 16), actions).to(DEVICE)
    rollout = Rollout(actor, sized(2048, 4), seen, actions, checked=faulty)
    optimizer = adamw(actor)

    def step() -> Tensor:
        played = rollout.play(sized(32, 3))
        loss = rollout.loss(*played)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


# ---------------------------------------------------------------- compiled training


@pair(
    "compiled-with-a-backend-for-debugging",
    'Trains a Llama compiled with backend="aot_eager", left from the search for an error.',
    "Compile with the default backend, inductor.",
)
def fourth_debug_backend(faulty: bool) -> Step:
    """The model is traced, but no operations are joined: kernels are those of eager mode."""
    plain = llama(6, 1024, words=32_000, use_cache=False).train()
    model = torch.compile(plain, backend="aot_eager") if faulty else torch.compile(plain)
    ids = tokens(plain.config.vocab_size, sized(16, 2), sized(512, 16))
    return training(plain, lambda: model(input_ids=ids, labels=ids).loss, adamw(plain))
