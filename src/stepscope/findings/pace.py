"""How long a step takes, with and without the profiler, and what sets its pace.

A step of an accelerator's program has one of two masters. Where the device is idle because the host launched
late, the host sets the pace: to save host time shortens the step, to save device time does not. Where the
device works or has work queued, it is the other way round. And recording slows the host, not the device, so
that a recorded step is longer than a real one wherever the host sets the pace. Every gain is worked out here,
from those two facts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepscope.findings import Bounds, Gain, Saving

if TYPE_CHECKING:
    from stepscope.analyses.breakdowns import Breakdown
    from stepscope.analyses.devices import Device
    from stepscope.analyses.idle_gaps import IdleGap
    from stepscope.analyses.path_sides import PathSides
    from stepscope.analyses.profiler_costs import ProfilerCost
    from stepscope.tables import Table

__all__ = ["Pace", "pace_of"]

SLOWEST = 4.0
"""No recording was seen to make a step longer than so many times."""


@dataclass(frozen=True, slots=True)
class Pace:
    """The mean step: all figures are ns for one step of the recorded ones."""

    steps: int
    step_ns: float
    """As it was recorded."""
    unprofiled_ns: Bounds
    """As it would be without the profiler: at the least and at the most."""
    device: str | None
    """The device with most work, by its index; None without any. What follows is about it."""
    busy_ns: float
    late_ns: float
    """Idle, and waiting for the host: until the launch, and then for its latency."""
    latency_ns: float
    """The part of that which is latency of launches."""
    waiting_ns: float
    """Idle for other reasons: other streams, events, graphs, collectives of the host, or nobody knows."""
    host_path_share: float
    """Part of the critical path that is the host's."""

    @property
    def unprofiled_late_ns(self) -> Bounds:
        """What is left of `late_ns` without the profiler."""
        low, high = (max(0.0, step - self.busy_ns - self.waiting_ns) for step in self.unprofiled_ns)
        return min(low, self.late_ns), min(high, self.late_ns)

    def device_pays(self, which: int, end: int) -> float:
        """How much of a ns of device work that is saved a step without the profiler is shorter by.

        At the least it is the device's part of the recorded critical path; without the profiler the host is
        less often late, so at the most it is the time for which the device is busy at all. Where nothing is
        late any more, the device alone sets the pace.
        """
        step = self.unprofiled_ns[end]
        if not step or not self.unprofiled_late_ns[end]:
            return 1.0
        on_path = min(1.0, (1 - self.host_path_share) * self.step_ns / step)
        return max(on_path, (self.busy_ns + self.waiting_ns) / step) if which else on_path

    def per_step(self, total_ns: float) -> float:
        """A sum over all steps as its mean."""
        return total_ns / self.steps if self.steps else 0.0

    def share(self, ns: float) -> float:
        """A time of a step as a part of the recorded step."""
        return ns / self.step_ns if self.step_ns else 0.0

    def with_latency(self, late_ns: float) -> float:
        """Late host time of a step (`late_ns` of other tables) with its part of the latency of launches."""
        host = self.late_ns - self.latency_ns
        return min(self.late_ns, late_ns * self.late_ns / host) if host > 0 else 0.0

    def gain(self, saving: Saving) -> Gain:
        """What a saving in the recorded step is worth in a step without the profiler."""
        saved = [[self._saved(saving, which, end) for end in (0, 1)] for which in (0, 1)]
        shares = [
            [ns / (step or 1.0) for ns, step in zip(ends, self.unprofiled_ns, strict=True)] for ends in saved
        ]
        # A fixed wait is the larger part of a shorter step, late time the smaller: so look at both ends.
        return Gain(round(min(saved[0])), round(max(saved[1])), min(shares[0]), max(shares[1]))

    def left(self, saving: Saving) -> Bounds:
        """How long a step without the profiler takes once that is saved."""
        steps = [
            step - self._saved(saving, which, end)
            for end, step in enumerate(self.unprofiled_ns)
            for which in (0, 1)
        ]
        return min(steps), max(steps)

    def _saved(self, saving: Saving, which: int, end: int) -> float:
        """What a bound of a saving takes off the step without the profiler, at one end of that."""
        step = self.unprofiled_ns[end]
        late, going = saving.late_ns[which], 0.0
        if self.late_ns:
            going = min(1.0, late / self.late_ns)
            late = going * self.unprofiled_late_ns[end]
        # The more of the host's lateness goes, the more the device sets the pace of what is left.
        pays = 1 - (1 - going) * (1 - self.device_pays(which, end))
        device = pays * min(saving.device_ns[which], self.busy_ns or step)
        return min(late + device + saving.waited_ns[which], step)


def pace_of(
    breakdowns: Table[Breakdown],
    devices: Table[Device],
    idle_gaps: Table[IdleGap],
    profiler_costs: Table[ProfilerCost],
    path_sides: Table[PathSides],
) -> Pace:
    """The pace of a trace, from its tables."""
    steps = len(breakdowns)
    lengths = [step.dur_ns for step in breakdowns]
    step_ns = sum(lengths) / steps if steps else 0.0
    device = _busiest(devices)
    idle: dict[str, int] = {}
    for gap in idle_gaps:
        if gap.device == device:
            # A host that talks to its peers is not slow: recording does not stretch that.
            side = "peers" if gap.spent_in == "host communication" else gap.side
            idle[side] = idle.get(side, 0) + gap.idle_ns
    late_ns = sum(idle.get(side, 0) for side in ("host", "launch")) / steps if steps else 0.0
    all_idle = sum(idle.values()) / steps if steps else 0.0
    busy_ns = step_ns - all_idle if device else 0.0
    whole = sum(row.path_ns for row in path_sides)
    host = sum(row.host_ns for row in path_sides) / whole if whole else 1.0
    waiting_ns = all_idle - late_ns
    return Pace(
        steps=steps,
        step_ns=step_ns,
        unprofiled_ns=_unprofiled(step_ns, busy_ns + waiting_ns, host, profiler_costs),
        device=device,
        busy_ns=busy_ns,
        late_ns=late_ns,
        latency_ns=idle.get("launch", 0) / steps if steps else 0.0,
        waiting_ns=waiting_ns,
        host_path_share=host,
    )


def _busiest(devices: Iterable[Device]) -> str | None:
    """The device with the most work."""
    busy: dict[str, int] = {}
    for row in devices:
        busy[row.device] = max(busy.get(row.device, 0), row.busy_ns)
    return max(busy, key=lambda name: (busy[name], name)) if busy else None


def _unprofiled(step_ns: float, floor_ns: float, host: float, costs: Table[ProfilerCost]) -> Bounds:
    """The step without what recording cost the host, as far as the host sets the pace.

    It is not shorter than what the device needs, nor than a fraction of the recorded step that no recording
    was ever seen to exceed.
    """
    steps = [cost.events / cost.per_step for cost in costs if cost.per_step]
    if not steps:
        return step_ns, step_ns
    least = sum(cost.least_ns for cost in costs) / steps[0] * host
    most = sum(cost.most_ns for cost in costs) / steps[0] * host
    floor_ns = max(min(floor_ns, step_ns), step_ns / SLOWEST)
    return max(floor_ns, step_ns - most), max(floor_ns, step_ns - least)
