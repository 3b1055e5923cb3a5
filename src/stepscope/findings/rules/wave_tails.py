"""Kernels whose last wave of blocks leaves most of the device empty."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from stepscope import units
from stepscope.analyses.breakdowns import Breakdown
from stepscope.analyses.kernels import Kernel
from stepscope.findings import Advice, Category, rule
from stepscope.findings._kernels import Ran, product_of, ran_in_steps
from stepscope.findings._products import claims_of, off_device
from stepscope.findings.facts import DeviceFacts, Facts
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["wave_tails"]

_TILED = ("matmul", "convolution", "attention")
"""Kernels whose blocks all take about as long; others have many short blocks, or uneven ones."""
_REGISTERS = 65_536
_WARP = 32
# What a multiprocessor holds by compute capability, from the CUDA C++ Programming Guide: KiB of shared
# memory, threads.
_HOLDS = {
    (7, 0): (96, 2048),
    (7, 5): (64, 1024),
    (8, 0): (164, 2048),
    (8, 6): (100, 1536),
    (8, 9): (100, 1536),
    (9, 0): (228, 2048),
    (10, 0): (228, 2048),
    (12, 0): (100, 1536),
}


@dataclass(frozen=True, slots=True)
class _Tail:
    """A kernel that needs one wave more for a few blocks."""

    ran: Ran
    waves: float
    lost_ns: float


@rule(category=Category.DEVICE)
def wave_tails(
    mean_step: MeanStep,
    facts: Facts,
    breakdowns: Table[Breakdown],
    kernels_by_shape: Table[Kernel],
    *,
    least_share: float = 0.05,
    most_waves: int = 8,
) -> Advice | None:
    """The blocks of large kernels fill whole waves and a little more, so the last wave is mostly empty.

    Gain: a device runs as many blocks at once as fit its multiprocessors: a wave. If every block takes as
    long, a kernel of 1.1 waves takes as long as one of 2. At the most the empty part of the last wave is
    saved. At the least nothing: blocks that start early end early, so a tail may overlap the wave before.
    """
    device = facts.device(mean_step.device)
    if device is None or not device.multiprocessors or device.capability not in _HOLDS:
        return None
    ran = ran_in_steps(kernels_by_shape, breakdowns, mean_step)
    tails = sorted(_tails(ran, device, most_waves), key=lambda tail: -tail.lost_ns)
    lost_ns = sum(tail.lost_ns for tail in tails)
    if mean_step.share(lost_ns) < least_share:
        return None
    worst, whole_ns = tails[0], sum(tail.ran.ns for tail in tails)
    return Advice(
        title="The last wave of blocks leaves the device mostly empty",
        because=f"{units.count(len(tails))} kernels ({units.duration(whole_ns)} of a step) need one wave "
        f"more for less than half of it. The longest, {worst.ran.name[:60]}, has "
        f"{units.count(worst.ran.blocks)} blocks: {units.number(worst.waves)} waves on "
        f"{device.multiprocessors} multiprocessors.",
        saving=off_device((0.0, lost_ns), mean_step),
        certainty="possible",
        fix=f"batch_size = int(batch_size * {units.number(math.floor(worst.waves) / worst.waves)})    # or "
        f"{units.number(math.ceil(worst.waves) / worst.waves)} times: whole waves\n"
        'torch.compile(model, mode="max-autotune-no-cudagraphs")    # tries tiles of other sizes',
        check="stepscope show kernels --by shape: the blocks of the grid are near a multiple of the "
        "multiprocessors, and the kernel takes less time a sample.",
        evidence={
            "lost_ns": round(lost_ns),
            "kernels": len(tails),
            "longest_kernel": worst.ran.name,
            "longest_grid": worst.ran.kernel.grid,
            "longest_waves": worst.waves,
            "multiprocessors": device.multiprocessors,
        },
        claims=claims_of(tail.ran.kernel.family for tail in tails),
    )


def _tails(ran: Iterable[Ran], device: DeviceFacts, most_waves: int) -> Iterator[_Tail]:
    for one in ran:
        at_once = _at_once(one.kernel, device)
        if one.kernel.family not in _TILED or one.blocks is None or not at_once:
            continue
        waves = one.blocks / at_once
        begun = math.ceil(waves)
        if 1 < waves <= most_waves and begun - waves >= 0.5:
            yield _Tail(one, waves, one.ns * (begun - waves) / begun)


def _at_once(kernel: Kernel, device: DeviceFacts) -> int:
    """How many blocks of a kernel the device holds at once; 0 where the profile does not tell."""
    threads = product_of(kernel.block)
    if not threads or kernel.registers is None or kernel.shared_bytes is None or device.capability is None:
        return 0
    shared_kib, most_threads = _HOLDS[device.capability]
    warps = math.ceil(threads / _WARP)
    # Registers are given to warps in units of 256, and every block costs 1 KiB of shared memory more.
    registers = math.ceil(kernel.registers * _WARP / 256) * 256 * warps
    fitting = [most_threads // (warps * _WARP), _REGISTERS // registers if registers else most_threads]
    fitting.append(shared_kib * 1024 // (kernel.shared_bytes + 1024))
    return min(fitting) * (device.multiprocessors or 0)
