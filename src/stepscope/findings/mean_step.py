"""How long a step takes, with and without the profiler, and what sets its pace.

Either the host or the GPU sets the pace of a step. Where the GPU is idle because it waits for the host, the
host sets the pace: saving host time shortens the step, saving GPU time does not. Where the GPU works or has
work queued, it is the other way round. Recording slows down the host, not the GPU, so a recorded step is
longer than a real one wherever the host sets the pace. Every gain is computed here, from these two facts
and from simulations of the steps: without the cost of recording, and with a GPU that takes less and less
time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from enum import IntEnum
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

from stepscope.analyses.idle_gaps import Side, SpentIn
from stepscope.analyses.step_limits import MOST_ERROR, error_of
from stepscope.findings import Bounds, Gain, Saving
from stepscope.records import dataclass
from stepscope.simulation.changes import PACE_SETTERS, PaceSetter
from stepscope.simulation.simulator import is_cold

if TYPE_CHECKING:
    from stepscope.analyses.critical_path_sides import CriticalPathSides
    from stepscope.analyses.devices import Device
    from stepscope.analyses.idle_gaps import IdleGap
    from stepscope.analyses.step_limits import StepLimit
    from stepscope.analyses.steps import Step
    from stepscope.store.measured import MeasuredStep
    from stepscope.tables import Table

__all__ = ["Bound", "FasterDevice", "Length", "MeanStep", "mean_step_of"]


class Bound(IntEnum):
    """Which of the two bounds of a saving."""

    LOW = 0
    HIGH = 1


class Length(IntEnum):
    """Which of the two lengths that a step may have without the profiler."""

    SHORT = 0
    LONG = 1


class FasterDevice(NamedTuple):
    """How much of the step without the profiler is left when the device's work takes less time."""

    times: float
    """The part of its time that the device's work takes."""
    short: float
    """What is left of the short step."""
    long: float

    def left(self, length: Length) -> float:
        """What is left of a step of that length."""
        return self.long if length is Length.LONG else self.short


