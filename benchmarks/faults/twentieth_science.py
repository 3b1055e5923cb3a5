"""Science: heat in a plate, scanned objects, proteins that catalyse and flow through rock."""

from __future__ import annotations

import numpy as np
import torch
from benchmarks.faults.library_models import autocast, noise, tokens
from benchmarks.faults.models import DEVICE, adamw, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor, nn
from torch.nn import functional


class HeatNet(nn.Module):
    """The temperature of a plate as a function of place and time."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        parts: list[nn.Module] = [nn.Linear(3, width), nn.Tanh()]
        for _ in range(layers):
            parts += [nn.Linear(width, width), nn.Tanh()]
        self.body = nn.Sequential(*parts, nn.Linear(width, 1))

    def forward(self, points: Tensor) -> Tensor:
        """Temperatures at points of x, y and t."""
        return self.body(points)


def slope(value: Tensor, points: Tensor) -> Tensor:
    """The derivatives of each value by its own point."""
    return torch.autograd.grad(value.sum(), points, create_graph=True)[0]


def first(net: nn.Module, points: Tensor, axis: int) -> Tensor:
    """The derivative of the temperature along an axis."""
    return slope(net(points), points)[:, axis]


def second(net: nn.Module, points: Tensor, axis: int) -> Tensor:
    """The second derivative of the temperature along an axis."""
    return slope(first(net, points, axis), points)[:, axis]


def residual_by_terms(net: nn.Module, points: Tensor, spread: float) -> Tensor:
    """What is left of the equation of heat, term by term as it stands in the book."""
    warming = first(net, points, 2)
    bending = second(net, points, 0) + second(net, points, 1)
    return warming - spread * bending + 0.1 * net(points)[:, 0]


def residual(net: nn.Module, points: Tensor, spread: float) -> Tensor:
    """What is left of the equation of heat, of one evaluation of the network."""
    warmth = net(points)
    slopes = slope(warmth, points)
    bending = slope(slopes[:, 0], points)[:, 0] + slope(slopes[:, 1], points)[:, 1]
    return slopes[:, 2] - spread * bending + 0.1 * warmth[:, 0]


@pair(
    "network-evaluated-anew-for-each-derivative",
    "Every term of the equation calls the network again and differentiates it from the beginning.",
    "One evaluation and one first gradient, from which all terms are taken.",
)
def twentieth_heat_plate(faulty: bool) -> Step:
    """A network informed by physics learns how a plate cools."""
    torch.manual_seed(26)
    torch.set_float32_matmul_precision("high")
    count, width, edge = sized(65_536, 64), sized(512, 16), sized(4096, 16)
    net = HeatNet(width, sized(5, 1)).to(DEVICE)
    optimizer = adamw(net)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9999)
    losses = torch.zeros(3, device=DEVICE)
    leftover = residual_by_terms if faulty else residual

    def step() -> Tensor:
        points = torch.rand(count, 3, device=DEVICE).requires_grad_()
        physics = leftover(net, points, 0.05).square().mean()
        begin = torch.rand(edge, 3, device=DEVICE)
        begin[:, 2] = 0.0
        wanted = torch.sin(torch.pi * begin[:, 0]) * torch.sin(torch.pi * begin[:, 1])
        initial = (net(begin)[:, 0] - wanted).square().mean()
        rim = torch.rand(edge, 3, device=DEVICE)
        rim[:, 0] = rim[:, 0].round()
        boundary = net(rim).square().mean()
        loss = physics + 10 * initial + 10 * boundary
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        losses.lerp_(torch.stack([physics, initial, boundary]).detach(), 0.05)
        return loss.detach()

    return step


class Completer(nn.Module):
    """Sees groups of points of one side of an object and draws all of it, coarsely and finely."""

    def __init__(self, group: int, width: int, layers: int, coarse: int, fine: int) -> None:
        super().__init__()
        self.group = group
        self.see = nn.Sequential(nn.Linear(3 * group, width), nn.GELU(), nn.Linear(width, width))
        layer = nn.TransformerEncoderLayer(
            width, max(1, width // 64), 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.coarse = nn.Linear(width, 3 * coarse)
        self.fine = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, 3 * fine))

    def forward(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Coarse and fine points of the whole object."""
        rows = len(points)
        x = self.body(self.see(points.view(rows, -1, 3 * self.group))).amax(1)
        return self.coarse(x).view(rows, -1, 3), self.fine(x).view(rows, -1, 3)


