"""Which time a finding wants to save, so that two that want the same time do not promise it twice."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from stepscope.records import dataclass

__all__ = ["Claim", "Part", "Time", "overlap"]


class Time(Enum):
    """The kinds of time of a step, and what findings without a gain in time are about."""

    STARVED = "starved"
    """The device was idle and waited for the host."""
    DEVICE = "device"
    """The device worked."""
    WAITED = "waited"
    """The step waited for something that recording does not stretch."""
    MEMORY = "memory"
    RECORDING = "recording"


class Part(Enum):
    """Parts of such a time: what the host did, or which kernels ran; families of kernels have their names."""

    ALLOCATION = "allocation"
    ATTENTION = "attention"
    COMMUNICATION = "communication"
    COMPILATION = "compilation"
    CONVOLUTION = "convolution"
    COPY = "copy"
    CASTS = "casts"
    FILLS = "fills"
    LAYOUTS = "layouts"
    DATALOADER = "dataloader"
    ELEMENTWISE = "elementwise"
    INDEXING = "indexing"
    ITERATIONS = "iterations"
    KERNELS = "kernels"
    LOSS = "loss"
    MATMUL = "matmul"
    NORMALISATION = "normalisation"
    OPTIMIZER = "optimizer"
    PYTHON = "python"
    RECOMPUTATION = "recomputation"
    SYNCS = "syncs"
    VARIANCE = "variance"

    @property
    def whole(self) -> Part:
        """The part that this one lies in; itself where it lies in none."""
        return _WITHIN.get(self, self)


_WITHIN = {Part.CASTS: Part.COPY, Part.FILLS: Part.COPY, Part.LAYOUTS: Part.COPY}


@dataclass(frozen=True, slots=True)
class Claim:
    """A time that a finding wants to save: all of that kind, or a part of it."""

    time: Time
    part: Part | None = None

    def overlaps(self, other: Claim) -> bool:
        """Whether both want some of the same time."""
        if self.time is not other.time:
            return False
        if self.part is None or other.part is None or self.part is other.part:
            return True
        return self.part is other.part.whole or other.part is self.part.whole


def overlap(some: Iterable[Claim], others: Iterable[Claim]) -> bool:
    """Whether any of these claims wants time that one of the others wants."""
    theirs = tuple(others)
    return any(mine.overlaps(other) for mine in some for other in theirs)