@dataclass(frozen=True, slots=True)
class MeanStep:
    """The mean of the recorded steps: all figures are ns for one step."""

    steps: int
    step_ns: float
    """As it was recorded."""
    unprofiled_ns: Bounds
    """As it would be without the profiler: at least and at most. If the step was measured, it comes to that,
    unless the device was slower or faster meanwhile."""
    device: str | None
    """The index of the device with the most work; None without any. What follows is about it."""
    busy_ns: float
    starved_ns: float
    """Idle, waiting for the host: until the launch, and then for its latency."""
    latency_ns: float
    """The part of that which is the latency of launches."""
    waiting_ns: float
    """Idle for other reasons: other streams, events, graphs, collectives of the host, or unknown."""
    host_path_share: float
    """The host's part of the critical path."""
    faster_device: tuple[FasterDevice, ...] = ()
    """From simulations; the GPU as it is comes first."""
    steady_ns: float = 0.0
    """As it was recorded, without a cold first step."""
    computing_ns: float = 0.0
    """Time in which a kernel computed."""
    losses: Mapping[PaceSetter, Bounds] = field(default_factory=dict)
    """What a step without the profiler loses if something is infinitely fast, as a part of it; from
    simulations."""
    simulation_error: float = 0.0
    """How far the simulation without a change is from the recorded steps, as a part of them."""
    measured_ns: Bounds | None = None
    """The interval of the mean step that was timed without the profiler; None if none was."""
    times_busiest: float = 1.0
    """The busy time of all devices of the process together, as a multiple of the busiest one's."""
    at_once: float = 1.0
    """How many of these devices are busy at once, on average, while any is."""

    @property
    def work_ns(self) -> float:
        """The busy time of all devices together: what a part of the work is a part of."""
        return self.busy_ns * self.times_busiest

    @property
    def is_simulated(self) -> bool:
        """Whether a simulation of the steps can be believed: it reproduces them without a change."""
        return self.simulation_error <= MOST_ERROR

    @property
    def unprofiled_starved_ns(self) -> Bounds:
        """What is left of `starved_ns` without the profiler."""
        low, high = (max(0.0, step - self.busy_ns - self.waiting_ns) for step in self.unprofiled_ns)
        return min(low, self.starved_ns), min(high, self.starved_ns)

    def device_pays(self, bound: Bound, length: Length, saved_ns: float = 1.0) -> float:
        """By how much a step without the profiler gets shorter for each ns of GPU work that is saved.

        At least it is the GPU's part of the recorded critical path. Without the profiler the GPU waits less
        for the host, so at most it is the part of the step in which the GPU is busy. Where the GPU no
        longer waits for the host, the GPU alone sets the pace. The more is saved, the sooner the host is
        what is left: a simulation with a faster GPU says how soon, if all of its work gets shorter alike.
        That is no bound for work that is saved in one place; a GPU that takes no time at all is one.
        """
        step = self.unprofiled_ns[length]
        if not step or not saved_ns:
            return 1.0
        alike = self._saved_alike(length, saved_ns) / saved_ns
        if not self.unprofiled_starved_ns[length]:
            on_path = busy = 1.0
        else:
            on_path = min(1.0, (1 - self.host_path_share) * self.step_ns / step)
            busy = max(on_path, (self.busy_ns + self.waiting_ns) / step)
        if not self.faster_device:
            return busy if bound is Bound.HIGH else on_path
        if bound is Bound.LOW:
            return min(on_path, alike)
        return min(max(busy, alike), self._saved_alike(length, self.busy_ns) / saved_ns)

    def _saved_alike(self, length: Length, saved_ns: float) -> float:
        """How much shorter a step gets if all GPU work gets shorter by the same factor."""
        if not self.faster_device or not self.busy_ns:
            return saved_ns
        times = max(0.0, 1 - saved_ns / self.busy_ns)
        left = 1.0
        for slower, faster in pairwise(self.faster_device):
            if faster.times <= times <= slower.times:
                least, most = faster.left(length), slower.left(length)
                left = least + (most - least) * (times - faster.times) / (slower.times - faster.times)
        return (1 - left) * self.unprofiled_ns[length]

    def per_step(self, total_ns: float) -> float:
        """A sum over all steps as its mean."""
        return total_ns / self.steps if self.steps else 0.0

    def of_one_device(self, saved_ns: float) -> float:
        """What saved work of all devices is for one: where several are busy at once, it is saved at once."""
        return min(saved_ns / self.at_once, self.busy_ns)

    def share(self, ns: float) -> float:
        """A time of a step as a part of the recorded step."""
        return ns / self.step_ns if self.step_ns else 0.0

    def with_latency(self, starved_ns: float) -> float:
        """Waiting for the host in a step (`starved_ns` of other tables) plus its part of launch latency."""
        host = self.starved_ns - self.latency_ns
        return min(self.starved_ns, starved_ns * self.starved_ns / host) if host > 0 else 0.0

    def gain(self, saving: Saving) -> Gain:
        """What a saving in the recorded step is worth in a step without the profiler."""
        low, high = ([self._saved(saving, bound, length) for length in Length] for bound in Bound)
        steps = [step or 1.0 for step in self.unprofiled_ns]
        # A fixed wait is a larger part of a shorter step, waiting for the host a smaller one: try both.
        low_share = min(ns / step for ns, step in zip(low, steps, strict=True))
        high_share = max(ns / step for ns, step in zip(high, steps, strict=True))
        if self.measured_ns is None:
            return Gain(round(min(low)), round(max(high)), low_share, high_share)
        short, long = self.measured_ns
        return Gain(round(low_share * short), round(high_share * long), low_share, high_share)

    def up_to(self, saving: Saving, high_share: float) -> Saving:
        """The same saving, if it may gain this part of the step without the profiler."""
        more = min(
            high_share * self.unprofiled_ns[length] - self._saved(saving, Bound.HIGH, length)
            for length in Length
        )
        least, most = saving.waited_ns
        return replace(saving, waited_ns=(least, most + max(0.0, more)))

    def left(self, saving: Saving) -> Bounds:
        """How long a step without the profiler takes once that is saved."""
        if self.measured_ns is not None:
            gain = self.gain(saving)
            short, long = self.measured_ns
            return (1 - gain.high_share) * short, (1 - gain.low_share) * long
        steps = [
            self.unprofiled_ns[length] - self._saved(saving, bound, length)
            for length in Length
            for bound in Bound
        ]
        return min(steps), max(steps)

    def _saved(self, saving: Saving, bound: Bound, length: Length) -> float:
        """What one bound of a saving takes off the step without the profiler, if it has this length."""
        step = self.unprofiled_ns[length]
        starved, going = saving.starved_ns[bound], 0.0
        if self.starved_ns:
            going = min(1.0, starved / self.starved_ns)
            starved = going * self.unprofiled_starved_ns[length]
        # The less the GPU waits for the host, the more it sets the pace of what is left.
        device = (
            self.of_one_device(saving.device_ns[bound])
            if self.busy_ns
            else min(saving.device_ns[bound], step)
        )
        device *= 1 - (1 - going) * (1 - self.device_pays(bound, length, device))
        return min(starved + device + saving.waited_ns[bound], step)