def chamfer_of_all_pairs(drawn: Tensor, real: Tensor) -> Tensor:
    """The mean squared distance to the nearest point, both ways."""
    apart = (drawn[:, :, None] - real[:, None]).pow(2).sum(-1)
    return apart.min(2).values.mean() + apart.min(1).values.mean()


def picked(points: Tensor, index: Tensor) -> Tensor:
    """The points of each cloud at the indices."""
    return points.gather(1, index[..., None].expand(-1, -1, 3))


def chamfer(drawn: Tensor, real: Tensor) -> Tensor:
    """The same distance, of the nearest points alone."""
    with torch.no_grad():
        apart = torch.cdist(drawn, real)
        there, here = apart.argmin(2), apart.argmin(1)
    forth = (drawn - picked(real, there)).pow(2).sum(-1).mean()
    return forth + (real - picked(drawn, here)).pow(2).sum(-1).mean()


@pair(
    "differences-of-all-pairs-in-the-graph",
    "The chamfer loss builds and differentiates all 4096 x 4096 differences to use the nearest ones.",
    "The nearest are found by cdist without gradients; only their differences are in the graph.",
)
def twentieth_shape_completion(faulty: bool) -> Step:
    """Scans of one side of an object are completed."""
    torch.manual_seed(27)
    rows, seen, fine, coarse = sized(16, 2), sized(8192, 64), sized(4096, 32), sized(512, 8)
    model = Completer(16, sized(768, 64), sized(8, 1), coarse, fine).to(DEVICE)
    optimizer = adamw(model)
    distance = chamfer_of_all_pairs if faulty else chamfer
    scans = noise(rows, seen, 3, dtype=torch.float32)
    objects = noise(rows, fine, 3, dtype=torch.float32)
    sparse = objects[:, :: fine // coarse].contiguous()

    def step() -> Tensor:
        with autocast():
            rough, drawn = model(scans + 0.01 * torch.randn_like(scans))
        loss = distance(drawn.float(), objects) + 0.5 * distance(rough.float(), sparse)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


class Contact(nn.Module):
    """A round of messages between residues that touch."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.say = nn.Linear(width, width)
        self.far = nn.Linear(16, width)
        self.hear = nn.Sequential(nn.Linear(2 * width, width), nn.GELU(), nn.Linear(width, width))

    def forward(self, x: Tensor, source: Tensor, target: Tensor, apart: Tensor) -> Tensor:
        """New features of all residues."""
        said = self.say(self.norm(x)).index_select(0, source) * torch.sigmoid(self.far(apart))
        heard = torch.zeros_like(x).index_add_(0, target, said.to(x.dtype))
        return x + self.hear(torch.cat([x, heard], -1))


def pooled_one_by_one(x: Tensor, owner: Tensor, count: int) -> Tensor:
    """The mean of the residues of each protein."""
    return torch.stack([x[owner == number].mean(0) for number in range(count)])


def pooled_together(x: Tensor, owner: Tensor, count: int) -> Tensor:
    """The same means, of all proteins together."""
    total = torch.zeros(count, x.shape[1], device=x.device, dtype=x.dtype).index_add_(0, owner, x)
    ones = torch.ones(len(owner), 1, device=x.device, dtype=x.dtype)
    return total / torch.zeros_like(total[:, :1]).index_add_(0, owner, ones)


class EnzymeNet(nn.Module):
    """Rounds of messages, a pooling and an answer for each protein."""

    def __init__(self, width: int, rounds: int, *, one_by_one: bool) -> None:
        super().__init__()
        self.kind = nn.Embedding(21, width)
        self.rounds = nn.ModuleList(Contact(width) for _ in range(rounds))
        self.answer = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, 7))
        self.pool = pooled_one_by_one if one_by_one else pooled_together

    def forward(self, kinds: Tensor, edges: Tensor, apart: Tensor, owner: Tensor, count: int) -> Tensor:
        """Scores of the classes of enzymes."""
        x = self.kind(kinds)
        for layer in self.rounds:
            x = layer(x, edges[0], edges[1], apart)
        return self.answer(self.pool(x, owner, count))


@pair(
    "graphs-pooled-one-at-a-time",
    "The readout picks the nodes of each of 64 graphs by a mask and averages them, one graph after another.",
    "index_add_ by the graph's number, and a division by the counts.",
)
def twentieth_enzyme_screen(faulty: bool) -> Step:
    """Proteins are sorted into classes of enzymes by the contacts of their residues."""
    torch.manual_seed(28)
    count, residues, width = sized(64, 4), sized(300, 6), sized(256, 16)
    nodes, contacts = count * residues, count * residues * 16
    owner = torch.arange(count, device=DEVICE).repeat_interleave(residues)
    target = torch.randint(0, nodes, (contacts,), device=DEVICE)
    source = owner[target] * residues + torch.randint(0, residues, (contacts,), device=DEVICE)
    edges = torch.stack([source, target])
    apart, kinds, classes = torch.rand(contacts, 16, device=DEVICE), tokens(21, nodes), tokens(7, count)
    model = EnzymeNet(width, sized(6, 1), one_by_one=faulty).to(DEVICE)
    optimizer = adamw(model)
    hits = torch.zeros((), device=DEVICE)

    def step() -> Tensor:
        with autocast():
            scores = model(kinds, edges, apart, owner, count)
        loss = functional.cross_entropy(scores.float(), classes, label_smoothing=0.1)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        hits.add_((scores.detach().argmax(-1) == classes).sum())
        return loss.detach()

    return step


class Waves(nn.Module):
    """Mixes the channels of the longest waves of a field."""

    def __init__(self, width: int, modes: int) -> None:
        super().__init__()
        self.modes = modes
        self.weight = nn.Parameter(torch.randn(2, width, width, modes, modes, 2) / width)

    def forward(self, x: Tensor) -> Tensor:
        """A field of the same size that holds long waves alone."""
        rows, width, high, wide = x.shape
        modes = self.modes
        seen = torch.fft.rfft2(x, norm="ortho")
        weight = torch.view_as_complex(self.weight)
        mixed = seen.new_zeros(rows, width, high, wide // 2 + 1)
        top, bottom = seen[:, :, :modes, :modes], seen[:, :, -modes:, :modes]
        mixed[:, :, :modes, :modes] = torch.einsum("bihw,iohw->bohw", top, weight[0])
        mixed[:, :, -modes:, :modes] = torch.einsum("bihw,iohw->bohw", bottom, weight[1])
        return torch.fft.irfft2(mixed, s=(high, wide), norm="ortho")


class FlowOperator(nn.Module):
    """A neural operator from the permeability of rock to the pressure in it."""

    def __init__(self, width: int, modes: int, layers: int) -> None:
        super().__init__()
        self.lift = nn.Conv2d(3, width, 1)
        self.waves = nn.ModuleList(Waves(width, modes) for _ in range(layers))
        self.here = nn.ModuleList(nn.Conv2d(width, width, 1) for _ in range(layers))
        self.lower = nn.Sequential(nn.Conv2d(width, 2 * width, 1), nn.GELU(), nn.Conv2d(2 * width, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """The pressure at all places."""
        x = self.lift(x)
        for waves, here in zip(self.waves, self.here, strict=True):
            x = x + functional.gelu(waves(x) + here(x))
        return self.lower(x)


def simulated(rows: int, side: int) -> tuple[np.ndarray, np.ndarray]:
    """Rocks with the places of their cells, and pressures, as a solver writes them."""
    rng = np.random.default_rng(36)
    places = np.stack(np.meshgrid(np.linspace(0, 1, side), np.linspace(0, 1, side), indexing="ij"))
    rocks = rng.lognormal(0.0, 0.5, (rows, 1, side, side))
    fields = np.concatenate([rocks, np.broadcast_to(places, (rows, 2, side, side))], 1)
    return fields, rng.standard_normal((rows, 1, side, side))


@pair(
    "model-made-double-to-match-numpy",
    "The solver's arrays are float64; the network was made double to match, and trains in float64.",
    "The arrays are turned to float32 as they are loaded, and the network stays float32.",
)
def twentieth_rock_flow(faulty: bool) -> Step:
    """A neural operator learns the pressure in porous rock from a solver's results."""
    torch.manual_seed(36)
    torch.set_float32_matmul_precision("high")
    rows, side = sized(16, 2), sized(192, 16)
    model = FlowOperator(sized(48, 4), sized(24, 3), sized(4, 1)).to(DEVICE)
    fields, pressures = (torch.from_numpy(part) for part in simulated(rows, side))
    if faulty:
        model = model.double()
    else:
        fields, pressures = fields.float(), pressures.float()
    fields, pressures = fields.to(DEVICE), pressures.to(DEVICE)
    optimizer = adamw(model)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2000, 0.5)
    size = pressures.flatten(1).norm(dim=1)
    error = torch.zeros((), device=DEVICE)

    def step() -> Tensor:
        said = model(fields)
        loss = ((said - pressures).flatten(1).norm(dim=1) / size).mean()
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        error.lerp_(loss.detach().float(), 0.05)
        return loss.detach()

    return step
