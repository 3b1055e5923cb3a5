"""Tensors are copied between CPU and GPU without need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stepscope import units
from stepscope.analyses.copies import Copy
from stepscope.analyses.host_syncs import HostSync
from stepscope.analyses.starving_phases import StarvingPhase
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice, Bounds, Category, Saving, locations_of, rule
from stepscope.findings._copying import MANY_COPIES, Trips, large, moving, starved_by, trips_of
from stepscope.findings._op_costs import cost_of, python_beside
from stepscope.findings._phrases import if_idle, often, times
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["needless_transfers"]

_COPYING = ("aten::to", "aten::_to_copy", "aten::copy_")
_ELSEWHERE = ("backward", "optimizer", "dataloader")

_FIX_TRIPS = """\
y = torch.clamp(x - x.mean(-1, keepdim=True), -3, 3)      # on the GPU, not x.cpu() ... .to(device)
history.append(loss.detach())                             # metrics: keep them on the GPU,
values = torch.stack(history).tolist()                    # and read all of them at the end"""
_FIX_SMALL = """\
mask = torch.zeros(n, device=device)                      # not torch.zeros(n).to(device)
positions = torch.arange(n, device=device)                # what never changes: once, before the loop
packed = torch.tensor(values).pin_memory().to(device, non_blocking=True)   # many scalars: one copy"""


@rule(category=Category.COPIES)
def needless_transfers(  # noqa: PLR0913  # one parameter for each table
    mean_step: MeanStep,
    copies_by_frame: Table[Copy],
    host_syncs: Table[HostSync],
    step_ops: Table[StepOp],
    starving_phases: Table[StarvingPhase],
    *,
    least_copies: int = MANY_COPIES,
    least_share: float = 0.01,
) -> Advice | None:
    """Tensors go to the CPU and back, or are made on the CPU and sent to the GPU one by one.

    Gain, for large tensors that go and come back:

    - at most: the copies with nothing running beside them, and all of the GPU's idle time after their waits.
    - at least: the copies and two thirds of that idle time, because the work still has to be launched.
      Nothing if it happens once a step, because it may not be the same tensor.

    Gain, for small tensors made on the CPU:

    - at most: the GPU's idle time inside these copies, inside the operators that make the tensors, in the
      Python around both, and after the waits.
    - at least: half of the idle time inside them, because a tensor made on the GPU needs a launch, too.
    """
    trips = trips_of(copies_by_frame, mean_step.steps)
    if trips is not None:
        starved = min(mean_step.per_step(starved_by(host_syncs)), mean_step.starved_ns)
        if mean_step.share(mean_step.per_step(trips.exposed_ns) + starved) >= least_share:
            return _round_trips(trips, starved, mean_step, copies_by_frame)
    small = [row for row in moving(copies_by_frame, "HtoD", "pageable") if not large(row)]
    if mean_step.per_step(sum(row.calls for row in small)) < least_copies:
        return None
    inside, beside = _starved_inside(small, mean_step, step_ops, starving_phases)
    starved = min(
        mean_step.with_latency(inside + beside) + mean_step.per_step(starved_by(host_syncs)),
        mean_step.starved_ns,
    )
    if mean_step.share(starved) < least_share:
        return None
    return _made_on_cpu(small, (min(mean_step.with_latency(inside) / 2, starved), starved), mean_step)


def _round_trips(trips: Trips, starved: float, mean_step: MeanStep, copies: Table[Copy]) -> Advice:
    exposed = mean_step.per_step(trips.exposed_ns)
    there, here = (units.size(mean_step.per_step(moved)) for moved in (trips.out_bytes, trips.back_bytes))
    return Advice(
        title="Tensors go to the CPU and back",
        because=f"In a step {there} go to the CPU and {here} come back, in "
        f"{times(mean_step.per_step(trips.trips), 'round trip')}."
        + (f" Nothing else runs during {units.duration(exposed)} of these copies." if exposed else "")
        + if_idle(starved, "After the copies the GPU is idle for {}."),
        saving=Saving(waited_ns=(exposed + 2 / 3 * starved if trips.sure else 0.0, exposed + starved)),
        certainty="likely" if trips.sure else "possible",
        fix=_FIX_TRIPS,
        check="stepscope show copies: no DtoH copy of this size.",
        evidence={
            "trips_per_step": mean_step.per_step(trips.trips),
            "out_bytes_per_step": mean_step.per_step(trips.out_bytes),
            "back_bytes_per_step": mean_step.per_step(trips.back_bytes),
            "exposed_ns": round(exposed),
            "starved_ns": round(starved),
        },
        claims=frozenset({Claim(Time.WAITED, Part.COPY), Claim(Time.STARVED, Part.SYNCS)}),
        locations=locations_of(
            (row.place, f"{units.size(mean_step.per_step(row.bytes or 0))} a step, {row.direction}")
            for row in copies
            if row.host_memory == "pageable" and large(row)
        ),
    )


def _starved_inside(
    small: Sequence[Copy], mean_step: MeanStep, step_ops: Table[StepOp], starving_phases: Table[StarvingPhase]
) -> Bounds:
    """Idle time of a step inside the operators that made and copied these tensors, and in Python around them.

    For operators that copy, it is the part of these copies in all that they launched. Operators that make a
    tensor launch nothing and are called as often from the same place.
    """
    calls: dict[str | None, int] = {}
    for copy in small:
        calls[copy.place] = calls.get(copy.place, 0) + copy.calls
    here = [row for row in step_ops if row.user_frame in calls and row.phase not in _ELSEWHERE]
    copying = cost_of(
        (row for row in here if row.name in _COPYING and row.within not in _COPYING and row.launches),
        mean_step,
    )
    made = (row for row in here if row.within is None and not row.launches)
    making = cost_of((row for row in made if row.calls == calls[row.user_frame]), mean_step)
    launches = copying.launches
    part = min(1.0, mean_step.per_step(sum(calls.values())) / launches) if launches else 0.0
    inside = part * copying.starved_ns + making.starved_ns
    cost = replace(copying, calls=part * copying.calls + making.calls, starved_ns=inside)
    return inside, python_beside(cost, mean_step, starving_phases, step_ops)


def _made_on_cpu(small: Sequence[Copy], starved: Bounds, mean_step: MeanStep) -> Advice:
    calls, n_bytes = sum(row.calls for row in small), sum(row.bytes or 0 for row in small)
    return Advice(
        title="Small tensors are sent to the GPU one by one",
        because=f"{times(mean_step.per_step(calls), 'copy')} a step move {units.size(n_bytes / calls)} each "
        "from pageable memory, and the host waits for each of them. The GPU is idle for up to "
        f"{units.duration(starved[1])} a step because of that.",
        saving=Saving(starved_ns=starved),
        certainty="likely",
        fix=_FIX_SMALL,
        check="stepscope show copies --by frame: few HtoD copies of a few bytes.",
        evidence={
            "copies_per_step": mean_step.per_step(calls),
            "bytes_per_copy": n_bytes / calls,
            "starved_ns": round(starved[1]),
        },
        claims=frozenset({Claim(Time.STARVED, Part.SYNCS)}),
        locations=locations_of(
            (row.place, often(mean_step.per_step(row.calls), "copy"))
            for row in sorted(small, key=lambda row: -row.calls)
        ),
    )
