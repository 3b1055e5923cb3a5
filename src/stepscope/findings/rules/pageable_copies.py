"""Batches lie in pageable memory."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.copies import Copy
from stepscope.analyses.host_syncs import HostSync
from stepscope.findings import Advice, Category, Saving, locations_of, rule
from stepscope.findings._copying import Bus, bus_of, moving, starved_by, trips_of
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.facts import Facts
from stepscope.findings.mean_step import Bound, Length, MeanStep
from stepscope.tables import Table

__all__ = ["pageable_copies"]

_FIX = """\
loader = DataLoader(dataset, ..., pin_memory=True)        # a thread of the loader pins the batches
batch = batch.to(device, non_blocking=True)
# tensors that you keep yourself: pin them once, not in every step
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
    """The host copies to the device from pageable memory, and waits for it.

    Gain: the driver moves pageable memory through a buffer of its own, and the call returns when that is
    done, so neither side does anything else: the time in which such a copy ran with no kernel beside it is
    part of the step. From pinned memory the same bytes take what the bus takes, as measured in this trace or
    between two generations of the bus, and that much stays; at the most only as far as the device sets the
    pace, for otherwise it has the time. Besides, the host need not wait any more, so at
    the most the idle time in the rest of these calls and after them goes as well; at the least none of it
    does, since other waits may be right behind. Tensors that went to the host before are not meant here.
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
    starved = min(mean_step.per_step(starved_by(host_syncs)), mean_step.starved_ns)
    around = min(
        mean_step.per_step(sum(row.host_ns - row.blocked_ns for row in found)), mean_step.starved_ns - starved
    )
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
        fix=_FIX,
        check="stepscope show copies: host memory is pinned, and the host spends microseconds in the call.",
        evidence={
            "bytes_per_step": mean_step.per_step(n_bytes),
            "copies_per_step": mean_step.per_step(sum(row.calls for row in found)),
            "exposed_ns": round(exposed),
            "blocked_host_ns": round(mean_step.per_step(sum(row.host_ns for row in found))),
            "gb_per_s": n_bytes / total_ns,
            "pinned_gb_per_s_low": bus.slow,
            "pinned_gb_per_s_high": bus.fast,
        },
        claims=frozenset({Claim(Time.WAITED, Part.COPY), Claim(Time.STARVED, Part.SYNCS)}),
        locations=locations_of(
            (row.place, f"{units.size(mean_step.per_step(row.bytes or 0))} a step")
            for row in moving(copies_by_frame, "HtoD", "pageable")
        ),
    )


def _because(mean_step: MeanStep, bus: Bus, total_ns: int, n_bytes: int) -> str:
    return (
        f"{units.size(mean_step.per_step(n_bytes))} a step come from pageable memory at "
        f"{units.rate(n_bytes, total_ns)}: that takes {units.duration(mean_step.per_step(total_ns))} of a step of "
        f"{units.duration(mean_step.step_ns)}, and the host waits for it. Pinned memory gets {bus}."
    )
