"""What holds a program back, in a word and a sentence."""

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
"""Utilisation from which the guides call a device well used."""


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
        return Verdict("unknown", "The profile holds no step: nothing can be said of one.", "")
    compiling = _compiling_share(mean_step, tables)
    if compiling >= COMPILING_SHARE:
        said = f"{_percent(compiling)} of the recorded steps is compiling, tuning or capturing, not running."
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
            return Verdict("healthy", _healthy(mean_step, overview, word, tables), promise)
    bound = _bounds(tables)
    known = bound.get("compute", 0) + bound.get("memory", 0) > 0.5 * sum(bound.values())
    return Verdict(word, _sentence(word, mean_step, overview, where, known=known), promise)


def _percent(share: float) -> str:
    return f"{share * 100:.0f} %"


def _compiling_share(mean_step: MeanStep, tables: Mapping[str, Table[Any]]) -> float:
    inside = sum(row.total_ns for row in tables.get("compilations", ()) if row.step is not None)
    return min(1.0, mean_step.share(mean_step.per_step(inside)))


def _without_device(mean_step: MeanStep, overview: Overview) -> tuple[Word, str]:
    step = units.duration(mean_step.step_ns)
    if not sum(overview.parts.values()):
        return "unknown", f"Nothing of the {step} step was recorded: neither operators nor device work."
    data, communication = (mean_step.share(overview.parts[part]) for part in ("dataloader", "communication"))
    if data >= 0.3:
        return "input-bound", f"No device work: the program waits {_percent(data)} of a {step} step for data."
    if communication >= 0.3:
        said = f"No device work: collectives take {_percent(communication)} of a {step} step."
        return "communication-bound", said
    cpu = mean_step.share(overview.parts["cpu"])
    said = f"No device work in this profile: operators on the CPU take {_percent(cpu)} of a {step} step."
    return "host-bound", said


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
        f"Device {least} works {_percent(apart)} less than device {most} of the same process: "
        f"{units.duration(busy[least])} against {units.duration(busy[most])}."
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
    computes = f"The GPU computes {_percent(mean_step.share(overview.parts['kernel']))} of a {step} step"
    parts = overview.parts
    if word == "host-bound":
        starved = _percent(mean_step.share(mean_step.starved_ns))
        return f"{computes} and waits {starved} of it for Python to launch the next kernel."
    if word == "sync-bound":
        return (
            f"{computes}; in most of the rest it has run dry because the host waited for it, "
            "and then has to catch up."
        )
    if word == "input-bound":
        if where.copies > where.data:
            copied = _percent(mean_step.share(parts["memcpy"]))
            return f"{computes}; copies that nothing hides take {copied} of it."
        return f"{computes} and waits for the next batch in {_percent(where.data)} of it."
    if word == "communication-bound":
        alone = _percent(mean_step.share(parts["communication"]))
        return (
            f"{computes}; collectives with no compute beside them take {alone}, waiting for peers included."
        )
    if not known:
        return f"{computes}; what bounds its kernels the profile does not tell."
    limit = "arithmetic" if word == "compute-bound" else "memory"
    return f"{computes}, and most of its kernels are bound by {limit}."


def _healthy(mean_step: MeanStep, overview: Overview, word: Word, tables: Mapping[str, Table[Any]]) -> str:
    limit = "arithmetic" if word == "compute-bound" else "memory bandwidth"
    said = (
        f"The GPU computes {_percent(mean_step.share(overview.parts['kernel']))} of a "
        f"{units.duration(mean_step.step_ns)} step, bound by {limit}"
    )
    reached = _reached(word, tables)
    if reached is not None:
        said += f", at {_percent(reached)} of what the hardware could do there"
    return f"{said}. Nothing here is worth mending first."


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
    """What mending the first findings that matter should bring."""
    first = [place for place, finding in enumerate(findings[:3], 1) if finding.severity != "low"]
    chosen = [findings[place - 1] for place in first if findings[place - 1].gain.high_ns]
    if not chosen:
        return ""
    low, high = mean_step.left(together(chosen, mean_step))
    numbers = " and ".join(
        [", ".join(map(str, first[:-1])), str(first[-1])] if len(first) > 1 else [str(first[0])]
    )
    return f"Mending {numbers} should bring the step to {units.between(low, high)}."
