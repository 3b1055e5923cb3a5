"""Collectives of a step, for the rules about ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from stepscope import units
from stepscope.costs.collectives import UNKNOWN, kind_of_operation
from stepscope.findings._phrases import times
from stepscope.patterns import late_pattern
from stepscope.records import dataclass

if TYPE_CHECKING:
    from stepscope.analyses.collective_kinds import CollectiveKind
    from stepscope.analyses.kernel_families import KernelFamily
    from stepscope.analyses.step_ops import StepOp
    from stepscope.analyses.steps import Step
    from stepscope.findings.mean_step import MeanStep

__all__ = [
    "ACCUMULATES",
    "Exposed",
    "buffers_broadcast",
    "exposed_kinds",
    "exposed_of",
    "in_words",
    "is_slow",
    "kind_of",
    "mean_bytes",
    "of_kind",
    "speed_of",
    "telling",
    "who_takes_part",
]

ACCUMULATES = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
"""The autograd node whose hooks run the reducer of DistributedDataParallel."""
# Operators of torch.distributed are c10d::allreduce_, c10d::_allgather_base_, c10d::alltoall_base_ …; the
# functional ones, which compilers see, are _c10d_functional::all_reduce and so on.
_OPERATOR = late_pattern(r"_?c10d(_functional)?::")
LATENCY_NS = 50_000
"""What a collective takes on one machine however small it is, with room: 10 to 50 µs are usual."""
FAR_SLOWER = 10.0
"""So many times what the link needs is no matter of tuning. NCCL reaches 60 to 90 % of a link for large
messages, and a tenth and less over PCIe or the host's memory where NVLink or xGMI could be used."""
LEAST_BYTES = 1 << 20
"""Smaller messages are mostly latency."""
_MUCH_FASTER = 2.0
"""If the fastest call is so much faster than the mean, the link is not what limits the others."""


@dataclass(frozen=True, slots=True)
class Exposed:
    """Communication in the mean step while no kernel and no copy runs, in ns."""

    device_ns: float
    """In kernels, such as those of NCCL."""
    host_ns: float
    """In collectives on the host, such as those of gloo."""

    @property
    def ns(self) -> float:
        """Both together."""
        return self.device_ns + self.host_ns


def exposed_of(
    steps_by_any: Iterable[Step], kernel_families: Iterable[KernelFamily], mean_step: MeanStep
) -> Exposed:
    """The exposed communication: up to the time of its kernels it is the GPU's, the rest is the host's."""
    whole = mean_step.per_step(sum(step.communication_ns for step in steps_by_any))
    kernels = mean_step.per_step(
        sum(row.total_ns for row in kernel_families if row.family == "communication")
    )
    return Exposed(min(whole, kernels, mean_step.busy_ns), max(0.0, whole - kernels))


def kind_of(name: str | None) -> str | None:
    """The kind of collective that an operator asks for, such as all-reduce; None for any other operator."""
    return kind_of_operation(name) if _OPERATOR.match(name or "") else None


def buffers_broadcast(step_ops: Iterable[StepOp]) -> float:
    """Broadcasts in the forward passes of a step, as DistributedDataParallel makes them of its buffers."""
    return sum(
        row.per_step for row in step_ops if row.phase == "forward" and kind_of(row.name) == "broadcast"
    )


def exposed_kinds(collective_kinds: Iterable[CollectiveKind]) -> dict[str, int]:
    """Exposed time in all steps by kind of collective, most first; kinds with hardly any are left out."""
    found: Counter[str] = Counter()
    for row in collective_kinds:
        found[row.kind] += row.exposed_ns
    whole = sum(found.values())
    return {kind: ns for kind, ns in found.most_common() if ns >= 0.05 * whole and ns}


def telling(rows: Iterable[CollectiveKind]) -> CollectiveKind | None:
    """The collectives whose rate says most: those with the most exposed time of which sizes are known."""
    sized = [row for row in rows if row.bytes and row.total_ns]
    return max(sized, key=lambda row: (row.exposed_ns, row.total_ns), default=None)


def mean_bytes(row: CollectiveKind) -> float | None:
    """Bytes of one call."""
    return row.bytes / row.calls if row.bytes and row.calls else None


def is_slow(row: CollectiveKind) -> bool:
    """Whether even the fastest took many times what the link needs for it."""
    size, rate, bus = mean_bytes(row), row.algorithm_gb_per_s, row.bus_gb_per_s
    if not (size and rate and bus and row.link_gb_per_s) or size < LEAST_BYTES:
        return False
    return row.min_ns > FAR_SLOWER * (LATENCY_NS + size * (bus / rate) / row.link_gb_per_s)


def who_takes_part(row: CollectiveKind) -> str:
    """The group in words: ` among 8 ranks of one machine`; nothing if it is not known."""
    if row.group_size is None:
        return ""
    where = {True: " of one machine", False: " of several machines", None: ""}[row.one_machine]
    return f" among {units.count(row.group_size)} ranks{where}"


def speed_of(row: CollectiveKind, mean_step: MeanStep) -> str:
    """How many there are, how large, how long they take, and how that compares with the link."""
    size, calls = mean_bytes(row), mean_step.per_step(row.calls)
    of = f" of {_megabytes(size)}" if size else ""
    one = round(calls) <= 1
    told = f"{times(calls, row.kind)}{of} a step{who_takes_part(row)} "
    told += f"{'takes' if one else 'take'} {units.duration(row.total_ns / row.calls)}{'' if one else ' each'}"
    if row.bus_gb_per_s is None:
        return f"{told}."
    told += f": {_gb_per_s(row.bus_gb_per_s)} bus bandwidth"
    if row.link_share is not None and row.link_gb_per_s is not None:
        told += f", {units.share(row.link_share)} of the {_gb_per_s(row.link_gb_per_s)} of {row.link}"
    best = row.best_bus_gb_per_s
    if best and best > _MUCH_FASTER * row.bus_gb_per_s:
        told += f". The fastest reaches {_gb_per_s(best)}, so the others probably wait for late ranks"
    return f"{told}."


def _gb_per_s(rate: float) -> str:
    return units.rate(rate * 1e9, 1e9)


def _megabytes(size: float) -> str:
    """In powers of 1000, as rates of links and sizes of buckets are."""
    return units.rate(size, 1e9).removesuffix("/s")


def in_words(kinds: dict[str, int], exposed_ns: float) -> str:
    """Kinds with their part of what is exposed in a step: ` (all-to-all 13.7 ms, all-reduce 0.7 ms)`."""
    whole = sum(kinds.values())
    if not whole:
        return ""
    if len(kinds) == 1:
        return f" ({_called(next(iter(kinds)))})"
    told = (f"{_called(kind)} {units.duration(exposed_ns * ns / whole)}" for kind, ns in kinds.items())
    return f" ({', '.join(told)})"


def _called(kind: str) -> str:
    return "of unknown kind" if kind == UNKNOWN else kind


def of_kind(rows: Iterable[CollectiveKind], kind: str) -> Sequence[CollectiveKind]:
    """Those of one kind that run on the device."""
    return [row for row in rows if row.kind == kind and row.backend == "device"]
