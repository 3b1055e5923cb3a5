"""What the rules about the state of a GPU share: its row, and the rate of its link."""

from __future__ import annotations

from collections.abc import Iterable

from stepscope.analyses.copies import Copy
from stepscope.analyses.gpu_health import GpuHealth
from stepscope.findings._copying import moving
from stepscope.findings.mean_step import MeanStep

__all__ = ["HostCopies", "gpu_of", "link_gb_per_s"]

_LANES = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
"""GB/s of a lane of PCIe in one direction, by generation, after encoding."""


def gpu_of(rows: Iterable[GpuHealth], device: str | None) -> GpuHealth | None:
    """The row of a device by its index."""
    return next((row for row in rows if str(row.device) == device), None)


def link_gb_per_s(generation: int | None, width: int | None) -> float | None:
    """What a link can move in one direction; None if it is not known."""
    lane = _LANES.get(generation or 0)
    return lane * width if lane and width else None


class HostCopies:
    """Copies between host and GPU in a mean step, with no kernel beside them."""

    def __init__(self, copies: Iterable[Copy], mean_step: MeanStep, host_memory: str | None = None) -> None:
        every = list(copies)
        rows = [*moving(every, "HtoD", host_memory), *moving(every, "DtoH", host_memory)]
        sized = [row for row in rows if row.bytes and row.total_ns]
        self.exposed_ns = mean_step.per_step(sum(row.exposed_ns for row in rows))
        total_ns = sum(row.total_ns for row in sized)
        n_bytes = sum(row.bytes or 0 for row in sized)
        self.gb_per_s = n_bytes / total_ns if total_ns else None
        """How fast they are."""
        self.exposed_bytes = mean_step.per_step(
            sum((row.bytes or 0) * row.exposed_ns / row.total_ns for row in sized)
        )
