"""Simulations and fits: patterns in a dish, whirls in a fluid, and ground water between wells."""

from __future__ import annotations

import math

import numpy as np
import torch
from benchmarks.faults.models import DEVICE, graphed, sized
from benchmarks.faults.registry import Step, pair
from torch import Tensor


def laplacian(field: Tensor) -> Tensor:
    """Differences to the four neighbours, on a torus."""
    around = torch.roll(field, 1, 0) + torch.roll(field, -1, 0)
    around += torch.roll(field, 1, 1)
    around += torch.roll(field, -1, 1)
    return around.sub_(field, alpha=4.0)


@pair(
    "short-kernels-launched-one-by-one",
    "A hundred moments of a reaction on a grid of 256 by 256 are launched kernel by kernel from Python.",
    "The hundred moments are captured in a CUDA graph once and replayed.",
    light_steps=2,
)
def fourteenth_reaction_dish(faulty: bool) -> Step:
    """Two substances spread and react (Gray and Scott); the grid is looked at every hundred moments."""
    side, moments = sized(256, 16), sized(100, 5)
    food = torch.ones(side, side, device=DEVICE)
    eater = torch.zeros(side, side, device=DEVICE)
    middle = slice(side // 2 - side // 8, side // 2 + side // 8)
    food[middle, middle], eater[middle, middle] = 0.5, 0.25
    amount = torch.zeros((), device=DEVICE)

    def advance() -> None:
        for _ in range(moments):
            eaten = food * eater * eater
            more = laplacian(food).mul_(0.16).sub_(eaten).add_(1.0 - food, alpha=0.035)
            other = laplacian(eater).mul_(0.08).add_(eaten).sub_(eater, alpha=0.1)
            food.add_(more)
            eater.add_(other)
        amount.copy_(eater.mean())

    if faulty:
        run: Step = advance
    else:
        run = graphed(advance)

    def step() -> Tensor:
        run()
        return amount

    return step


class Whirls:
    """A two-dimensional fluid on a torus, by Fourier's method: the vorticity of many runs at once."""

    def __init__(self, side: int, *, single: bool) -> None:
        self.side = side
        down = torch.from_numpy(np.fft.fftfreq(side, 1 / side)).to(DEVICE)[:, None]
        across = torch.from_numpy(np.fft.rfftfreq(side, 1 / side)).to(DEVICE)[None]
        if single:
            down, across = down.float(), across.float()
        self.down, self.across = down, across
        self.square = down**2 + across**2
        self.inverse = 1 / self.square.clamp(min=1)
        self.kept = self.square < (side / 3) ** 2  # no frequencies that the products would fold back

    def change(self, whirl: Tensor) -> Tensor:
        """How the vorticity changes, in frequencies."""
        shape = (self.side, self.side)
        stream = whirl * self.inverse
        right = torch.fft.irfft2(1j * self.down * stream, s=shape)
        up = torch.fft.irfft2(-1j * self.across * stream, s=shape)
        slope_right = torch.fft.irfft2(1j * self.across * whirl, s=shape)
        slope_up = torch.fft.irfft2(1j * self.down * whirl, s=shape)
        carried = torch.fft.rfft2(right * slope_right + up * slope_up)
        return -carried * self.kept - 1e-4 * self.square * whirl


@pair(
    "double-precision-by-accident",
    "Frequencies from numpy are fp64: they turn the fp32 fields of a fluid into complex128 for good.",
    "The frequencies are turned into fp32 when they are made.",
)
def fourteenth_vortex_sheet(faulty: bool) -> Step:
    """Eight runs of a fluid with different beginnings are carried on by the method of Runge and Kutta."""
    side, rows, length = sized(1024, 16), sized(8, 2), 1e-4
    fluid = Whirls(side, single=not faulty)
    start = torch.fft.rfft2(torch.randn(rows, side, side, device=DEVICE)) * fluid.kept
    state = {"whirl": start / (1 + fluid.square)}

    @torch.no_grad()
    def step() -> Tensor:
        whirl = state["whirl"]
        for _ in range(sized(3, 1)):
            one = fluid.change(whirl)
            two = fluid.change(whirl + length / 2 * one)
            three = fluid.change(whirl + length / 2 * two)
            four = fluid.change(whirl + length * three)
            whirl = whirl + length / 6 * (one + 2 * two + 2 * three + four)
        state["whirl"] = whirl
        return whirl.abs().square().mean((1, 2))

    return step


def kernel(left: Tensor, right: Tensor, reach: float) -> Tensor:
    """How alike two places are: Matérn's kernel of one and a half."""
    scaled = math.sqrt(3) / reach * torch.cdist(left, right)
    return (1 + scaled) * torch.exp(-scaled)


def by_inverse(known: Tensor, across: Tensor, seen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Evidence, mean and variance from the inverse of the matrix."""
    inverse = torch.linalg.inv(known)
    weights = inverse @ seen
    evidence = -0.5 * (seen @ weights) - 0.5 * torch.linalg.slogdet(known).logabsdet
    return evidence, across.T @ weights, 1 - ((inverse @ across) * across).sum(0)


def by_factor(known: Tensor, across: Tensor, seen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Evidence, mean and variance from Cholesky's factor of the matrix."""
    factor = torch.linalg.cholesky(known)
    half = torch.linalg.solve_triangular(factor, torch.cat([across, seen[:, None]], 1), upper=False)
    across, seen = half[:, :-1], half[:, -1]
    evidence = -0.5 * (seen @ seen) - factor.diagonal().log().sum()
    return evidence, across.T @ seen, 1 - across.square().sum(0)


@pair(
    "inverse-of-a-matrix",
    "A Gaussian process inverts its matrix with torch.linalg.inv() and asks slogdet() for the evidence.",
    "One Cholesky factor of the matrix serves the mean, the variance and the evidence.",
    light_steps=2,
)
def fourteenth_well_kriging(faulty: bool) -> Step:
    """The level of ground water is told from thousands of wells, for three guesses of how far they reach."""
    wells, asked = sized(3072, 32), sized(1024, 8)
    places = torch.rand(wells, 2, device=DEVICE, dtype=torch.float64)
    wanted = torch.rand(asked, 2, device=DEVICE, dtype=torch.float64)
    levels = torch.sin(6 * places[:, 0]) * torch.cos(4 * places[:, 1])
    noise = 0.01 * torch.eye(wells, device=DEVICE, dtype=torch.float64)
    solve = by_inverse if faulty else by_factor

    @torch.no_grad()
    def step() -> tuple[Tensor, Tensor, Tensor]:
        tried = [
            solve(kernel(places, places, reach) + noise, kernel(places, wanted, reach), levels)
            for reach in (0.1, 0.2, 0.4)
        ]
        evidence = torch.stack([one[0] for one in tried])
        share = evidence.softmax(0)[:, None]
        mean = (share * torch.stack([one[1] for one in tried])).sum(0)
        variance = (share * torch.stack([one[2] for one in tried])).sum(0)
        return evidence, mean, variance

    return step
