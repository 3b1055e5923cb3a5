"""How many warps of a kernel a multiprocessor can hold at once, from its launch shape.

The profiler's own estimate asks the same, but takes the shared memory that a block gets without asking for
more (48 KiB) as the limit: a kernel that asks for more gets 0 there, though it runs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from stepscope.records import dataclass

__all__ = ["LaunchShape", "Multiprocessor", "occupancy_share"]

# Resident blocks of a multiprocessor by compute capability, the technical specifications in the CUDA C++
# Programming Guide; a minor version that is not named has what its major version has.
_MOST_BLOCKS = {
    (3, None): 16,
    (5, None): 32,
    (6, None): 32,
    (7, None): 32,
    (7, 5): 16,
    (8, None): 32,
    (8, 6): 16,
    (8, 7): 16,
    (8, 9): 24,
    (9, None): 32,
    (10, None): 32,
    (11, None): 24,
    (12, None): 24,
}
_REGISTERS_AT_ONCE = 256
"""Registers are given to a warp in units of this size."""
_RESERVED_BYTES = 1024
"""Shared memory that the system keeps of every block, from compute capability 8.0 on."""


@dataclass(frozen=True, slots=True)
class Multiprocessor:
    """What one multiprocessor of a device holds."""

    capability: tuple[int, int]
    threads: int
    registers: int
    shared_bytes: int
    warp: int
    count: int
    """How many of them the device has."""

    @classmethod
    def of(cls, properties: Any) -> Multiprocessor | None:
        """As a profile's device properties describe it; None where they say too little, or of another kind.

        AMD's multiprocessors are not known: their profiles write neither registers nor local memory.
        """
        if not isinstance(properties, Mapping) or properties.get("warpSize") != 32:
            return None
        keys = (
            "computeMajor",
            "computeMinor",
            "maxThreadsPerMultiprocessor",
            "regsPerMultiprocessor",
            "sharedMemPerMultiprocessor",
            "numSms",
        )
        values = [value for key in keys if isinstance(value := properties.get(key), int)]
        if len(values) < len(keys):
            return None
        major, minor, threads, registers, shared, count = values
        if (major, None) not in _MOST_BLOCKS or min(threads, registers, shared, count) < 1:
            return None
        return cls((major, minor), threads, registers, shared, 32, count)

    @property
    def most_blocks(self) -> int:
        """The most blocks that it holds, however small they are."""
        major, _ = self.capability
        return _MOST_BLOCKS.get(self.capability, _MOST_BLOCKS[major, None])

    @property
    def quarters(self) -> int:
        """Into how many parts its registers are divided; a warp lives in one of them."""
        return 2 if self.capability == (6, 0) else 4


@dataclass(frozen=True, slots=True)
class LaunchShape:
    """What a launch asks for."""

    blocks: int
    threads: int
    registers: int
    shared_bytes: int

    @classmethod
    def of(cls, grid: str | None, block: str | None, registers: Any, shared: Any) -> LaunchShape | None:
        """As the profile writes it: grid and block as JSON lists; None where one of them is missing."""
        blocks, threads = _product(grid), _product(block)
        if blocks is None or threads is None or registers is None or shared is None:
            return None
        return cls(blocks, threads, int(registers), int(shared))


def occupancy_share(launch: LaunchShape, on: Multiprocessor) -> float | None:
    """Threads that a multiprocessor holds of those it could: as many blocks as the grid has for it and it has
    room for; None where not even one fits, for then something written in the profile is wrong.
    """  # noqa: D205
    fitting = _fitting_blocks(launch, on)
    if not fitting:
        return None
    return min(launch.blocks / on.count, fitting) * launch.threads / on.threads


def _fitting_blocks(launch: LaunchShape, on: Multiprocessor) -> int:
    """Blocks that fit a multiprocessor, whichever of its limits is met first."""
    warps = -(-launch.threads // on.warp)
    limits = [on.most_blocks, on.threads // on.warp // warps]
    if launch.registers:
        per_warp = _up(launch.registers * on.warp, _REGISTERS_AT_ONCE)
        limits.append(on.registers // on.quarters // per_warp * on.quarters // warps)
    ampere = on.capability >= (8, 0)
    shared = _up(launch.shared_bytes + _RESERVED_BYTES * ampere, 128 if ampere else 256)
    if shared:
        limits.append(on.shared_bytes // shared)
    return min(limits)


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def _product(text: str | None) -> int | None:
    """The product of a JSON list of sizes."""
    try:
        sizes = json.loads(text or "")
        product = math.prod(int(size) for size in sizes)
    except (TypeError, ValueError):
        return None
    return product if product > 0 else None
