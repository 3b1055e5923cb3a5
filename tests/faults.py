"""Programs with known faults: their recordings, what was measured, and which change mends some of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

__all__ = [
    "FAULTS",
    "IN_EVERY_RUN",
    "MENDED_BY",
    "PROGRAMS",
    "REPORTED",
    "recording",
    "smallest",
    "smallest_of_each",
]

FAULTS = Path(__file__).parent / "data" / "faults"
PROGRAMS: dict[str, dict[str, Any]] = json.loads((FAULTS / "measurements.json").read_text(encoding="utf-8"))[
    "programs"
]


def recording(name: str, side: str, how: str = "light") -> Path:
    """The recording of a program with its fault, without it, or of one that has none; few are `full`."""
    return FAULTS / f"{name}.{side}.{how}.pt.trace.json.gz"


def smallest(names: Iterable[str], path_of: Callable[[str], Path], number: int = 1) -> list[str]:
    """So many of these programs, which have the smallest recordings."""
    return sorted(names, key=lambda name: (path_of(name).stat().st_size, name))[:number]


def smallest_of_each(
    names: Iterable[str], sort_of: Callable[[str], str], path_of: Callable[[str], Path]
) -> list[str]:
    """One of each sort of programs."""
    sorts: dict[str, list[str]] = {}
    for name in names:
        sorts.setdefault(sort_of(name), []).append(name)
    return [one for alike in sorts.values() for one in smallest(alike, path_of)]


def _main_recording(name: str) -> Path:
    return recording(name, next(iter(PROGRAMS[name]["sides"])))


def _of_kind(kind: str) -> list[str]:
    return [name for name, program in PROGRAMS.items() if program["kind"] == kind]


IN_EVERY_RUN = {
    *smallest_of_each(_of_kind("fault"), lambda name: str(PROGRAMS[name]["finding"]), _main_recording),
    *smallest(_of_kind("healthy"), _main_recording, 4),
}
"""A program for each finding that is planted, and some healthy ones; others plant the same elsewhere."""

REPORTED = [_main_recording(name) for name in PROGRAMS if name in IN_EVERY_RUN]
"""Those on which every run makes a report, so that further checks of them cost little."""

MENDED_BY = {
    "blocking_launches": "no_sync",
    "explicit_syncs": "no_explicit_sync",
    "driver_allocations": "no_driver_memory",
    "cache_clearing": "no_driver_memory",
    "exposed_copies": "overlap_copies",
    "unseen_features_on_stream": "overlap_copies",
    "dataloader_waits": "no_loader",
    "unseen_speech_loader": "no_loader",
    "unseen_one_worker": "no_loader",
    "launch_bound_training": "graph",
    "launch_bound_inference": "graph",
    "missed_graphs": "graph",
    "eager_decode": "graph",
    "unseen_pinn": "graph",
    "unseen_translated_words": "graph",
    "fair_synchronize": "no_explicit_sync",
    "fair_loader": "no_loader",
    "fair_scalar_read": "no_sync",
    "fair_pageable_copy": "no_sync",
}
"""Those whose mending is a change of when things start, or of the host alone: as `changed_steps` names it."""
