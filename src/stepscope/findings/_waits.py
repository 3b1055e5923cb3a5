"""Calls in which the host waits for the GPU: what caused each, and what is gained without it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from stepscope import units
from stepscope.analyses.idle_gaps import SpentIn
from stepscope.findings import Bounds, Location, Saving, locations_of
from stepscope.findings._phrases import if_idle, often, times
from stepscope.patterns import late_pattern
from stepscope.records import dataclass

if TYPE_CHECKING:
    from stepscope.analyses.copies import Copy
    from stepscope.analyses.host_syncs import HostSync
    from stepscope.analyses.idle_gaps import IdleGap
    from stepscope.analyses.iterations import Iteration
    from stepscope.analyses.kernels import Kernel
    from stepscope.analyses.step_ops import StepOp
    from stepscope.findings.mean_step import MeanStep

__all__ = [
    "LARGE_BYTES",
    "NODE",
    "Lead",
    "Reason",
    "Wait",
    "WaitCause",
    "anomaly_checks",
    "held_up",
    "launch_costs",
    "lead_of",
    "lead_won",
    "locations_of_waits",
    "of_shares",
    "read_ops",
    "times",
    "waits_of",
]


class WaitCause(StrEnum):
    """What made the host wait for the device."""

    READ = "scalar read"
    ANOMALY = "anomaly detection"
    EXPLICIT = "synchronisation"
    UPLOAD = "copy to the device"
    LARGE_UPLOAD = "large copy to the device"
    DOWNLOAD = "copy to the host"
    LARGE_DOWNLOAD = "large copy to the host"
    """The copy itself takes most of the wait."""
    OPERATOR = "operator"
    OTHER = "other"


class Reason(NamedTuple):
    """Why the host waited: a cause, and the operator where that is the cause."""

    cause: WaitCause
    op: str | None = None

    @property
    def name(self) -> str:
        """The operator, or else the cause, as text."""
        return self.op or self.cause.value


NODE = "autograd::engine::evaluate_function"
"""How torch names the run of an autograd node: this, a colon and the node."""
# .item(), float(t) and int(t) are aten::item, `if t:` is aten::is_nonzero around it; on a GPU both call
# aten::_local_scalar_dense, which copies the scalar and waits.
_READS = ("aten::_local_scalar_dense", "aten::item", "aten::is_nonzero")
_ASKED_BY_PROGRAM = (None, "aten::is_nonzero")
# What anomaly detection runs after each node: torch's engine calls isnan(grad)._is_any_true().item(), older
# versions isnan(grad).any().item().
_CHECKS = ("aten::isnan", "aten::_is_any_true", "aten::any", "aten::item", "aten::is_nonzero")
_COPIES = ("aten::copy_", "aten::_to_copy", "aten::to")
_SYNCHRONISES = late_pattern(r"Synchroni[sz]e")
# Compilers time kernels, collectives wait for peers: the program did not ask for these waits.
_NOT_ASKED = late_pattern(r"^_?c10d|dynamo_timed|^nccl:|^gloo:")
LARGE_BYTES = 1 << 20
_BEYOND_SIMULATION = 2.0


@dataclass(frozen=True, slots=True)
class Wait:
    """Calls that waited for the GPU for one reason, at one place; over all steps."""

    reason: Reason
    frame: str | None
    calls: float
    waited_ns: float
    starved_ns: float
    called: str | None = None
    """The operator that waited, or else the runtime call."""

    @property
    def cause(self) -> WaitCause:
        """What made the host wait."""
        return self.reason.cause

    def part(self, reason: Reason, share: float) -> Wait:
        """A part of them, for another reason."""
        return Wait(
            reason,
            self.frame,
            self.calls * share,
            self.waited_ns * share,
            self.starved_ns * share,
            self.called,
        )


@dataclass(frozen=True, slots=True)
class Lead:
    """How far the host gets ahead in a step if it does not wait, besides the waits themselves."""

    beside_ns: Bounds
    """Host time around the waits that goes with them; negative if what replaces it takes longer."""
    kernels: tuple[Kernel, ...]
    launch_ns: float
    """Recorded host time of an operator that launches a kernel."""
    busy_ns: float
    """Work of the GPU in a step."""
    carried: bool
    """Whether a step follows that can use the lead."""

    def ahead_ns(self, speed: float) -> float:
        """How far it can get ahead of the GPU if operators take this part of their recorded time."""
        # The table of kernels covers the whole trace: take as many as fill the GPU's time in a step.
        work = sum(row.total_ns for row in self.kernels)
        inside = min(self.busy_ns / work, 1.0) if work else 0.0
        longer = (row.calls * max(0.0, row.mean_ns - speed * self.launch_ns) for row in self.kernels)
        return inside * sum(longer)


def anomaly_checks(step_ops: Iterable[StepOp]) -> list[StepOp]:
    """The operators of anomaly detection; empty if it is off."""
    found = [row for row in step_ops if row.name in _CHECKS and (row.within or "").startswith(NODE)]
    return found if {"aten::isnan", "aten::item"} <= {row.name for row in found} else []


def read_ops(step_ops: Iterable[StepOp]) -> list[tuple[Reason, StepOp]]:
    """Operators that read a scalar from a GPU, with its reason; reads of host memory are left out."""
    rows = list(step_ops)
    anomaly = bool(anomaly_checks(rows))
    found = []
    for row in rows:
        bare = row.name == "aten::_local_scalar_dense" and row.within != "aten::item"
        if row.launches and (row.name == "aten::item" or bare):
            found.append((_reason_of_read(row.within, anomaly=anomaly), row))
    return found


def _reason_of_read(within: str | None, *, anomaly: bool) -> Reason:
    if anomaly and within and within.startswith(NODE):
        return Reason(WaitCause.ANOMALY)
    composite = within is not None and within.startswith("aten::") and within not in _ASKED_BY_PROGRAM
    return Reason(WaitCause.OPERATOR, within) if composite else Reason(WaitCause.READ)


def waits_of(
    host_syncs: Iterable[HostSync], step_ops: Iterable[StepOp], copies: Iterable[Copy] = ()
) -> list[Wait]:
    """The waits by reason; `copies`, by operator or by frame, tell the direction of copies."""
    reads, moved = read_ops(step_ops), list(copies)
    found: list[Wait] = []
    for row in host_syncs:
        called = row.op or row.call
        wait = Wait(Reason(WaitCause.OTHER), row.user_frame, row.calls, row.waited_ns, row.starved_ns, called)
        synchronises = bool(_SYNCHRONISES.search(row.call or ""))
        if row.op is None:
            found.append(wait.part(Reason(WaitCause.EXPLICIT), 1.0) if synchronises else wait)
        elif _NOT_ASKED.search(row.op) or not (synchronises or "emcpy" in (row.call or "")):
            found.append(wait)
        elif row.op in _READS:
            found += _shared(wait, _shares_of_reads(reads, row.user_frame))
        elif row.op in _COPIES:
            found += _shared(wait, _shares_of_copies(moved, row, by_bytes=not synchronises))
        else:
            found.append(wait.part(Reason(WaitCause.OPERATOR, row.op), 1.0))
    return found


def _shared(wait: Wait, shares: dict[Reason, float]) -> Iterator[Wait]:
    whole = sum(shares.values())
    for reason, share in shares.items():
        yield wait.part(reason, share / whole)


def _shares_of_reads(reads: list[tuple[Reason, StepOp]], frame: str | None) -> dict[Reason, float]:
    """How often each reason read a scalar from this place; from anywhere if the place is not known."""
    here = [(reason, row) for reason, row in reads if row.user_frame == frame] or reads
    shares: dict[Reason, float] = {}
    for reason, row in here:
        shares[reason] = shares.get(reason, 0.0) + row.launches
    return shares or {Reason(WaitCause.READ): 1.0}


def _shares_of_copies(moved: list[Copy], row: HostSync, *, by_bytes: bool) -> dict[Reason, float]:
    """The direction of the copies of an operator or a place, weighted by their number or by their bytes.

    The driver's own call waits for large copies; torch's call after it waits for any pageable copy.
    """
    shares: dict[Reason, float] = {}
    for copy in moved:
        if copy.host_memory == "pinned" or copy.place not in (row.op, row.user_frame):
            continue
        size = (copy.bytes or 0) / copy.calls if copy.calls else 0
        if copy.direction == "HtoD":
            reason = Reason(WaitCause.LARGE_UPLOAD if size > LARGE_BYTES else WaitCause.UPLOAD)
        elif copy.direction == "DtoH":
            copying = size > LARGE_BYTES and 2 * copy.total_ns > row.waited_ns
            reason = Reason(WaitCause.LARGE_DOWNLOAD if copying else WaitCause.DOWNLOAD)
        else:
            continue
        weight = float(copy.bytes or 0) if by_bytes else float(copy.calls)
        shares[reason] = shares.get(reason, 0.0) + weight
    return shares if sum(shares.values()) > 0 else {Reason(WaitCause.DOWNLOAD): 1.0}


def lead_won(
    mean_step: MeanStep, idle_gaps: Iterable[IdleGap], waits: list[Wait], others: list[Wait], lead: Lead
) -> Saving:
    """What a step saves if the host no longer makes these waits.

    A host that does not wait is ahead of the GPU by all the time that the waits took. That lead helps
    wherever the GPU waits for the host now, so the step shrinks by the smaller of the two: the lead, or the
    GPU's waiting that the lead can reach. It cannot reach what follows other waits, or what waits for data
    loader workers. If there are other waits, only the gaps right after these waits are sure. If no step
    follows, these gaps are also the upper bound.

    Recording slows down what the host does, and so makes the GPU wait longer; it does not lengthen the
    waits of the host. Without recording the host is faster and waits longer: by no more than recording
    cost, and no more than it can get ahead of the GPU at all, which is what kernels take beyond the
    operators that launch them. The step is longer by that, and so is the saving.
    """
    starved = min(
        mean_step.starved_ns,
        mean_step.with_latency(mean_step.per_step(sum(wait.starved_ns for wait in waits))),
    )
    elsewhere = mean_step.with_latency(mean_step.per_step(sum(wait.starved_ns for wait in others)))
    idle = [gap for gap in idle_gaps if gap.device == mean_step.device and gap.spent_in == SpentIn.DATALOADER]
    outside = mean_step.per_step(sum(gap.idle_ns for gap in idle))
    reach = max(starved, mean_step.starved_ns - elsewhere - outside) if lead.carried else starved
    sure = starved if mean_step.share(elsewhere) > 0.01 else reach
    waited = mean_step.per_step(sum(wait.waited_ns for wait in waits))
    lows, highs = [], []
    least_beside, most_beside = lead.beside_ns
    for unprofiled, step in zip(mean_step.unprofiled_starved_ns, mean_step.unprofiled_ns, strict=True):
        left = unprofiled / mean_step.starved_ns if mean_step.starved_ns else 0.0
        lows.append(min(left * sure, max(0.0, waited + left * least_beside)) / (step or 1.0))
        longer = min(mean_step.step_ns - step, max(0.0, lead.ahead_ns(mean_step.share(step)) - waited))
        most = min(left * reach, waited + left * most_beside)
        longer = min(longer, reach - most) if lead.carried else 0.0
        highs.append((most + longer) / (step + longer or 1.0))
    high = min(max(highs), _most_by_simulation(mean_step, most_beside))
    return of_shares(mean_step, min(*lows, high), high)


def _most_by_simulation(mean_step: MeanStep, beside_ns: float) -> float:
    """What a step can gain at most if no call waits, and time beside the waits goes as well.

    The simulation in which no call waits keeps everything else that the host does. Programs whose waits were
    removed gained up to twice what it says.
    """
    if "waits" not in mean_step.losses:
        return 1.0
    left = [
        starved / mean_step.starved_ns if mean_step.starved_ns else 0.0
        for starved in mean_step.unprofiled_starved_ns
    ]
    beside = max(
        part * beside_ns / (step or 1.0) for part, step in zip(left, mean_step.unprofiled_ns, strict=True)
    )
    return _BEYOND_SIMULATION * mean_step.losses["waits"][1] + max(0.0, beside)


def of_shares(mean_step: MeanStep, low: float, high: float) -> Saving:
    """Parts of the step without the profiler, whatever its length, as a saving.

    The short and the long step differ only in how long the GPU waits for the host. So the saving is the same
    part of both if it is that part of this waiting and of the rest.
    """
    short, long = mean_step.unprofiled_ns
    if not mean_step.starved_ns:
        most = high * short
        return Saving(waited_ns=(min(low * long, most), most))
    rest = min(mean_step.busy_ns + mean_step.waiting_ns, short)
    return Saving(
        starved_ns=(low * mean_step.starved_ns, high * mean_step.starved_ns),
        waited_ns=(low * rest, high * rest),
    )


def lead_of(
    mean_step: MeanStep,
    beside_ns: Bounds,
    kernels: Iterable[Kernel],
    step_ops: Iterable[StepOp],
    iterations: Iterable[Iteration],
) -> Lead:
    """The lead that the host wins if it no longer waits."""
    steps = list(iterations)
    return Lead(
        beside_ns=beside_ns,
        kernels=tuple(kernels),
        launch_ns=launch_costs(step_ops)[1],
        busy_ns=mean_step.busy_ns,
        carried=len(steps) > 1 or any(row.source == "mark" for row in steps),
    )


def launch_costs(step_ops: Iterable[StepOp]) -> Bounds:
    """Host time of an operator that launches one kernel, in ns: of the cheapest kind, and on average."""
    rows = [row for row in step_ops if row.launches and row.name not in (*_READS, *_COPIES)]
    single = [row.host_ns / row.calls for row in rows if row.launches == row.calls]
    outer = [row for row in rows if row.within is None]
    launches = sum(row.launches for row in outer)
    mean = sum(row.host_ns for row in outer) / launches if launches else 0.0
    return min([mean, *single]), mean


def locations_of_waits(waits: Iterable[Wait], steps: int, what: str) -> tuple[Location, ...]:
    """The places of waits, most expensive first, with how often each waits in a step."""
    places: dict[str, list[float]] = {}
    called: dict[str, list[str | None]] = {}
    for wait in waits:
        if wait.frame:
            called.setdefault(wait.frame, []).append(wait.called)
            sums = places.setdefault(wait.frame, [0.0, 0.0])
            sums[0] += wait.waited_ns + wait.starved_ns
            sums[1] += wait.calls
    ordered = sorted(places.items(), key=lambda place: (-place[1][0], place[0]))
    return locations_of(
        (frame, often(calls / steps if steps else calls, what), called[frame])
        for frame, (_, calls) in ordered
    )


def held_up(mean_step: MeanStep, host_ns: float, waits: Iterable[Wait]) -> str:
    """What waits cost, as text, and how to see their lines if they are not known."""
    rows = list(waits)
    starved = mean_step.per_step(sum(wait.starved_ns for wait in rows))
    of_step = mean_step.share(host_ns)
    share = f"{units.share(of_step)} of the step" if of_step <= 1 else "in several threads at once"
    text = f"{units.duration(host_ns)} of host time ({share})."
    text += if_idle(starved, "Right after that the GPU is idle for {}.")
    text += if_idle(mean_step.starved_ns, "Over the whole step, the GPU waits {} for the host.")
    known = any(wait.frame for wait in rows)
    return text if known else f"{text} Record with with_stack=True to see which lines these are."
