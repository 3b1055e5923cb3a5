"""The loop of a trial: pairs of runs, until the change is known well enough."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from stepscope.capture.run_folder import merge
from stepscope.capture.settings import Settings
from stepscope.records import dataclass
from stepscope.trials import Estimate, Measurement
from stepscope.trials.estimates import estimate, is_enough, order
from stepscope.trials.running import Side, measured_in, run_side

__all__ = ["Limits", "Measured", "measure", "measure_once", "record_once"]

Told = Callable[[int, Measurement, Measurement, Estimate | None], None]
"""Is told of each pair: its number from 1, both runs, and what is known so far."""


@dataclass(frozen=True, slots=True)
class Limits:
    """When a trial has enough pairs."""

    half_width: float = 0.01
    """How well the gain is to be known, as a part of the step."""
    pairs: int = 10
    seconds: float | None = None
    """After this long no further pair begins, if the change can be judged at all."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The runs of a trial, pair by pair."""

    before: tuple[Measurement, ...]
    after: tuple[Measurement, ...]
    estimate: Estimate


def measure(sides: tuple[Side, Side], settings: Settings, limits: Limits, told: Told) -> Measured:
    """Runs both sides in pairs, A B B A, until the change is known well enough or a limit is reached."""
    began = time.monotonic()
    runs: tuple[list[Measurement], list[Measurement]] = ([], [])
    pair, found = 0, None
    most = max(limits.pairs, 2)
    while pair < most:
        for side in order(pair):
            folder = Path(settings.folder) / f"{pair}-{side}"
            runs[side].append(measure_once(sides[side], settings, folder))
        pair += 1
        found = estimate(*runs)
        told(pair, runs[0][-1], runs[1][-1], found)
        if is_enough(found, limits.half_width):
            break
        is_late = limits.seconds is not None and time.monotonic() - began > limits.seconds
        if is_late and found is not None:
            break
    if found is None:
        raise AssertionError("there are two pairs at least")
    return Measured(tuple(runs[0]), tuple(runs[1]), found)


def measure_once(side: Side, settings: Settings, folder: Path) -> Measurement:
    """Runs one side once, and gives what was measured."""
    run_side(side, replace(settings, folder=str(folder), command=side.command))
    return measured_in(folder, side.name)


def record_once(side: Side, settings: Settings, folder: Path) -> bool:
    """Runs one side once more with a light profile, and says whether there is one."""
    recording = replace(
        settings, folder=str(folder), command=side.command, passes=("unprofiled", "light"), losses=0
    )
    run_side(side, recording)
    merge(folder, 0, ended=True)
    return any(folder.glob("rank*.light.pt.trace.json.gz"))
