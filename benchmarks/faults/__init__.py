"""Real programs with known faults, each beside its mended twin, and programs with nothing to mend."""

from __future__ import annotations

from benchmarks.faults import compiler, healthy, host, inputs, kernels, memory, serving
from benchmarks.faults.registry import PROGRAMS, Program, Step

GROUPS = (host, inputs, kernels, compiler, memory, serving, healthy)

__all__ = ["GROUPS", "PROGRAMS", "Program", "Step"]
