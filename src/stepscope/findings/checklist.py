"""The checklist that people are taught to go through by hand, in its order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from stepscope import units
from stepscope.findings.facts import Facts
from stepscope.findings.mean_step import MeanStep
from stepscope.findings.report import ChecklistItem, Overview
from stepscope.tables import Table

__all__ = ["checklist_of"]

State = Literal["pass", "fail", "info", "not known"]
Tables = Mapping[str, Table[Any]]

_USUAL = (("forward", 0.35, 0.40), ("backward", 0.40, 0.45))
"""Shares of a step of training that the guides call usual; a healthy step may have others."""
_MOST = (("optimizer", 0.15), ("dataloader", 0.10))
"""Shares that a step should stay below."""
_FUSED = ("flash", "cudnn", "memory-efficient", "flex", "paged")


def checklist_of(
    mean_step: MeanStep, facts: Facts, overview: Overview, tables: Tables
) -> tuple[ChecklistItem, ...]:
    """All points, with what this trace has; none for what has no steps."""
    if not mean_step.steps:
        return ()
    if facts.kind == "etdump":  # the others are about training, and about GPUs
        return (_variation(tables),)
    return (
        _utilisation(overview),
        _variation(tables),
        _memory(facts, overview),
        *_phases(overview),
        _attention(tables),
        _copies(mean_step, overview),
        _communication(mean_step, overview, tables),
    )


def _utilisation(overview: Overview) -> ChecklistItem:
    name, target = "utilization", "above 80 %"
    share = overview.utilization_share
    if share is None:
        return ChecklistItem(name, "not known", "no device work in this profile", target)
    word = "" if share >= 0.7 else ", bad" if share >= 0.5 else ", very bad"
    return ChecklistItem(name, "pass" if share > 0.8 else "fail", f"{units.share(share)}{word}", target)


def _variation(tables: Tables) -> ChecklistItem:
    name, target = "step variation", "within 10 %"
    rows = [
        row for row in tables.get("step_classes", ()) if row.variation_share is not None and row.steps >= 3
    ]
    if not rows:
        return ChecklistItem(name, "not known", "fewer than three similar steps", target)
    worst = max(rows, key=lambda row: row.variation_share)
    state: State = "pass" if worst.variation_share <= 0.10 else "fail"
    value = f"{units.share(worst.variation_share)} over {units.counted(worst.steps, 'step')}"
    return ChecklistItem(name, state, value, target)


def _memory(facts: Facts, overview: Overview) -> ChecklistItem:
    name, target = "memory", "85–95 % of the device"
    peak, most = overview.peak_memory_bytes, overview.memory_bytes
    if not facts.memory or peak is None:
        why = "record with profile_memory=True" if facts.kind == "kineto" else "not in this kind of profile"
        return ChecklistItem(name, "not known", why, target)
    if not most:
        return ChecklistItem(name, "not known", f"{units.size(peak)} of an unknown total", target)
    # Memory that is left is no fault: a larger batch may be faster, or not wanted.
    state: State = "fail" if peak / most > 0.95 else "pass" if peak / most >= 0.85 else "info"
    value = f"{units.share(peak / most)}, {units.size(peak)} of {units.size(most)}"
    return ChecklistItem(name, state, value, target)


def _phases(overview: Overview) -> Iterator[ChecklistItem]:
    """The usual shares are those of training: without a backward pass none of them can be judged."""
    trains = any(one.phase == "backward" and one.share for one in overview.phases)
    of = "of device work" if overview.pace_set_by == "device" else "of the step"
    for phase, low, high in _USUAL:
        name, target = f"{phase} share", f"{units.percents(low, high)} {of}"
        if not trains:
            yield ChecklistItem(name, "not known", "no backward pass in this profile", target)
            continue
        share = _share(overview, phase)
        yield ChecklistItem(name, "pass" if low <= share <= high else "info", units.share(share), target)
    for phase, most in _MOST:
        name = f"{'data' if phase == 'dataloader' else phase} share"
        target = f"below {units.percent(most)} {'of the step' if phase == 'dataloader' else of}"
        if not trains:
            yield ChecklistItem(name, "not known", "no backward pass in this profile", target)
            continue
        share = _share(overview, phase)
        yield ChecklistItem(name, "pass" if share <= most else "fail", units.share(share), target)


def _share(overview: Overview, phase: str) -> float:
    """A phase's share of what sets the pace. If that is the device, loading counts where nothing else ran."""
    found = next((one for one in overview.phases if one.phase == phase), None)
    if overview.pace_set_by == "host":
        return found.share if found else 0.0
    if phase == "dataloader":
        whole = sum(overview.parts.values())
        return overview.parts[phase] / whole if whole else 0.0
    return (found.device_share or 0.0) if found else 0.0


def _attention(tables: Tables) -> ChecklistItem:
    name, target = "fused attention", "flash, cuDNN, memory-efficient or flex kernels"
    rows = list(tables.get("attention", ()))
    if not rows:
        return ChecklistItem(name, "not known", "no attention found", target)
    whole = sum(row.forward_ns + row.backward_ns for row in rows)
    fused = sum(row.forward_ns + row.backward_ns for row in rows if row.backend in _FUSED)
    unknown = sum(row.forward_ns + row.backward_ns for row in rows if row.backend == "unknown")
    if not whole or unknown > 0.5 * whole:
        return ChecklistItem(name, "not known", "its kernels are not recognised", target)
    state: State = "pass" if fused >= 0.9 * (whole - unknown) else "fail"
    others = sorted({row.backend for row in rows} - set(_FUSED) - {"unknown"})
    return ChecklistItem(name, state, f"{units.share(fused / whole)} of its time" + _besides(others), target)


def _besides(others: list[str]) -> str:
    return f"; also {', '.join(others)}" if others else ""


def _copies(mean_step: MeanStep, overview: Overview) -> ChecklistItem:
    name, target = "exposed copies", "below 3 % of the step"
    if mean_step.device is None:
        return ChecklistItem(name, "not known", "no device work in this profile", target)
    share = mean_step.share(overview.parts["memcpy"])
    return ChecklistItem(name, "pass" if share < 0.03 else "fail", units.share(share), target)


def _communication(mean_step: MeanStep, overview: Overview, tables: Tables) -> ChecklistItem:
    name, target = "exposed communication", "below 5 % of the step"
    talked = sum(row.communication_ns for row in tables.get("devices", ()))
    share = mean_step.share(overview.parts["communication"])
    if not talked and not share:
        return ChecklistItem(name, "not known", "no communication in this profile", target)
    value = f"{units.share(share)}, including the wait for other ranks"
    return ChecklistItem(name, "pass" if share < 0.05 else "fail", value, target)
