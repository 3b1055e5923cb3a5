"""What copies from pageable memory cost, for the rules that say where they come from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from stepscope import units
from stepscope.analyses.copies import Copy
from stepscope.analyses.host_syncs import HostSync
from stepscope.findings import Figure, Saving
from stepscope.findings._copying import Bus, bus_of, moving, starved_by, trips_of
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.facts import Facts
from stepscope.findings.mean_step import Bound, Length, MeanStep
from stepscope.records import dataclass
from stepscope.tables import Table

__all__ = ["CLAIMS", "LOADER", "OWN", "Pageable", "pageable"]

LOADER = """\
loader = DataLoader(dataset, ..., pin_memory=True)        # a thread of the loader pins the batches
batch = batch.to(device, non_blocking=True)"""
OWN = """\
# tensors that you fill yourself: pin them once, not in every step
stored = torch.empty(shape, pin_memory=True)
index = index.to(device)    # what is the same in every step: once, before the loop"""
CLAIMS = frozenset({Claim(Time.WAITED, Part.COPY), Claim(Time.STARVED, Part.SYNCS)})


@dataclass(frozen=True, slots=True)
class Pageable:
    """What pinned memory saves, and why we think so."""

    saving: Saving
    because: str
    evidence: Mapping[str, Figure]


def pageable(
    mean_step: MeanStep,
    facts: Facts,
    copies: Table[Copy],
    host_syncs: Table[HostSync],
    least_share: float,
) -> Pageable | None:
    """What copies to the GPU from pageable memory cost; None if it is less than `least_share` of the step."""
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
    return Pageable(
        saving=Saving(
            waited_ns=(
                max(0.0, exposed - slow),
                exposed - mean_step.device_pays(Bound.LOW, Length.SHORT) * fast + around,
            ),
            starved_ns=(0.0, starved),
        ),
        because=_because(mean_step, bus, total_ns, n_bytes),
        evidence={
            "bytes_per_step": mean_step.per_step(n_bytes),
            "copies_per_step": mean_step.per_step(sum(row.calls for row in found)),
            "exposed_ns": round(exposed),
            "blocked_host_ns": round(mean_step.per_step(sum(row.host_ns for row in found))),
            "gb_per_s": n_bytes / total_ns,
            "pinned_gb_per_s_low": bus.slow,
            "pinned_gb_per_s_high": bus.fast,
        },
    )


def _idle_ns(mean_step: MeanStep, found: Iterable[Copy], host_syncs: Table[HostSync]) -> tuple[float, float]:
    """The GPU's idle time in a step after these copies, and in the rest of their calls."""
    starved = min(mean_step.per_step(starved_by(host_syncs)), mean_step.starved_ns)
    calls_ns = mean_step.per_step(sum(row.host_ns - row.blocked_ns for row in found))
    return starved, min(calls_ns, mean_step.starved_ns - starved)


def _because(mean_step: MeanStep, bus: Bus, total_ns: int, n_bytes: int) -> str:
    return (
        f"In a step {units.size(mean_step.per_step(n_bytes))} are copied from pageable memory at "
        f"{units.rate(n_bytes, total_ns)}. That takes {units.duration(mean_step.per_step(total_ns))} of a "
        f"step of {units.duration(mean_step.step_ns)}, and the host waits. Pinned memory reaches {bus}."
    )
