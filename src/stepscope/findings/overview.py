"""Where the mean step goes: the few figures at the top of a report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from stepscope.findings.facts import Facts
from stepscope.findings.mean_step import MeanStep
from stepscope.findings.report import Overview, PhaseShare, ServedKind
from stepscope.tables import Table

if TYPE_CHECKING:
    from stepscope.analyses.devices import Device
    from stepscope.analyses.iteration_kinds import IterationKind
    from stepscope.analyses.iterations import Iteration
    from stepscope.analyses.memory import DeviceMemory
    from stepscope.analyses.phases import Phase
    from stepscope.analyses.rooflines import Roofline
    from stepscope.analyses.steps import Step
    from stepscope.analyses.throughput import Throughput

__all__ = ["NO_STEPS", "overview_of"]

PARTS = ("kernel", "memcpy", "memset", "communication", "runtime", "dataloader", "cpu", "other")
NO_STEPS = "nothing"
"""What steps were found by if there are none, and the whole trace counts as one."""
_FOUND_BY = {
    "mark": "marks",
    "annotation": "a repeating range",
    "optimizer": "optimizer steps",
    "graph": "graph launches",
    "period": "a repeating pattern of kernels",
    "trace": NO_STEPS,
}


def overview_of(mean_step: MeanStep, facts: Facts, tables: Mapping[str, Table[Any]]) -> Overview:
    """The overview, from those of the tables that there are."""
    steps_by_any: list[Step] = list(tables.get("steps_by_any", ()))
    iterations: list[Iteration] = list(tables.get("iterations", ()))
    device = _on_device(tables.get("devices", ()), mean_step.device)
    peak, most = _memory(tables.get("memory", ()), facts, mean_step.device)
    low, high = mean_step.measured_ns or mean_step.unprofiled_ns
    phases = _phases(tables.get("phases", ()))
    return Overview(
        steps=mean_step.steps,
        found_by=_FOUND_BY.get(iterations[0].source, iterations[0].source) if iterations else NO_STEPS,
        step_ns=round(mean_step.step_ns),
        steady_step_ns=round(mean_step.steady_ns),
        unprofiled_step_ns=(round(low), round(high)),
        parts={
            part: round(sum(getattr(one, f"{part}_ns") for one in steps_by_any) / max(1, len(steps_by_any)))
            for part in PARTS
        },
        phases=phases,
        pace_set_by=_pace_set_by(mean_step, phases),
        devices_with_work=len({row.device for row in tables.get("devices", ())}),
        kernels_per_step=round(sum(one.kernels for one in iterations) / max(1, len(iterations))),
        utilization_share=_utilization(mean_step, steps_by_any, device),
        starved_share=mean_step.share(mean_step.starved_ns) if mean_step.device else None,
        sm_efficiency_share=device.sm_efficiency_share if device else None,
        peak_memory_bytes=peak,
        memory_bytes=most,
        mfu_share=_mfu(mean_step, tables.get("rooflines_by_step", ())),
        rates=_rates(mean_step, tables.get("throughput", ())),
        served=_served(tables.get("iteration_kinds", ())),
    )


def _on_device(devices: Iterable[Device], index: str | None) -> Device | None:
    """The row of the busiest device in the steps that the profiler marked; of found steps there is none."""
    return next((row for row in devices if row.device == index and row.window == "steps"), None)


def _utilization(mean_step: MeanStep, steps_by_any: list[Step], device: Device | None) -> float | None:
    """Part of the steps in which a kernel ran; of found steps, on any device of the rank."""
    if device is not None or mean_step.device is None:
        return device.utilization_share if device else None
    ran = sum(one.kernel_ns + one.communication_ns for one in steps_by_any)
    return mean_step.share(mean_step.per_step(ran))


def _memory(memory: Iterable[DeviceMemory], facts: Facts, index: str | None) -> tuple[int | None, int | None]:
    peak = next((row.reserved_peak_bytes or row.peak_bytes for row in memory if row.device == index), None)
    device = facts.device(index)
    return peak, device.memory_bytes if device else None


def _phases(phases: Iterable[Phase]) -> tuple[PhaseShare, ...]:
    host: dict[str, int] = {}
    work: dict[str, int] = {}
    for row in phases:
        host[row.phase] = host.get(row.phase, 0) + row.stretch_ns
        work[row.phase] = work.get(row.phase, 0) + row.device_ns
    whole, worked = sum(host.values()), sum(work.values())
    return tuple(
        PhaseShare(phase, host[phase] / whole, work[phase] / worked if worked else None)
        for phase in ("dataloader", "forward", "backward", "recomputation", "optimizer", "other")
        if whole and (host.get(phase) or work.get(phase))
    )


def _pace_set_by(mean_step: MeanStep, phases: tuple[PhaseShare, ...]) -> Literal["host", "device"]:
    """What the step loses more by if it takes no time; or else the larger part of the critical path.

    Where the phases of the device's work are not known, it is the host whose shares are to be read.
    """
    if not any(one.device_share and one.phase != "other" for one in phases):
        return "host"
    losses = {name: sum(bounds) for name, bounds in mean_step.losses.items()}
    if any(losses.values()):
        return "device" if losses["device"] + losses["communication"] >= losses["host"] else "host"
    return "device" if mean_step.host_path_share < 0.5 else "host"


def _served(kinds: Iterable[IterationKind]) -> tuple[ServedKind, ...]:
    return tuple(
        ServedKind(
            row.kind,
            row.iterations,
            row.share,
            row.time_share,
            row.prefill_tokens_per_s,
            row.decode_tokens_per_s,
        )
        for row in kinds
        if row.kind is not None
    )


def _mfu(mean_step: MeanStep, rooflines: Iterable[Roofline]) -> float | None:
    """Over all steps whose length and share are known; of a measured step by its length."""
    rows = [row for row in rooflines if row.mfu_share is not None and row.step_ns]
    length = sum(row.step_ns or 0 for row in rows)
    used = sum((row.mfu_share or 0.0) * (row.step_ns or 0) for row in rows)
    if length and mean_step.measured_ns:
        return min(1.0, used / (len(rows) * sum(mean_step.measured_ns) / 2))
    return used / length if length else None


def _rates(mean_step: MeanStep, throughput: Iterable[Throughput]) -> dict[str, float]:
    if mean_step.measured_ns is None:
        return {row.unit: row.per_second for row in throughput if row.per_second is not None}
    step_ns = sum(mean_step.measured_ns) / 2
    return {row.unit: row.per_step * 1e9 / step_ns for row in throughput if row.per_step is not None}
