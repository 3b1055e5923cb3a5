"""An allocator as rules see it, for the tests of rules on snapshots."""

from __future__ import annotations

from typing import Any

from tests.findings.drawn import drawn

from stepscope.analyses.allocators import Allocator
from stepscope.tables import Table

__all__ = ["GIB", "MIB", "NONE", "NO_HISTORY", "SITE", "allocator"]

MIB, GIB = 1 << 20, 1 << 30
SITE = "/home/me/model.py(7): forward"


def allocator(**told: Any) -> Table[Allocator]:
    """A device with 8 GiB in use and 10 GiB at its peak."""
    row = {
        "device": 0,
        "peak_bytes": 10 * GIB,
        "active_bytes": 8 * GIB,
        "reserved_peak_bytes": 140 * GIB,
        **told,
    }
    return drawn(Allocator, row)


NONE = drawn(Allocator)
NO_HISTORY = allocator(peak_bytes=None)
