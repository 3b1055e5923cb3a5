"""Kernels whose last wave of blocks leaves most of the GPU idle."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from stepscope import units
from stepscope.analyses.kernels import Kernel
from stepscope.analyses.steps import Step
from stepscope.findings import Advice, Category, rule
from stepscope.findings._kernels import Ran, product_of, ran_in_steps
from stepscope.findings._phrases import times
from stepscope.findings._products import claims_of, off_device
from stepscope.findings.facts import DeviceFacts, Facts
from stepscope.findings.fixes import Change, fix_of, line
from stepscope.findings.mean_step import MeanStep
from stepscope.records import dataclass
from stepscope.tables import Table

__all__ = ["wave_tails"]

_TILED = ("matmul", "convolution", "attention")
"""Kernels whose blocks all take about equally long; others have many short blocks, or uneven ones."""
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
    """A kernel that needs one more wave for a few blocks."""

    ran: Ran
    waves: float
    lost_ns: float


@rule(category=Category.DEVICE)
def wave_tails(
    mean_step: MeanStep,
    facts: Facts,
    steps_by_any: Table[Step],
    kernels_by_shape: Table[Kernel],
    *,
    least_share: float = 0.05,
    most_waves: int = 8,
) -> Advice | None:
    """Large kernels need one more wave for a few blocks, and that wave leaves most of the GPU idle.

    Gain: a GPU runs as many blocks at once as fit its multiprocessors: a wave. If all blocks take equally
    long, 1.1 waves take as long as 2.

    - at most: the empty part of the last wave.
    - at least: nothing, because blocks that start early end early, so the last wave may overlap with the one
      before.
    """
    device = facts.device(mean_step.device)
    if device is None or not device.multiprocessors or device.capability not in _HOLDS:
        return None
    ran = ran_in_steps(kernels_by_shape, steps_by_any, mean_step)
    tails = sorted(_tails(ran, device, most_waves), key=lambda tail: -tail.lost_ns)
    lost_ns = sum(tail.lost_ns for tail in tails)
    if mean_step.share(lost_ns) < least_share:
        return None
    worst, whole_ns = tails[0], sum(tail.ran.ns for tail in tails)
    name = worst.ran.name if len(worst.ran.name) <= 60 else f"{worst.ran.name[:59]}…"
    return Advice(
        title="The last wave of blocks leaves most of the GPU idle",
        because=f"The last wave is at most half full in {times(len(tails), 'kernel')} "
        f"({units.duration(whole_ns)} of a step). The worst one, {name}, has "
        f"{units.count(worst.ran.blocks)} blocks: {units.number(worst.waves)} waves on "
        f"{device.multiprocessors} multiprocessors.",
        saving=off_device((0.0, lost_ns), mean_step),
        certainty="possible",
        fix=fix_of(
            f"batch_size = int(batch_size * {units.number(math.floor(worst.waves) / worst.waves)})    # or "
            f"{units.number(math.ceil(worst.waves) / worst.waves)} times: whole waves",
            line(
                Change.AUTOTUNE,
                'torch.compile(model, mode="max-autotune-no-cudagraphs")    # tries other tile sizes',
            ),
        ),
        check="stepscope show kernels --by shape: the number of blocks is just below a multiple of the "
        "multiprocessors; throughput: more samples per second.",
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
    """How many blocks of a kernel the GPU holds at once; 0 if the profile does not tell."""
    threads = product_of(kernel.block)
    if not threads or kernel.registers is None or kernel.shared_bytes is None or device.capability is None:
        return 0
    shared_kib, most_threads = _HOLDS[device.capability]
    warps = math.ceil(threads / _WARP)
    # Warps get registers in units of 256, and every block takes 1 KiB more of shared memory.
    registers = math.ceil(kernel.registers * _WARP / 256) * 256 * warps
    fitting = [most_threads // (warps * _WARP), _REGISTERS // registers if registers else most_threads]
    fitting.append(shared_kib * 1024 // (kernel.shared_bytes + 1024))
    return min(fitting) * (device.multiprocessors or 0)
