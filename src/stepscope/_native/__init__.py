"""Reading and sweeping in C++: no policy and no names of torch operators; the sources are in `native/`."""

from __future__ import annotations

from stepscope._native.core import (
    NULL,
    Batch,
    DeviceSweep,
    EventWriter,
    Linker,
    Reader,
    ThreadSweep,
    keep_memory,
    widened,
)

__all__ = [
    "NULL",
    "Batch",
    "DeviceSweep",
    "EventWriter",
    "Linker",
    "Reader",
    "ThreadSweep",
    "keep_memory",
    "widened",
]
