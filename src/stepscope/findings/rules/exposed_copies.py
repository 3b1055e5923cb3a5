"""Copies to the GPU that do not overlap with kernels."""

from __future__ import annotations

from collections.abc import Iterable

from stepscope import units
from stepscope.analyses.changed_steps import ChangedStep
from stepscope.analyses.copies import Copy
from stepscope.analyses.steps import Step
from stepscope.findings import Advice, Bounds, Category, Saving, locations_of, rule
from stepscope.findings._copying import Bus, bus_of, large, moving, trips_of
from stepscope.findings._simulated import simulated
from stepscope.findings._waits import of_shares
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.facts import Facts
from stepscope.findings.fixes import Change, fix_of, line
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["exposed_copies"]

_LEAST_EXPOSED = 0.4
"""If a smaller part of the copy time is exposed, the copies are prefetched already."""
_FIX = """\
copying = torch.cuda.Stream()

def fetch(batches):                                   # the loader has pin_memory=True
    batch = next(batches, None)
    with torch.cuda.stream(copying):
        return None if batch is None else batch.to(device, non_blocking=True)

batches = iter(loader)
coming = fetch(batches)
while coming is not None:
    torch.cuda.current_stream().wait_stream(copying)
    batch = coming
    batch.record_stream(torch.cuda.current_stream())
    coming = fetch(batches)                           # overlaps with the kernels of this step
    train(batch)"""


@rule(category=Category.COPIES)
def exposed_copies(  # noqa: PLR0913  # one parameter for each table
    mean_step: MeanStep,
    facts: Facts,
    copies: Table[Copy],
    copies_by_frame: Table[Copy],
    steps_by_any: Table[Step],
    changed_steps_by_overlap_copies: Table[ChangedStep],
    *,
    finding_share: float = 0.03,
) -> Advice | None:
    """Copies to the GPU run while no kernel does.

    Gain: on a stream of its own, the copy of the next batch overlaps with the kernels of this one.

    - at most: the exposed time of the copies, as far as kernels without a copy beside them last that long.
    - at least: the same with half of these kernels, because a copy that starts in the middle of a step has
      only the rest of it.
    - from pinned memory: both bounds are narrowed to what a simulation says in which copies overlap.
    - from pageable memory: only the time that the bytes take on the bus counts. Such copies block the host
      on any stream and have to be pinned first, which is another finding.

    Tensors that go to the host and come back cannot be prefetched and do not count.
    """
    found = [row for row in moving(copies, "HtoD") if large(row)]
    exposed_ns = sum(row.exposed_ns for row in found)
    exposed = mean_step.per_step(exposed_ns)
    hidden = exposed_ns < _LEAST_EXPOSED * sum(row.total_ns for row in found)
    trips = trips_of(copies, mean_step.steps)
    if not exposed or hidden or mean_step.share(exposed) < finding_share or (trips and trips.sure):
        return None
    kernel = mean_step.per_step(sum(row.kernel_ns for row in steps_by_any))
    room = max(0.0, kernel - mean_step.per_step(sum(row.overlapped_ns for row in found)))
    low, high = _left_when_pinned(found, bus_of(copies, facts.device(mean_step.device)), mean_step)
    pageable = any(row.host_memory == "pageable" and row.exposed_ns for row in found)
    saving = Saving(device_ns=(min(low, room / 2), min(high, room)))
    beside = f" It could overlap with {units.duration(room)} of kernels that have no copy beside them."
    first = " The copies come from pageable memory: pin them first." if pageable else ""
    share = mean_step.share(exposed)
    return Advice(
        title="Copies to the GPU do not overlap with kernels",
        because=f"For {units.duration(exposed)} of a step ({_part(share)}) a copy to the GPU runs while "
        f"no kernel does.{beside if room else ''}{first}",
        saving=saving if pageable else _within_simulation(mean_step, saving, changed_steps_by_overlap_copies),
        certainty="likely",
        fix=fix_of(line(Change.PREFETCH, _FIX)),
        check="stepscope show copies: for HtoD, overlapped_ns is most of total_ns.",
        evidence={
            "exposed_ns": round(exposed),
            "exposed_share": share,
            "free_kernel_ns": round(room),
            "copies_per_step": mean_step.per_step(sum(row.calls for row in found)),
            "bytes_per_step": mean_step.per_step(sum(row.bytes or 0 for row in found)),
        },
        claims=frozenset({Claim(Time.DEVICE, Part.COPY)}),
        locations=locations_of(
            (row.place, f"{units.duration(mean_step.per_step(row.exposed_ns))} a step, no kernel running")
            for row in moving(copies_by_frame, "HtoD")
            if row.exposed_ns and large(row)
        ),
    )


def _part(share: float) -> str:
    return units.share(share) if share <= 1 else "summed over the devices"


def _within_simulation(mean_step: MeanStep, saving: Saving, changed_steps: Table[ChangedStep]) -> Saving:
    """A saving with the narrower bounds of a simulation, if there is one."""
    if not changed_steps:
        return saving
    argued, modelled = mean_step.gain(saving), mean_step.gain(simulated(mean_step, changed_steps))
    most = min(argued.high_share, max(modelled.high_share, argued.low_share))
    return of_shares(mean_step, min(most, max(argued.low_share, modelled.low_share)), most)


def _left_when_pinned(found: Iterable[Copy], bus: Bus, mean_step: MeanStep) -> Bounds:
    """The exposed time of a step if pageable copies were as fast as pinned ones."""
    low = high = 0.0
    for row in found:
        least = most = float(row.exposed_ns)
        if row.host_memory == "pageable" and row.bytes is not None and row.total_ns:
            times = bus.times(row.bytes * row.exposed_ns / row.total_ns)
            least, most = (min(time, row.exposed_ns) for time in times)
        low, high = low + least, high + most
    return mean_step.per_step(low), mean_step.per_step(high)
