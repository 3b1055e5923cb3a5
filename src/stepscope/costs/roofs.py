"""How near work came to what its device can do, and what held it back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from stepscope.costs.families import is_of_host
from stepscope.costs.op_work import OpWork
from stepscope.costs.operators import Cost, cost_of
from stepscope.costs.precision import UNKNOWN, operands, precision_of
from stepscope.hardware import Accelerator, named, recognised, with_peaks
from stepscope.records import dataclass
from stepscope.store.trace import Trace

__all__ = ["Device", "Priced", "Total", "device_of", "priced"]

_SHORT_NS = 5_000
"""A kernel that is shorter mostly starts and ends: too little to fill a device."""
_NEAR = 0.5
"""Who reaches this part of a roof is bound by it, however short or small it is."""

_ELEMENTS = {"float": "fp32", "double": "fp64", "c10::Half": "fp16", "c10::BFloat16": "bf16"}


@dataclass(frozen=True, slots=True)
class Device:
    """What the devices of a profile can do, or why that is unknown, and how many did work."""

    accelerator: Accelerator | None
    reason: str
    count: int


def device_of(
    trace: Trace, hardware: str | None, peak_tflops: tuple[str, ...], peak_gb_s: float | None
) -> Device:
    """The kind of the devices that did work; what a user says stands above what the profile says."""
    sql = "SELECT DISTINCT device_name FROM device_work ORDER BY device_name"
    used = [row["device_name"] for row in trace.once("devices with work", lambda: trace.rows(sql))]
    if hardware is not None:
        kind: tuple[Accelerator | None, str] = named(hardware), ""
    else:
        kind = _recognised(trace.meta.metadata.get("deviceProperties"), used)
    found = with_peaks(kind[0], peak_tflops, peak_gb_s)
    return Device(found, kind[1] if found is None else "", max(len(used), 1))


def _recognised(properties: Any, used: list[str]) -> tuple[Accelerator | None, str]:
    if not used:
        return None, "no device did any work"
    described = [one for one in properties if isinstance(one, dict)] if isinstance(properties, list) else []
    # Some profiles number their devices otherwise than the work; alike ones need no number.
    described = [one for one in described if str(one.get("id")) in used] or described
    kinds = [_kind(one) for one in described]
    if not kinds:
        return None, "the profile does not say what its devices are"
    if any(kind != kinds[0] for kind in kinds):
        return None, "its devices are not alike"
    return kinds[0]


def _kind(described: dict[str, Any]) -> tuple[Accelerator | None, str]:
    units, memory = described.get("numSms"), described.get("totalGlobalMem")
    return recognised(
        str(described.get("name") or ""),
        units=units if isinstance(units, int) else None,
        memory_bytes=memory if isinstance(memory, int) else None,
    )


@dataclass(frozen=True, slots=True)
class Priced:
    """Calls that are alike, with what each costs and the least time that the device would need for it."""

    work: OpWork
    cost: Cost
    data_type: str | None
    compute_ns: float | None
    """Time for its FLOPs at the peak of its data type; None where one of them is unknown."""
    memory_ns: float | None
    """Time for its bytes at the bandwidth of the memory."""
    reason: str | None
    """Why something is unknown."""

    def bound(self, calls: int, kernels: int, work_ns: int, unfilled_ns: int) -> str:
        """What held these calls back: compute, memory, latency; or unknown."""
        if self.compute_ns is None or self.memory_ns is None or not work_ns:
            near = (self.compute_ns or 0) * calls >= _NEAR * work_ns > 0
            return "compute" if near else "unknown"
        near = max(self.compute_ns, self.memory_ns) * calls >= _NEAR * work_ns
        short = work_ns < _SHORT_NS * (kernels or calls)
        if not near and (short or 2 * unfilled_ns > work_ns):
            return "latency"
        return "compute" if self.compute_ns >= self.memory_ns else "memory"


def priced(works: list[OpWork], device: Device) -> list[Priced]:
    """The cost of all work."""
    return [_priced(work, device) for work in works]


def _priced(work: OpWork, device: Device) -> Priced:
    cost = _cost(work)
    data_type, why_not = _data_type(work, cost)
    reason = cost.reason
    if cost.flops is None:
        return Priced(work, cost, data_type, None, None, reason)
    accelerator = device.accelerator
    if accelerator is None:
        return Priced(work, cost, data_type, None, None, reason or device.reason)
    compute_ns: float | None = 0.0
    if cost.flops:
        peak = accelerator.peak(data_type, matrix=cost.is_matrix)
        compute_ns = cost.flops / peak * 1e9 if peak else None
        if peak is None:
            reason = reason or why_not or f"no peak is known for {data_type}"
    memory_ns = None
    if is_of_host(work.kind, work.kernel):
        reason = "a copy between host and device, bound by their link"
    elif cost.bytes is not None and accelerator.bytes_per_s:
        memory_ns = cost.bytes / accelerator.bytes_per_s * 1e9
    return Priced(work, cost, data_type, compute_ns, memory_ns, reason)


def _cost(work: OpWork) -> Cost:
    """What one of these calls costs."""
    if work.communicates:
        return Cost(
            "communication", None, None, 0, None, reason="communication: what it moves is not counted here"
        )
    if work.replayed or work.unlinked:
        found = cost_of(None, None, work.kernel)
        why = "a replayed graph: its operators and shapes are not in the profile"
        reason = why if work.replayed else "its launch is not in the profile"
        return Cost(found.family, None, None, None, None, reason=reason)
    cost = cost_of(work.op, work.args, work.kernel)
    if work.wraps:
        why = "an operator inside it is counted"
        return Cost(cost.family, cost.shapes, cost.type, 0, None, reason=why)
    if cost.flops is None and work.kind in ("memcpy", "memset"):
        # Copies and fills say themselves what they move; inside a device they read and write.
        ways = 2 if work.kind == "memcpy" and not is_of_host(work.kind, work.kernel) else 1
        moved = ways * sum(work.moved_bytes) // max(sum(work.calls), 1)
        return Cost("copy", cost.shapes, cost.type, 0, moved or None, reason=None if moved else cost.reason)
    return cost


def _data_type(work: OpWork, cost: Cost) -> tuple[str | None, str | None]:
    """The data type that it computed in, or None and why."""
    if not cost.is_matrix:
        return _ELEMENTS.get(cost.type or ""), "the type of its elements is not recorded"
    used = precision_of(work.kernel, operands(work.op, work.args).types)
    if used.precision != UNKNOWN:
        return used.precision, None
    if work.kind == "op" and cost.type == "float":
        return "fp32", None  # processors have no tf32
    return None, used.reason


@dataclass(slots=True)
class Total:
    """Sums over work that stands in one row."""

    calls: int = 0
    kernels: int = 0
    work_ns: int = 0
    flops: int = 0
    counted_ns: int = 0
    """Time of the work whose FLOPs are known."""
    bytes: int = 0
    moved_ns: int = 0
    """Time of the work whose bytes are known."""
    hardware_flops: int = 0
    model_flops: int = 0
    hardware_ns: float = 0.0
    """Least time for the FLOPs on matrix units."""
    model_ns: float = 0.0
    compute_ns: float = 0.0
    compute_of_ns: int = 0
    memory_ns: float = 0.0
    memory_of_ns: int = 0
    unpriced_flops: int = 0
    """FLOPs on matrix units whose peak is unknown."""
    causal_flops: int = 0
    types: dict[str | None, int] = field(default_factory=dict)
    bounds: dict[str, int] = field(default_factory=dict)
    reasons: dict[str, int] = field(default_factory=dict)
    unknown: dict[str, int] = field(default_factory=dict)
    """Time of the work whose FLOPs are unknown, by the reason."""

    def add(self, one: Priced, calls: int, kernels: int, work_ns: int, unfilled_ns: int) -> None:
        """Adds some of the calls of what is alike."""
        bound = one.bound(calls, kernels, work_ns, unfilled_ns)
        self.bounds[bound] = self.bounds.get(bound, 0) + work_ns
        self._add(one, calls, kernels, work_ns)

    def add_all(self, one: Priced, figures: Sequence[Sequence[int]]) -> None:
        """Adds calls of several steps: lists of what `add` takes, with an entry for each step.

        What held them back is asked for each step; all else is summed up first.
        """
        bounds = self.bounds
        for calls, kernels, work_ns, unfilled_ns in zip(*figures, strict=True):
            bound = one.bound(calls, kernels, work_ns, unfilled_ns)
            bounds[bound] = bounds.get(bound, 0) + work_ns
        self._add(one, *(sum(of_steps) for of_steps in figures[:3]))

    def _add(self, one: Priced, calls: int, kernels: int, work_ns: int) -> None:
        cost = one.cost
        self.calls += calls
        self.kernels += kernels
        self.work_ns += work_ns
        if one.reason:
            self.reasons[one.reason] = self.reasons.get(one.reason, 0) + work_ns
        if cost.flops is None:
            why = one.reason or "not known why"
            self.unknown[why] = self.unknown.get(why, 0) + work_ns
        if cost.flops is not None:
            self.flops += calls * cost.flops
            self.counted_ns += work_ns
            if cost.is_matrix:
                self._add_matrix(one, calls)
        if cost.flops or cost.is_matrix:
            self.types[one.data_type] = self.types.get(one.data_type, 0) + calls * (cost.flops or 0)
        if one.compute_ns is not None:
            self.compute_ns += calls * one.compute_ns
            self.compute_of_ns += work_ns
        if cost.bytes is not None:
            self.bytes += calls * cost.bytes
            self.moved_ns += work_ns
        if one.memory_ns is not None:
            self.memory_ns += calls * one.memory_ns
            self.memory_of_ns += work_ns

    def _add_matrix(self, one: Priced, calls: int) -> None:
        flops = one.cost.flops or 0
        model = 0 if one.work.again else flops - one.cost.again_flops
        self.hardware_flops += calls * flops
        self.model_flops += calls * model
        self.causal_flops += calls * flops * one.cost.causal
        if one.compute_ns is None:
            self.unpriced_flops += calls * flops
        elif flops:
            self.hardware_ns += calls * one.compute_ns
            self.model_ns += calls * one.compute_ns * model / flops

    @property
    def data_type(self) -> str | None:
        """The one that most FLOPs were done in."""
        return _largest(self.types)

    @property
    def bound(self) -> str:
        """What held most of it back."""
        return _largest(self.bounds) or "unknown"

    @property
    def reason(self) -> str | None:
        """Why most of what is unknown is so."""
        return _largest(self.reasons)


def _largest(sums: Mapping[str, int] | Mapping[str | None, int]) -> str | None:
    """The key of the largest sum; among equals always the same."""
    return max(sums.items(), key=lambda one: (one[1], one[0] or ""), default=(None, 0))[0]
