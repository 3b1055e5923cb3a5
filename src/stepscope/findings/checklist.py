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

State = Literal["pass", "fail", "not known"]
Tables = Mapping[str, Table[Any]]

_PHASES = (
    ("forward", 0.35, 0.40),
    ("backward", 0.40, 0.45),
    ("optimizer", 0.0, 0.15),
    ("dataloader", 0.0, 0.10),
)
"""Phases of a step of training, and the shares that the guides call usual."""
_FUSED = ("flash", "cudnn", "memory-efficient", "flex", "paged")


def checklist_of(
    mean_step: MeanStep, facts: Facts, overview: Overview, tables: Tables
) -> tuple[ChecklistItem, ...]:
    """All points, with what this trace has."""
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
    name, target = "utilization", "above 80 %; below 70 % is bad, below 50 % very bad"
    share = overview.utilization_share
    if share is None:
        return ChecklistItem(name, "not known", "no device work in this profile", target)
    word = "" if share >= 0.7 else " (bad)" if share >= 0.5 else " (very bad)"
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
        return ChecklistItem(name, "not known", "record with profile_memory=True", target)
    if not most:
        return ChecklistItem(name, "not known", f"{units.size(peak)} of an unknown total", target)
    state: State = "pass" if 0.85 <= peak / most <= 0.95 else "fail"
    value = f"{units.share(peak / most)} ({units.size(peak)} of {units.size(most)})"
    return ChecklistItem(name, state, value, target)


def _phases(overview: Overview) -> Iterator[ChecklistItem]:
    """The usual shares are those of training: without a backward pass none of them can be judged."""
    shares = {one.phase: one.share for one in overview.phases}
    for phase, low, high in _PHASES:
        name = f"{'data' if phase == 'dataloader' else phase} share"
        target = units.percents(low, high) if low else f"below {units.percent(high)}"
        if not shares.get("backward"):
            yield ChecklistItem(name, "not known", "no backward pass in this profile", target)
            continue
        share = shares.get(phase, 0.0)
        yield ChecklistItem(name, "pass" if low <= share <= high else "fail", units.share(share), target)


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
