"""Real programs with known faults, each beside its mended twin, and programs with nothing to mend."""

from __future__ import annotations

from benchmarks.faults import (
    compiler,
    fourth_fair,
    fourth_fields,
    fourth_healthy,
    fourth_text,
    fourth_vision,
    healthy,
    host,
    inputs,
    kernels,
    library_diffusion,
    library_fair,
    library_graphs,
    library_inputs,
    library_loops,
    library_text,
    library_vision,
    memory,
    serving,
    third_compile,
    third_fair,
    third_serving,
    third_text,
    third_training,
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
LIBRARY = (
    library_text,
    library_inputs,
    library_vision,
    library_diffusion,
    library_graphs,
    library_loops,
    library_fair,
)
"""On real libraries, imported when a program is built; by somebody who did not know the rules."""

THIRD = (third_training, third_text, third_serving, third_compile, third_fair)
"""On real libraries, too, and later; by somebody else who did not know the rules."""

FOURTH = (fourth_text, fourth_vision, fourth_fields, fourth_fair, fourth_healthy)
"""Mistakes that the sets before do not have; by somebody else again who did not know the rules."""

__all__ = ["FOURTH", "GROUPS", "LIBRARY", "PROGRAMS", "THIRD", "UNSEEN", "Program", "Step"]