def mean_step_of(
    steps_by_any: Table[Step],
    devices: Table[Device],
    idle_gaps: Table[IdleGap],
    critical_path_sides: Table[CriticalPathSides],
    step_limits: Table[StepLimit],
    *,
    measured: MeasuredStep | None = None,
) -> MeanStep:
    """The mean step of a trace, from its tables, and from what was measured without the profiler."""
    steps = len(steps_by_any)
    lengths = [step.dur_ns for step in steps_by_any]
    step_ns = sum(lengths) / steps if steps else 0.0
    busy = _busy(devices)
    device = max(busy, key=lambda name: (busy[name], name)) if busy else None
    idle = [gap for gap in idle_gaps if gap.device == device]
    # A host that communicates with its peers is not slowed down by recording.
    own = [gap for gap in idle if gap.spent_in != SpentIn.HOST_COMMUNICATION]
    latency = sum(gap.idle_ns for gap in own if gap.side == Side.LAUNCH)
    starved = sum(gap.idle_ns for gap in own if gap.side == Side.HOST) + latency
    starved_ns = starved / steps if steps else 0.0
    all_idle = sum(gap.idle_ns for gap in idle) / steps if steps else 0.0
    busy_ns = step_ns - all_idle if device else 0.0
    whole = sum(row.path_ns for row in critical_path_sides)
    host = sum(row.host_ns for row in critical_path_sides) / whole if whole else 1.0
    waiting_ns = all_idle - starved_ns
    error = error_of(step_limits)
    limits = list(step_limits) if error <= MOST_ERROR else []
    times_busiest = sum(busy.values()) / busy[device] if device and busy[device] else 1.0
    return MeanStep(
        steps=steps,
        step_ns=step_ns,
        unprofiled_ns=_unprofiled(lengths, limits, measured),
        device=device,
        busy_ns=busy_ns,
        starved_ns=starved_ns,
        latency_ns=latency / steps if steps else 0.0,
        waiting_ns=waiting_ns,
        host_path_share=host,
        faster_device=_faster_device(limits),
        steady_ns=_mean(lengths[is_cold(lengths) :]),
        computing_ns=_mean([step.kernel_ns for step in steps_by_any]) if device else 0.0,
        losses=_losses(limits),
        simulation_error=error,
        measured_ns=(measured.low_ns, measured.high_ns) if measured else None,
        times_busiest=times_busiest,
        at_once=_at_once(steps_by_any, times_busiest * busy_ns),
    )


def _mean(values: Sequence[int]) -> float:
    return sum(values) / len(values) if values else 0.0


def _losses(limits: Sequence[StepLimit]) -> dict[PaceSetter, Bounds]:
    """What a step loses where something takes no time, at least and at most."""
    plain = next((row for row in limits if row.times == 1), None)
    if plain is None or not plain.unprofiled_low_ns or not plain.unprofiled_high_ns:
        return {}
    found: dict[PaceSetter, Bounds] = {}
    for name in PACE_SETTERS:
        row = next((row for row in limits if row.faster == name), plain)
        lost = [
            max(0.0, 1 - row.unprofiled_low_ns / plain.unprofiled_low_ns),
            max(0.0, 1 - row.unprofiled_high_ns / plain.unprofiled_high_ns),
        ]
        found[name] = min(lost), max(lost)
    return found


def _at_once(steps: Iterable[Step], work_ns: float) -> float:
    """How many devices work at once, where any does; `work_ns` is the busy time of all of them in a step."""
    any_ns = _mean(
        [step.kernel_ns + step.memcpy_ns + step.memset_ns + step.communication_ns for step in steps]
    )
    return max(1.0, work_ns / any_ns) if any_ns else 1.0


def _busy(devices: Iterable[Device]) -> dict[str, int]:
    """How long each device was busy."""
    busy: dict[str, int] = {}
    for row in devices:
        busy[row.device] = max(busy.get(row.device, 0), row.busy_ns)
    return busy


def _unprofiled(
    lengths_ns: Sequence[int], limits: Sequence[StepLimit], measured: MeasuredStep | None
) -> Bounds:
    """The steady step without the cost of recording: shorter by the same factor as the simulated steps.

    Where no simulation is to be believed, it is the measured step.
    """
    step_ns = _mean(lengths_ns[is_cold(lengths_ns) :])
    simulated = next((row for row in limits if row.times == 1), None)
    if simulated is None or not simulated.simulated_ns:
        return (measured.low_ns, measured.high_ns) if measured else (step_ns, step_ns)
    low, high = simulated.unprofiled_low_ns, simulated.unprofiled_high_ns
    return step_ns * low / simulated.simulated_ns, step_ns * high / simulated.simulated_ns


def _faster_device(limits: Sequence[StepLimit]) -> tuple[FasterDevice, ...]:
    """How much of the step a faster GPU leaves."""
    rows = [row for row in limits if row.faster == "all work"]
    if not rows or not rows[0].unprofiled_low_ns or not rows[0].unprofiled_high_ns:
        return ()
    low, high = rows[0].unprofiled_low_ns, rows[0].unprofiled_high_ns
    shorts = [row.unprofiled_low_ns / low for row in rows]
    longs = [row.unprofiled_high_ns / high for row in rows]
    # Less work never makes a step longer; in a simulation it can, slightly, if the order of waits changes.
    left = zip(accumulate(shorts, min), accumulate(longs, min), strict=True)
    return tuple(FasterDevice(row.times, short, long) for row, (short, long) in zip(rows, left, strict=True))
