"""What limits a program, in a word and a sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stepscope import units
from stepscope.analyses.idle_gaps import Side, SpentIn
from stepscope.findings import Finding
from stepscope.findings.mean_step import MeanStep
from stepscope.findings.ranking import together
from stepscope.findings.report import Overview, Verdict, Word
from stepscope.tables import Table

__all__ = ["verdict_of"]

COMPILING_SHARE = 0.20
IMBALANCE_SHARE = 0.30
WELL_USED_SHARE = 0.80
"""Utilization from which the guides call a device well used."""


@dataclass(frozen=True, slots=True)
class _Where:
    """What the device worked or waited for in the mean step without the profiler, as far as that is known."""

    step_ns: float
    busy: float
    data: float
    copies: float
    communication: float
    syncs: float
    host: float


def verdict_of(
    mean_step: MeanStep, overview: Overview, findings: Sequence[Finding], tables: Mapping[str, Table[Any]]
) -> Verdict:
    """The verdict on a trace."""
    promise = _promise(mean_step, findings)
    if not mean_step.steps:
        return Verdict("unknown", "The profile has no steps, so there is nothing to judge.", "")
    compiling = _compiling_share(mean_step, tables)
    if compiling >= COMPILING_SHARE:
        said = (
            f"{units.percent(compiling)} of the recorded steps is spent compiling, tuning or capturing "
            "graphs, not running."
        )
        return Verdict("compiling", said, promise)
    if mean_step.device is None:
        return Verdict(*_without_device(mean_step, overview), promise)
    lagging = _imbalance(tables)
    if lagging:
        return Verdict("imbalanced", lagging, promise)
    where = _where(mean_step, overview, tables)
    word = _word(where)
    if word == "compute-bound":
        word = _device_word(tables)
        if not any(finding.severity != "low" for finding in findings) and where.busy >= WELL_USED_SHARE:
            return Verdict("healthy", _healthy(mean_step, where, word, tables), promise)
    bound = _bounds(tables)
    known = bound.get("compute", 0) + bound.get("memory", 0) > 0.5 * sum(bound.values())
    return Verdict(word, _sentence(word, mean_step, overview, where, known=known), promise)


def _compiling_share(mean_step: MeanStep, tables: Mapping[str, Table[Any]]) -> float:
    inside = sum(row.total_ns for row in tables.get("compilations", ()) if row.step is not None)
    return min(1.0, mean_step.share(mean_step.per_step(inside)))


def _without_device(mean_step: MeanStep, overview: Overview) -> tuple[Word, str]:
    step = units.duration(mean_step.step_ns)
    if not sum(overview.parts.values()):
        return "unknown", f"Nothing was recorded in the {step} step: no operators and no device work."
    none = "No device work in this profile."
    data, communication = (mean_step.share(overview.parts[part]) for part in ("dataloader", "communication"))
    if data >= 0.3:
        return "input-bound", f"{none} Waiting for data takes {units.percent(data)} of the {step} step."
    if communication >= 0.3:
        said = f"{none} Collectives take {units.percent(communication)} of the {step} step."
        return "communication-bound", said
    cpu = mean_step.share(overview.parts["cpu"])
    return "host-bound", f"{none} Operators on the CPU take {units.percent(cpu)} of the {step} step."


def _imbalance(tables: Mapping[str, Table[Any]]) -> str:
    """A sentence where one process drives several devices, and some of them work much less."""
    busy = {row.device: row.busy_ns for row in tables.get("devices", ()) if row.window == "span"}
    if len(busy) < 2:
        return ""
    most, least = max(busy, key=lambda name: busy[name]), min(busy, key=lambda name: busy[name])
    apart = 1 - busy[least] / busy[most] if busy[most] else 0.0
    if apart < IMBALANCE_SHARE:
        return ""
    return (
        f"Device {least} is busy for {units.percent(apart)} less time than device {most} of the same "
        f"process: {units.duration(busy[least])} against {units.duration(busy[most])}."
    )


def _where(mean_step: MeanStep, overview: Overview, tables: Mapping[str, Table[Any]]) -> _Where:
    """Shares of the step without the profiler: without as much of its cost as is sure."""
    step = mean_step.unprofiled_ns[1] or 1.0
    left = mean_step.unprofiled_starved_ns[1] / mean_step.starved_ns if mean_step.starved_ns else 1.0
    idle = [row for row in tables.get("idle_gaps", ()) if row.device == mean_step.device]

    def per_step(cause: SpentIn) -> float:
        return mean_step.per_step(sum(row.idle_ns for row in idle if row.spent_in == cause))

    drained = [row for row in idle if row.drained_by and row.side in (Side.HOST, Side.LAUNCH)]
    data = per_step(SpentIn.DATALOADER)
    talking = per_step(SpentIn.HOST_COMMUNICATION)
    syncs = mean_step.per_step(sum(row.idle_ns for row in drained))
    exposed = overview.parts["communication"]
    host = max(0.0, mean_step.starved_ns - data - talking - syncs)
    return _Where(
        step_ns=step,
        busy=(overview.parts["kernel"]) / step,
        data=data * left / step,
        copies=overview.parts["memcpy"] / step,
        communication=exposed / step,
        syncs=syncs * left / step,
        host=host * left / step,
    )


def _word(where: _Where) -> Word:
    shares: dict[Word, float] = {
        "compute-bound": where.busy,
        "input-bound": where.data + where.copies,
        "communication-bound": where.communication,
        "sync-bound": where.syncs,
        "host-bound": where.host,
    }
    # A sync that drains a queue which the host could not have filled is the host's fault all the same.
    if where.syncs and where.syncs < where.host:
        shares["host-bound"] += shares.pop("sync-bound")
    return max(shares, key=lambda word: shares[word])


def _device_word(tables: Mapping[str, Table[Any]]) -> Word:
    """Whether kernels wait for arithmetic or for memory, by where most of their time is known to go."""
    bound = _bounds(tables)
    return "memory-bandwidth-bound" if bound.get("memory", 0) > bound.get("compute", 0) else "compute-bound"


def _bounds(tables: Mapping[str, Table[Any]]) -> dict[str, int]:
    """Kernel time by what bounds it: compute, memory, latency or unknown."""
    bound: dict[str, int] = {}
    for row in tables.get("rooflines_by_family", ()):
        bound[row.bound] = bound.get(row.bound, 0) + row.work_ns
    return bound


def _sentence(word: Word, mean_step: MeanStep, overview: Overview, where: _Where, *, known: bool) -> str:
    step = units.duration(mean_step.step_ns)
    busy = units.percent(mean_step.share(overview.parts["kernel"]))
    computes = f"The GPU computes for {busy} of the {step} step"
    parts = overview.parts
    if word == "host-bound":
        idle = units.percent(mean_step.share(mean_step.starved_ns))
        return f"{computes}. It is idle for {idle}, waiting for the host to launch work."
    if word == "sync-bound":
        return (
            f"{computes}. Most of the rest it is idle, because the host waited for it "
            "and had no more work queued."
        )
    if word == "input-bound":
        if where.copies > where.data:
            copies = units.percent(mean_step.share(parts["memcpy"]))
            return f"{computes}. Exposed copies, which overlap with no kernel, take {copies}."
        return f"{computes}. It is idle for {units.percent(where.data)}, waiting for the next batch."
    if word == "communication-bound":
        exposed = units.percent(mean_step.share(parts["communication"]))
        return f"{computes}. Exposed collectives take {exposed}, including the wait for other ranks."
    if not known:
        return f"{computes}. The profile does not show what limits its kernels."
    limit = "arithmetic" if word == "compute-bound" else "memory bandwidth"
    return f"{computes}. Most of its kernel time is limited by {limit}."


def _healthy(mean_step: MeanStep, where: _Where, word: Word, tables: Mapping[str, Table[Any]]) -> str:
    limit = "arithmetic" if word == "compute-bound" else "memory bandwidth"
    recorded = mean_step.share(where.busy * where.step_ns)
    step = units.duration(mean_step.step_ns)
    said = f"The GPU computes for {units.percent(recorded)} of the {step} step"
    if recorded < WELL_USED_SHARE:
        said += f" and for {units.percent(where.busy)} of the unprofiled one"
    said += f", limited by {limit}"
    reached = _reached(word, tables)
    if reached is not None:
        said += f", at {units.percent(reached)} of the hardware's peak"
    return f"{said}. Nothing here needs fixing first."


def _reached(word: Word, tables: Mapping[str, Table[Any]]) -> float | None:
    """The part of the peak that the families bound so reach, by time."""
    bound, column = ("compute", "peak_share") if word == "compute-bound" else ("memory", "bandwidth_share")
    rows = [
        (row.work_ns, getattr(row, column))
        for row in tables.get("rooflines_by_family", ())
        if row.bound == bound and getattr(row, column) is not None
    ]
    time = sum(ns for ns, _ in rows)
    return sum(ns * share for ns, share in rows) / time if time else None


def _promise(mean_step: MeanStep, findings: Sequence[Finding]) -> str:
    """What fixing the first findings that matter should bring."""
    chosen = {
        place: finding
        for place, finding in enumerate(findings[:3], 1)
        if finding.severity != "low" and finding.gain.high_ns
    }
    if not chosen:
        return ""
    low, high = mean_step.left(together(list(chosen.values()), mean_step))
    numbers = " and ".join(", ".join(f"#{place}" for place in chosen).rsplit(", ", 1))
    return f"Fixing {numbers} should bring the step to {units.between(low, high)}."
