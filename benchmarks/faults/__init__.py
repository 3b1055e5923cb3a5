"""Real programs with known faults, each beside its mended twin, and programs with nothing to mend."""

from __future__ import annotations

from benchmarks.faults import (
    compiler,
    healthy,
    host,
    inputs,
    kernels,
    memory,
    serving,
    unseen,
    unseen_healthy,
    unseen_inputs,
    unseen_kernels,
    unseen_serving,
)
from benchmarks.faults.registry import PROGRAMS, Program, Step

GROUPS = (host, inputs, kernels, compiler, memory, serving, healthy)
UNSEEN = (unseen, unseen_inputs, unseen_kernels, unseen_serving, unseen_healthy)
"""Written and recorded when the rules were done, by somebody who did not know them."""


__all__ = ["GROUPS", "PROGRAMS", "UNSEEN", "Program", "Step"]
