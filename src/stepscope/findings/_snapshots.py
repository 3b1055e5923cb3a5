"""What the rules on allocator snapshots share: whether there is one, and who holds what at its peak."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from stepscope.findings import NotKnown

if TYPE_CHECKING:
    from stepscope.analyses.allocator_peaks import PeakHolder
    from stepscope.analyses.allocators import Allocator
    from stepscope.tables import Table

__all__ = ["RECORD_HISTORY", "GiB", "fullest", "sites_of", "with_history"]

GiB = 1 << 30
RECORD_HISTORY = "torch.cuda.memory._record_memory_history() before the program allocates"


def fullest(allocators: Table[Allocator]) -> Allocator | None:
    """The device whose allocator held the most; None without a snapshot."""
    return max(allocators, key=lambda one: (one.peak_bytes or one.active_bytes, -one.device), default=None)


def with_history(allocators: Table[Allocator]) -> tuple[Allocator, int] | None:
    """The same with its peak, for rules that need one; None without a snapshot."""
    held = fullest(allocators)
    if held is None:
        return None
    if held.peak_bytes is None:
        raise NotKnown("the snapshot has no history that can be counted back", record=RECORD_HISTORY)
    return held, held.peak_bytes


def sites_of(peaks: Table[PeakHolder], device: int, category: str) -> tuple[int, Counter[str]]:
    """How much of one kind was held at the peak of a device, and by which lines of code."""
    sizes: Counter[str] = Counter()
    total = 0
    for row in peaks:
        if row.device == device and row.category == category:
            total += row.bytes
            if row.site:
                sizes[row.site] += row.bytes
    return total, sizes
