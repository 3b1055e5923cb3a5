"""Training of people, agents, signals, flowers and papers, on torch, torchvision, timm and lightning."""

from __future__ import annotations

import tempfile
from typing import Any

import numpy as np
import torch
from benchmarks.faults.library_models import autocast, noise, tokens
from benchmarks.faults.models import DEVICE, adamw, gpt, on_images, sized, words
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional

# ---------------------------------------------------------------- people seen by several cameras


class TripletLoss(nn.Module):
    """The farthest picture of the same person must be nearer than the nearest of another one."""

    def __init__(self, margin: float, *, by_rows: bool) -> None:
        super().__init__()
        self.by_rows = by_rows
        self.ranking = nn.MarginRankingLoss(margin)

    def forward(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """The loss of a batch of features."""
        n = inputs.size(0)
        squares = inputs.pow(2).sum(1, keepdim=True).expand(n, n)
        dist = torch.addmm(squares + squares.t(), inputs, inputs.t(), alpha=-2)
        dist = dist.clamp(min=1e-12).sqrt()
        mask = targets.expand(n, n).eq(targets.expand(n, n).t())
        if self.by_rows:
            positives, negatives = [], []
            for i in range(n):
                positives.append(dist[i][mask[i]].max().unsqueeze(0))
                negatives.append(dist[i][mask[i] == 0].min().unsqueeze(0))
            dist_ap, dist_an = torch.cat(positives), torch.cat(negatives)
        else:
            dist_ap = dist.masked_fill(~mask, -torch.inf).amax(1)
            dist_an = dist.masked_fill(mask, torch.inf).amin(1)
        return self.ranking(dist_an, dist_ap, torch.ones_like(dist_an))


@pair(
    "python-loop-in-the-loss",
    "Re-identification: the batch-hard triplet loss of open-reid, a loop with dist[i][mask[i]].max().",
    "masked_fill and amax/amin over the whole matrix.",
)
def seventh_person_search(faulty: bool) -> Step:
    """A ResNet-50 learns to tell people apart."""
    from torchvision.models import resnet50

    people, shots = sized(12, 2), 4
    with torch.device(DEVICE):
        model: Any = on_images(resnet50(weights=None, num_classes=751), dtype=torch.float32)
    head, model.fc = model.fc, nn.Identity()
    optimizer = adamw(nn.ModuleList([model, head]))
    triplet = TripletLoss(0.3, by_rows=faulty)
    pictures = noise(people * shots, 3, sized(256, 32), sized(128, 32), dtype=torch.float32)
    pictures = pictures.to(memory_format=torch.channels_last)
    who = torch.arange(people, device=DEVICE).repeat_interleave(shots)
    running = torch.zeros((), device=DEVICE)

    def step() -> None:
        with autocast():
            features = model(pictures)
            scores = head(features)
        loss = functional.cross_entropy(scores.float(), who, label_smoothing=0.1)
        loss = loss + triplet(features.float(), who)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        running.lerp_(loss.detach(), 0.02)

    return step


# ---------------------------------------------------------------- flowers


@pair(
    "gradients-nobody-uses",
    "A linear probe: the optimizer is given the head alone, but the backbone still requires gradients.",
    "requires_grad_(False) for the backbone.",
)
def seventh_flower_probe(faulty: bool) -> Step:
    """A linear layer learns on what a ViT sees."""
    import timm

    rows, side = sized(256, 2), sized(224, 32)
    with torch.device(DEVICE):
        model: Any = timm.create_model(
            "vit_small_patch16_224", pretrained=False, num_classes=102, img_size=side
        )
    model = model.to(DEVICE).eval()
    if not faulty:
        model.requires_grad_(False)
        model.head.requires_grad_(True)
    optimizer = torch.optim.AdamW(model.head.parameters(), lr=1e-3, weight_decay=0.0, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10_000)
    pictures, kinds = noise(rows, 3, side, side, dtype=torch.float32), tokens(102, rows)
    right = torch.zeros((), device=DEVICE)

    def step() -> None:
        with autocast():
            scores = model(pictures)
        loss = functional.cross_entropy(scores.float(), kinds)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        right.add_((scores.detach().argmax(-1) == kinds).sum())

    return step


# ---------------------------------------------------------------- signals of the heart


class SignalBlock(nn.Module):
    """A layer of a transformer over pieces of a signal, with torch's own module of attention."""

    def __init__(self, width: int, heads: int, options: dict[str, Any]) -> None:
        super().__init__()
        self.options = options
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.inner = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Attention, then two linear layers."""
        y = self.norms[0](x)
        mixed, _ = self.attention(y, y, y, **self.options)
        x = x + mixed
        return x + self.inner(self.norms[1](x))


class SignalModel(nn.Module):
    """Cuts twelve leads into pieces and sorts the recording."""

    def __init__(self, layers: int, width: int, length: int, options: dict[str, Any]) -> None:
        super().__init__()
        self.cut = nn.Conv1d(12, width, 16, stride=16)
        self.position = nn.Parameter(0.02 * torch.randn(1, length, width))
        heads = max(1, width // 64)
        self.layers = nn.ModuleList(SignalBlock(width, heads, options) for _ in range(layers))
        self.head = nn.Linear(width, 27)

    def forward(self, signal: Tensor) -> Tensor:
        """Scores of the diagnoses."""
        x = self.cut(signal).transpose(1, 2) + self.position
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


@pair(
    "attention-weights-asked-for",
    "nn.MultiheadAttention is called as `out, _ = attn(x, x, x)`: need_weights=True is its default.",
    "need_weights=False, which takes the fused kernel.",
)
def seventh_heart_signals(faulty: bool) -> Step:
    """A transformer reads long recordings of the heart."""
    length, rows = sized(2048, 8), sized(8, 2)
    options: dict[str, Any] = {} if faulty else {"need_weights": False}
    model = SignalModel(sized(6, 1), sized(512, 64), length, options).to(DEVICE)
    optimizer = adamw(model)
    signal = noise(rows, 12, 16 * length, dtype=torch.float32)
    labels = (torch.rand(rows, 27, device=DEVICE) < 0.1).float()
    running = torch.zeros((), device=DEVICE)

    def step() -> None:
        with autocast():
            scores = model(signal)
        loss = functional.binary_cross_entropy_with_logits(scores.float(), labels)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        running.lerp_(loss.detach(), 0.02)

    return step


# ---------------------------------------------------------------- a log of the gradients


@pair(
    "values-read-one-by-one",
    "Lightning's grad_norm() of every parameter is computed and logged in every step.",
    "In every fiftieth step.",
)
def seventh_logged_gradients(faulty: bool) -> Step:
    """A deep and narrow language model learns, and the norms of its gradients are logged."""
    from lightning.pytorch.loggers import CSVLogger
    from lightning.pytorch.utilities import grad_norm

    model = gpt(20, 768)
    batch = words(8, 512)
    optimizer = adamw(model)
    logger = CSVLogger(tempfile.mkdtemp(), flush_logs_every_n_steps=1_000_000)
    every = 1 if faulty else 50
    turn = 0

    def step() -> None:
        nonlocal turn
        turn += 1
        scores = model(batch)
        loss = functional.cross_entropy(scores[:, :-1].flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        if turn % every == 0:
            logger.log_metrics({"loss": loss.detach(), **grad_norm(model, norm_type=2)}, turn)
        optimizer.step()

    return step


# ---------------------------------------------------------------- an agent


class ActorCritic(nn.Module):
    """What to do, and how good things are."""

    def __init__(self, seen: int, actions: int, width: int) -> None:
        super().__init__()

        def network(outside: int) -> nn.Module:
            return nn.Sequential(
                nn.Linear(seen, width),
                nn.Tanh(),
                nn.Linear(width, width),
                nn.Tanh(),
                nn.Linear(width, outside),
            )

        self.actor, self.critic = network(actions), network(1)

    def forward(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        """The logarithms of the chances of the actions, and the value."""
        return torch.log_softmax(self.actor(seen), -1), self.critic(seen).squeeze(-1)


def advantages_by_moments(
    rewards: Tensor, values: Tensor, dones: Tensor, after: Tensor, done: Tensor
) -> Tensor:
    """How much better than expected each move was, from the last moment to the first."""
    advantages = torch.zeros_like(rewards)
    last: Tensor | float = 0.0
    moments = len(rewards)
    for t in reversed(range(moments)):
        if t == moments - 1:
            goes_on, next_values = 1.0 - done, after
        else:
            goes_on, next_values = 1.0 - dones[t + 1], values[t + 1]
        delta = rewards[t] + 0.99 * next_values * goes_on - values[t]
        advantages[t] = last = delta + 0.99 * 0.95 * goes_on * last
    return advantages


def advantages_on_the_host(
    rewards: Tensor, values: Tensor, dones: Tensor, after: Tensor, done: Tensor
) -> Tensor:
    """The same: differences for all moments at once, then the sum over time in numpy."""
    goes_on = 1.0 - torch.cat([dones[1:], done[None]])
    delta = rewards + 0.99 * torch.cat([values[1:], after[None]]) * goes_on - values
    deltas, shares = torch.stack([delta, 0.99 * 0.95 * goes_on]).cpu().numpy()
    last = np.zeros_like(deltas[0])
    for t in reversed(range(len(deltas))):
        deltas[t] += shares[t] * last
        last = deltas[t]
    return torch.from_numpy(deltas).to(rewards.device)


@pair(
    "python-loop-of-small-kernels",
    "PPO as in CleanRL: the advantages (GAE) come from a loop over 256 moments on tensors of the device.",
    "Differences for all moments at once, the recursion in numpy (as stable-baselines3).",
)
def seventh_proximal_agent(faulty: bool) -> Step:
    """An agent learns from a rollout of 128 games."""
    moments, games, seen, actions = sized(256, 6), sized(128, 4), sized(64, 8), sized(12, 3)
    model = ActorCritic(seen, actions, sized(512, 16)).to(DEVICE)
    optimizer = adamw(model)
    observed = noise(moments, games, seen, dtype=torch.float32)
    chosen = tokens(actions, moments, games)
    rewards = noise(moments, games, dtype=torch.float32)
    dones = (torch.rand(moments, games, device=DEVICE) < 0.01).float()
    after, done = noise(games, dtype=torch.float32), torch.zeros(games, device=DEVICE)
    advantage = advantages_by_moments if faulty else advantages_on_the_host

    def step() -> None:
        with torch.no_grad():
            chances, values = model(observed)
            old = chances.gather(-1, chosen[..., None]).squeeze(-1)
            better = advantage(rewards, values, dones, after, done)
            returns = better + values
        rows = [part.flatten(0, 1) for part in (observed, chosen, old, better, returns)]
        for _ in range(2):
            for part in torch.randperm(moments * games, device=DEVICE).chunk(4):
                b_seen, b_chosen, b_old, b_better, b_returns = (row[part] for row in rows)
                chances, values = model(b_seen)
                ratio = (chances.gather(-1, b_chosen[:, None]).squeeze(-1) - b_old).exp()
                scaled = (b_better - b_better.mean()) / (b_better.std() + 1e-8)
                policy = torch.max(-scaled * ratio, -scaled * ratio.clamp(0.8, 1.2)).mean()
                value = 0.5 * functional.mse_loss(values, b_returns)
                entropy = -(chances.exp() * chances).sum(-1).mean()
                loss = policy + 0.5 * value - 0.01 * entropy
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()

    return step


# ---------------------------------------------------------------- papers that cite each other


class GraphAttention(nn.Module):
    """One head of a graph attention network, over a matrix of all pairs or over the edges."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.weight = nn.Linear(inside, outside, bias=False)
        self.source = nn.Linear(outside, 1, bias=False)
        self.target = nn.Linear(outside, 1, bias=False)

    def forward(self, x: Tensor, graph: Tensor) -> Tensor:
        """What every node gathers from its neighbours."""
        h = self.weight(x)
        here, there = self.target(h), self.source(h)
        if graph.size(0) == graph.size(1):
            e = functional.leaky_relu(here + there.t(), 0.2)
            attention = torch.where(graph > 0, e, -9e15 * torch.ones_like(e))
            attention = functional.dropout(functional.softmax(attention, dim=1), 0.1, self.training)
            return attention @ h
        to, by = graph
        e = here.squeeze(1).index_select(0, to) + there.squeeze(1).index_select(0, by)
        e = functional.leaky_relu(e, 0.2)
        top = torch.full_like(x[:, 0], -torch.inf).scatter_reduce(0, to, e.detach(), "amax")
        e = (e - top.index_select(0, to)).exp()
        share = e / torch.zeros_like(x[:, 0]).index_add(0, to, e).index_select(0, to)
        share = functional.dropout(share, 0.1, self.training)
        return torch.zeros_like(h).index_add(0, to, share[:, None] * h.index_select(0, by))


@pair(
    "dense-matrix-of-a-sparse-graph",
    "A GAT as in pyGAT: scores of all pairs of 8,192 nodes, masked by a dense adjacency matrix.",
    "Scores of the 90,000 edges alone, gathered with index_add (as torch-geometric's GATConv).",
)
def seventh_citing_papers(faulty: bool) -> Step:
    """A graph network sorts papers by whom they cite."""
    count, features, classes = sized(8192, 24), sized(500, 8), 7
    edges = torch.randint(0, count, (2, 10 * count))
    matrix = torch.zeros(count, count)
    matrix[edges[0], edges[1]] = 1.0
    matrix.fill_diagonal_(1.0)
    graph = matrix.to(DEVICE) if faulty else matrix.nonzero().t().contiguous().to(DEVICE)
    heads = nn.ModuleList(GraphAttention(features, 64) for _ in range(4)).to(DEVICE)
    last = GraphAttention(256, classes).to(DEVICE)
    model = nn.ModuleList([heads, last])
    optimizer = adamw(model)
    x, kinds = noise(count, features, dtype=torch.float32), tokens(classes, count)
    known = torch.arange(count // 2, device=DEVICE)

    def step() -> None:
        h = torch.cat([functional.elu(head(x, graph)) for head in heads], dim=1)
        scores = last(functional.dropout(h, 0.1), graph)
        loss = functional.cross_entropy(scores[known], kinds[known])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step
