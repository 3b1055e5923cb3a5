"""Where in libraries and modules a location of the user's code leads to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from stepscope.findings import Advice, Inside, Location, frame_parts

if TYPE_CHECKING:
    from stepscope.analyses.library_functions import LibraryFunction

__all__ = ["placed"]

MOST = 3
"""Functions of libraries that are shown for a finding."""
LEAST_SHARE = 0.1
"""Of a location; with less, a function does not explain it."""


def placed(advice: Advice, library_functions: Iterable[LibraryFunction]) -> Advice:
    """The advice with the functions of libraries and the modules behind its locations."""
    if not advice.locations:
        return advice
    rows = list(library_functions)
    found = tuple(_placed(location, rows) for location in advice.locations)
    return replace(advice, locations=_shortest(found))


def _placed(location: Location, rows: list[LibraryFunction]) -> Location:
    """Weighs the functions inside by all the time of the operators that the location is about."""
    weights: dict[str | None, float] = defaultdict(float)
    modules: dict[str | None, dict[str | None, float]] = defaultdict(lambda: defaultdict(float))
    for row in rows:
        asked = row.name in location.ops if location.ops else row.within is None
        if asked and row.user_frame == location.frame:
            spent = row.host_ns + row.starved_ns + row.device_ns
            weights[row.library_frame] += spent
            modules[row.library_frame][row.module] += spent
    whole = sum(weights.values())
    if not whole:
        return location
    heaviest = sorted(weights, key=lambda frame: (-weights[frame], frame or ""))
    inside = tuple(
        _inside(frame, modules[frame], weights[frame] / whole)
        for frame in heaviest
        if weights[frame] >= LEAST_SHARE * whole
    )
    return replace(location, inside=tuple(one for one in inside if one.file or one.module))


def _inside(frame: str | None, modules: dict[str | None, float], share: float) -> Inside:
    """The function with its main module, if most of its time is in that one."""
    module = max(modules, key=lambda name: (modules[name], name or ""))
    if 2 * modules[module] < sum(modules.values()):
        module = None
    file, line, function = frame_parts(frame) or (None, None, None)
    return Inside(file, line, function, module, share)


def _shortest(locations: tuple[Location, ...]) -> tuple[Location, ...]:
    """No more functions than `MOST` for a finding, and at least the first of each location."""
    each = max(1, MOST // len(locations))
    return tuple(replace(one, inside=one.inside[:each]) for one in locations)
