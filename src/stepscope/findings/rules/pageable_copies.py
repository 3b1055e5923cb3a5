"""Batches are copied from pageable memory."""

from __future__ import annotations

from collections.abc import Iterable

from stepscope import units
from stepscope.analyses.copies import Copy
from stepscope.analyses.host_syncs import HostSync
from stepscope.findings import Advice, Category, Figure, Saving, locations_of, rule
from stepscope.findings._copying import Bus, bus_of, moving, starved_by, trips_of
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.facts import Facts
from stepscope.findings.fixes import Change, fix_of, line
from stepscope.findings.mean_step import Bound, Length, MeanStep
from stepscope.tables import Table

__all__ = ["pageable_copies"]

_LOADER = """\
loader = DataLoader(dataset, ..., pin_memory=True)        # a thread of the loader pins the batches
batch = batch.to(device, non_blocking=True)"""
_OWN = """\
# tensors that you fill yourself: pin them once, not in every step
stored = torch.empty(shape, pin_memory=True)"""


@rule(category=Category.COPIES)
def pageable_copies(
    mean_step: MeanStep,
    facts: Facts,
    copies: Table[Copy],
    copies_by_frame: Table[Copy],
    host_syncs: Table[HostSync],
    *,
    least_share: float = 0.01,
) -> Advice | None:
    """The host copies to the GPU from pageable memory and waits for each copy.

    Gain: the driver moves pageable memory through a buffer of its own, and neither side does anything else
    until that is done. From pinned memory the same bytes take only the time of the bus, at the rate
    measured in this trace or between those of two generations of the bus.

    - at most: the time of these copies with no kernel beside them, less the fast rate as far as the GPU
      sets the pace, and the GPU's idle time in the rest of these calls and after them.
    - at least: the time of these copies, less the slow rate. None of the idle time, because other waits may
      follow right after.

    Tensors that went to the host before belong to needless-transfers.
    """
    found = moving(copies, "HtoD", "pageable")
    total_ns, exposed_ns = (sum(getattr(row, name) for row in found) for name in ("total_ns", "exposed_ns"))
    n_bytes = sum(row.bytes or 0 for row in found)
    trips = trips_of(copies, mean_step.steps)
    if not n_bytes or not exposed_ns or (trips and trips.sure):
        return None
    bus = bus_of(copies, facts.device(mean_step.device))
    exposed = mean_step.per_step(exposed_ns)
    fast, slow = bus.times(mean_step.per_step(n_bytes) * exposed_ns / total_ns)
    if mean_step.share(exposed - fast) < least_share:
        return None
    starved, around = _idle_ns(mean_step, found, host_syncs)
    return Advice(
        title="Batches are copied to the GPU from pageable memory",
        because=_because(mean_step, bus, total_ns, n_bytes),
        saving=Saving(
            waited_ns=(
                max(0.0, exposed - slow),
                exposed - mean_step.device_pays(Bound.LOW, Length.SHORT) * fast + around,
            ),
            starved_ns=(0.0, starved),
        ),
        certainty="certain",
        fix=fix_of(line(Change.PINNED, _LOADER), _OWN),
        check="stepscope show copies: host memory is pinned, and the host time of a call is microseconds.",
        evidence={
            "bytes_per_step": mean_step.per_step(n_bytes),
            "copies_per_step": mean_step.per_step(sum(row.calls for row in found)),
            "exposed_ns": round(exposed),
            "blocked_host_ns": round(mean_step.per_step(sum(row.host_ns for row in found))),
            **_rates(bus, n_bytes / total_ns),
        },
        claims=frozenset({Claim(Time.WAITED, Part.COPY), Claim(Time.STARVED, Part.SYNCS)}),
        locations=locations_of(
            (row.place, f"{units.size(mean_step.per_step(row.bytes or 0))} a step")
            for row in moving(copies_by_frame, "HtoD", "pageable")
        ),
    )


def _idle_ns(mean_step: MeanStep, found: Iterable[Copy], host_syncs: Table[HostSync]) -> tuple[float, float]:
    """The GPU's idle time in a step after these copies, and in the rest of their calls."""
    starved = min(mean_step.per_step(starved_by(host_syncs)), mean_step.starved_ns)
    calls_ns = mean_step.per_step(sum(row.host_ns - row.blocked_ns for row in found))
    return starved, min(calls_ns, mean_step.starved_ns - starved)


def _rates(bus: Bus, gb_per_s: float) -> dict[str, Figure]:
    return {"gb_per_s": gb_per_s, "pinned_gb_per_s_low": bus.slow, "pinned_gb_per_s_high": bus.fast}


def _because(mean_step: MeanStep, bus: Bus, total_ns: int, n_bytes: int) -> str:
    return (
        f"In a step {units.size(mean_step.per_step(n_bytes))} are copied from pageable memory at "
        f"{units.rate(n_bytes, total_ns)}. That takes {units.duration(mean_step.per_step(total_ns))} of a "
        f"step of {units.duration(mean_step.step_ns)}, and the host waits. Pinned memory reaches {bus}."
    )
