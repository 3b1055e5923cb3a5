"""Large results are copied to the CPU, into pageable memory."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.copies import Copy
from stepscope.analyses.host_syncs import HostSync
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice, Category, Saving, locations_of, rule
from stepscope.findings._copying import MANY_COPIES, bus_of, moving, trips_of
from stepscope.findings._fewer_calls import run_ahead
from stepscope.findings._phrases import if_idle
from stepscope.findings._starvation import computed_on_host
from stepscope.findings._waits import LARGE_BYTES, WaitCause, waits_of
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.facts import Facts
from stepscope.findings.fixes import fix_of
from stepscope.findings.mean_step import MeanStep
from stepscope.tables import Table

__all__ = ["pageable_results"]

_SURE = 0.7
"""Of the waiting for operators on the CPU: on the GPU each still has to be launched."""
_LESS = "found = scores.argmax(1).cpu()    # what the CPU computes: on the GPU first, the result is smaller"
_PINNED = """\
y = x.to("cpu", non_blocking=True)           # into pinned memory, at the rate of the bus
torch.cuda.current_stream().synchronize()    # once, before the CPU reads it"""


@rule(category=Category.COPIES, yields_to=("needless_transfers",))
def pageable_results(  # noqa: PLR0913, PLR0917  # one parameter for each table
    mean_step: MeanStep,
    facts: Facts,
    copies: Table[Copy],
    copies_by_op: Table[Copy],
    copies_by_frame: Table[Copy],
    host_syncs: Table[HostSync],
    step_ops: Table[StepOp],
    *,
    least_share: float = 0.02,
) -> Advice | None:
    """Large results go to the CPU, into new pageable memory, which is slow, and the host waits.

    Gain: the driver copies through a buffer of its own, into memory that the system hands out page by page.

    - at most: the time of these copies with no kernel beside them, and all that the GPU then waits for the
      host. Without operators on the CPU in between, the host launches the next step meanwhile.
    - at least: the time of these copies, less that of as many bytes into pinned memory. If operators compute
      on the CPU right after them, also seven tenths of the GPU's waiting for these.

    Where there are many, they are weights that are saved, and what the GPU waits for after them is that: only
    the copies count. Tensors that go back to the GPU belong to needless-transfers.
    """
    large = [row for row in copies_by_op if row.calls and (row.bytes or 0) > LARGE_BYTES * row.calls]
    found = moving(large, "DtoH", "pageable")
    trips = trips_of(copies, mean_step.steps)
    waits = waits_of(host_syncs, step_ops, copies_by_frame if facts.stacks else copies_by_op)
    mine = [wait for wait in waits if wait.cause is WaitCause.LARGE_DOWNLOAD]
    if mean_step.device is None or not found or not mine or (trips and trips.sure):
        return None
    n_bytes = sum(row.bytes or 0 for row in found)
    total_ns, exposed_ns = (sum(getattr(row, name) for row in found) for name in ("total_ns", "exposed_ns"))
    exposed = mean_step.per_step(exposed_ns)
    bus = bus_of(copies, facts.device(mean_step.device))
    slow = bus.times(mean_step.per_step(n_bytes) * exposed_ns / total_ns)[1]
    if mean_step.share(exposed - slow) < least_share:
        return None
    calls = mean_step.per_step(sum(row.calls for row in found))
    starved = 0.0 if calls >= MANY_COPIES else mean_step.per_step(sum(wait.starved_ns for wait in mine))
    after = min(mean_step.starved_ns, starved)
    computing = sorted(computed_on_host(step_ops), key=lambda row: (-row.starved_ns, str(row.name)))
    computed = min(after, mean_step.per_step(sum(row.starved_ns for row in computing)))
    saving = Saving(starved_ns=(_SURE * computed, after), waited_ns=(exposed - slow, exposed))
    named = ", ".join(dict.fromkeys(row.name or "" for row in computing[:3]))
    return Advice(
        title="Large results are copied to the CPU, into pageable memory",
        because=f"In a step {units.size(mean_step.per_step(n_bytes))} are copied to the CPU at "
        f"{units.rate(n_bytes, total_ns)}. That takes {units.duration(mean_step.per_step(total_ns))} of a "
        f"step of {units.duration(mean_step.step_ns)}, and the host waits. Pinned memory reaches {bus}."
        + if_idle(computed, f"Then the GPU waits {{}} for operators that compute on the CPU: {named}."),
        saving=run_ahead(mean_step, saving, computed, exposed),
        certainty="likely",
        fix=fix_of(*((_LESS, _PINNED) if computed else (_PINNED, _LESS))),
        check="stepscope show copies: DtoH moves fewer bytes, or its host memory is pinned.",
        evidence={
            "bytes_per_step": mean_step.per_step(n_bytes),
            "copies_per_step": calls,
            "exposed_ns": round(exposed),
            "gb_per_s": n_bytes / total_ns,
            "starved_after_ns": round(after),
            "computed_ns": round(computed),
        },
        claims=frozenset(
            {Claim(Time.WAITED, Part.COPY), Claim(Time.STARVED, Part.SYNCS)}
            | ({Claim(Time.STARVED, Part.PYTHON)} if computed else set())
        ),
        locations=locations_of(
            (row.place, f"{units.size(mean_step.per_step(row.bytes or 0))} a step")
            for row in moving(copies_by_frame, "DtoH", "pageable")
        ),
    )
