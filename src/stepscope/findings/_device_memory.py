"""What the rules on memory share: the GPU's memory, and how much of it the program used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.findings import NotKnown
from stepscope.records import dataclass

if TYPE_CHECKING:
    from stepscope.analyses.memory import DeviceMemory
    from stepscope.findings.facts import Facts
    from stepscope.tables import Table

__all__ = ["MemoryUse", "memory_use", "no_memory"]


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """The memory of the GPU that comes closest to its limit."""

    held: DeviceMemory
    memory_bytes: int
    """What the GPU has."""

    @property
    def reserved_share(self) -> float:
        """The most that torch's allocator reserved, as a part of the GPU's memory."""
        return max(self.held.peak_bytes, self.held.reserved_peak_bytes or 0) / self.memory_bytes

    @property
    def peak_share(self) -> float:
        """The most that tensors took, as a part of the GPU's memory."""
        return self.held.peak_bytes / self.memory_bytes


def no_memory(facts: Facts) -> NotKnown:
    """Why nothing is known of memory: options help the profiler of PyTorch, not those of others."""
    if facts.kind == "kineto":
        return NotKnown("memory was not recorded", record="profile_memory=True")
    return NotKnown("this kind of profile has no allocations of PyTorch")


def memory_use(memory: Table[DeviceMemory], facts: Facts) -> MemoryUse | None:
    """How much memory was used; None if there is no GPU work."""
    if not facts.device_work:
        return None
    if not facts.memory:
        raise no_memory(facts)
    known = {one.index: one.memory_bytes for one in facts.devices if one.memory_bytes}
    of_devices = [row for row in memory if row.device != "cpu"]
    uses = [MemoryUse(row, known[row.device]) for row in of_devices if row.device in known]
    if of_devices and not uses:
        raise NotKnown("the profile does not say how much memory the GPU has")
    return max(uses, key=lambda use: use.reserved_share, default=None)
