"""Large results are copied to the CPU, into pageable memory."""

from __future__ import annotations

from stepscope import units
from stepscope.analyses.copies import Copy
from stepscope.analyses.host_syncs import HostSync
from stepscope.analyses.step_ops import StepOp
from stepscope.findings import Advice, Category, Saving, locations_of, rule
from stepscope.findings._copying import MANY_COPIES, Bus, bus_of, moving, trips_of
from stepscope.findings._fewer_calls import run_ahead
from stepscope.findings._phrases import if_idle
from stepscope.findings._starvation import COMPUTED_SURELY, computed_on_host
from stepscope.findings._waits import LARGE_BYTES, Wait, WaitCause, waits_of
from stepscope.findings.claims import Claim, Part, Time
from stepscope.findings.facts import Facts
from stepscope.findings.fixes import fix_of
from stepscope.findings.mean_step import MeanStep
from stepscope.records import dataclass
from stepscope.tables import Table

__all__ = ["pageable_results"]

_LESS = "found = scores.argmax(1).cpu()    # what the CPU computes: on the GPU first, the result is smaller"
_PINNED = """\
y = x.to("cpu", non_blocking=True)           # into pinned memory, at the rate of the bus
torch.cuda.current_stream().synchronize()    # once, before the CPU reads it"""
_CLAIMS = frozenset({Claim(Time.WAITED, Part.COPY), Claim(Time.STARVED, Part.SYNCS)})
_COMPUTES = frozenset({Claim(Time.STARVED, Part.PYTHON)})


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
    found = _found(copies_by_op)
    trips = trips_of(copies, mean_step.steps)
    waits = waits_of(host_syncs, step_ops, copies_by_frame if facts.stacks else copies_by_op)
    mine = [wait for wait in waits if wait.cause is WaitCause.LARGE_DOWNLOAD]
    if mean_step.device is None or not found or not mine or (trips and trips.sure):
        return None
    bus = bus_of(copies, facts.device(mean_step.device))
    cost = _Cost.of(mean_step, found, bus, mine, step_ops)
    if mean_step.share(cost.exposed_ns - cost.slow_ns) < least_share:
        return None
    return Advice(
        title="Large results are copied to the CPU, into pageable memory",
        because=f"In a step {units.size(cost.n_bytes)} are copied to the CPU at "
        f"{units.rate(cost.n_bytes, cost.total_ns)}. That takes {units.duration(cost.total_ns)} of a "
        f"step of {units.duration(mean_step.step_ns)}, and the host waits. Pinned memory reaches {bus}."
        + if_idle(
            cost.computed_ns,
            f"Then the GPU waits {{}} for operators that compute on the CPU: {', '.join(cost.computing)}.",
        ),
        saving=cost.saving(mean_step),
        certainty="likely",
        fix=fix_of(*((_LESS, _PINNED) if cost.computed_ns else (_PINNED, _LESS))),
        check="stepscope show copies: DtoH moves fewer bytes, or its host memory is pinned.",
        evidence={
            "bytes_per_step": cost.n_bytes,
            "copies_per_step": cost.copies,
            "exposed_ns": round(cost.exposed_ns),
            "gb_per_s": cost.n_bytes / cost.total_ns,
            "starved_after_ns": round(cost.after_ns),
            "computed_ns": round(cost.computed_ns),
        },
        claims=_CLAIMS | _COMPUTES if cost.computed_ns else _CLAIMS,
        locations=locations_of(
            (row.place, f"{units.size(mean_step.per_step(row.bytes or 0))} a step")
            for row in moving(copies_by_frame, "DtoH", "pageable")
        ),
    )


def _found(copies: Table[Copy]) -> list[Copy]:
    large = [row for row in copies if row.calls and (row.bytes or 0) > LARGE_BYTES * row.calls]
    return moving(large, "DtoH", "pageable")


@dataclass(frozen=True, slots=True)
class _Cost:
    """What the copies of a mean step take, and what the GPU waits for right after them."""

    copies: float
    n_bytes: float
    total_ns: float
    exposed_ns: float
    """With no kernel beside them."""
    slow_ns: float
    """Of that, what as many bytes take into pinned memory at most."""
    after_ns: float
    """The GPU's waiting right after them; nothing where they are weights that are saved."""
    computed_ns: float
    """The part of it for operators that compute on the CPU."""
    computing: tuple[str, ...]
    """The longest of these."""

    @classmethod
    def of(
        cls, mean_step: MeanStep, found: list[Copy], bus: Bus, waits: list[Wait], step_ops: Table[StepOp]
    ) -> _Cost:
        copies, n_bytes, total_ns, exposed_ns = (
            mean_step.per_step(sum(getattr(row, name) or 0 for row in found))
            for name in ("calls", "bytes", "total_ns", "exposed_ns")
        )
        starved = 0.0 if copies >= MANY_COPIES else mean_step.per_step(sum(wait.starved_ns for wait in waits))
        after = min(mean_step.starved_ns, starved)
        computing = sorted(computed_on_host(step_ops), key=lambda row: (-row.starved_ns, str(row.name)))
        return cls(
            copies=copies,
            n_bytes=n_bytes,
            total_ns=total_ns,
            exposed_ns=exposed_ns,
            slow_ns=bus.times(n_bytes * exposed_ns / total_ns)[1],
            after_ns=after,
            computed_ns=min(after, mean_step.per_step(sum(row.starved_ns for row in computing))),
            computing=tuple(dict.fromkeys(row.name or "" for row in computing[:3])),
        )

    def saving(self, mean_step: MeanStep) -> Saving:
        """What goes without the copies, at most with all that follows them."""
        sure = Saving(
            starved_ns=(COMPUTED_SURELY * self.computed_ns, self.after_ns),
            waited_ns=(self.exposed_ns - self.slow_ns, self.exposed_ns),
        )
        return run_ahead(mean_step, sure, self.computed_ns, self.exposed_ns)
