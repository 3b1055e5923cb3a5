"""What recording cost the host, from the step that was timed without it.

How much of its events' cost a simulation has to leave out is known from programs of one machine, as a range.
Where the unprofiled step was measured, only those parts of the range are left with which the simulated step
comes out as long as the measured one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from stepscope.simulation.recording_cost import Moment

__all__ = ["SLOWER_DEVICE", "calibrated"]

REACH = 2.0
"""Recording may cost up to so many times what is estimated at most."""
LONGER = 0.02
"""A simulated step that is longer by this part than the measured one is as long as that."""
SLOWER_DEVICE = 0.10
"""The same for one that is shorter: a device that has worked for long is slower than in a short pass."""
_HALVINGS = 8


def calibrated(
    estimated: Moment, left: Callable[[float], float], wanted: tuple[float, float], error: float
) -> Moment:
    """The cost of an event with which a simulated step is as long as the measured one.

    `left` says how much of the recorded step is left if so much of an event's cost is left out, `wanted` how
    much of it was measured without the profiler, at least and at most, and `error` how far the simulation is
    from the recorded step anyway. A device that sets the pace hides what recording cost: then every cost
    fits, and the estimate stays. If none fits, the estimate's end next to the measured step is taken.
    """
    shortest, longest = wanted[0] * (1 - SLOWER_DEVICE - error), wanted[1] * (1 + LONGER + error)
    most = REACH * estimated.most
    if left(most) > longest:
        least, most = estimated.most, estimated.most
    elif left(0.0) < shortest:
        least, most = estimated.least, estimated.least
    else:
        least = _first_below(left, longest, most)
        most = _last_above(left, shortest, most)
        # What the estimate and the measured step agree on; else what is nearest to the estimate.
        if least > estimated.most:
            most = least
        elif most < estimated.least:
            least = most
        else:
            least, most = max(least, estimated.least), min(most, estimated.most)
    said = f"{estimated.said} Of what that may be, the measured step leaves {least:.3g}–{most:.3g} times."
    return replace(estimated, least=least, most=most, said=said)


def _first_below(left: Callable[[float], float], wanted: float, top: float) -> float:
    """The lowest cost with which the step is no longer than wanted; it is so at the top."""
    if left(0.0) <= wanted:
        return 0.0
    low, high = 0.0, top
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if left(middle) > wanted else (low, middle)
    return high


def _last_above(left: Callable[[float], float], wanted: float, top: float) -> float:
    """The highest cost with which the step is no shorter than wanted; it is so where nothing is left out."""
    if left(top) >= wanted:
        return top
    low, high = 0.0, top
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if left(middle) >= wanted else (low, middle)
    return low
