"""Programs with known faults: their recordings, what was measured, and which change mends some of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

__all__ = ["FAULTS", "MENDED_BY", "PROGRAMS", "REPORTED", "recording"]

FAULTS = Path(__file__).parent / "data" / "faults"
PROGRAMS: dict[str, dict[str, Any]] = json.loads((FAULTS / "measurements.json").read_text(encoding="utf-8"))[
    "programs"
]


def recording(name: str, side: str, how: str = "light") -> Path:
    """The recording of a program with its fault, without it, or of one that has none; few are `full`."""
    return FAULTS / f"{name}.{side}.{how}.pt.trace.json.gz"


REPORTED = [
    recording(name, side)
    for name, program in PROGRAMS.items()
    for side in program["sides"]
    if program["kind"] == "healthy" or (program["kind"] == "fault" and side == "faulty")
]
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
