"""What limits a program, in a word and a sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stepscope import units
from stepscope.analyses.idle_gaps import Side, SpentIn
from stepscope.findings import WIDEST, Bounds, Category, Finding
from stepscope.findings._decode_limits import decoded_tokens, read_bound_ns
from stepscope.findings._without_steps import without_steps
from stepscope.findings.claims import Time
from stepscope.findings.facts import Facts
from stepscope.findings.mean_step import MeanStep
from stepscope.findings.program import Vendor
from stepscope.findings.ranking import overlapping, together
from stepscope.findings.report import Overview, Verdict, Word
from stepscope.findings.start_up_time import mostly_start_up, start_up_share
from stepscope.simulation.changes import PaceSetter
from stepscope.tables import Table

__all__ = ["verdict_of"]

COMPILING_SHARE = 0.20
IMBALANCE_SHARE = 0.30
WELL_USED_SHARE = 0.80
"""Utilization from which the guides call a device well used."""


KNOWN_SHARE = 0.5
"""Part of the kernel time whose limit must be known before the device's limit gets a name."""
WASTE_SHARE = 0.7
"""Waiting that is this part of what the device or the host takes is named in their place."""
LEAST_LOSS = 0.10
"""Where a step loses less by each of them, two or more set its pace together."""
CLEAR_SHARE = 0.7
"""Part of a step that one activity must take to be named where the steps cannot be simulated."""
LARGE_SHARE = 0.10
"""A gain in precision or attention that a healthy program does not leave."""
LEAST_REACHED = 0.3
"""Of the peak that limits the kernels of a healthy program: below it something else holds them up."""


def verdict_of(
    mean_step: MeanStep,
    facts: Facts,
    overview: Overview,
    findings: Sequence[Finding],
    tables: Mapping[str, Table[Any]],
) -> Verdict:
    """The verdict on a trace."""
    promise = _promise(mean_step, findings)
    if not mean_step.steps:
        return Verdict("unknown", without_steps(facts, tables), "")
    compiling = _compiling_share(mean_step, tables)
    if compiling >= COMPILING_SHARE:
        said = (
            f"{units.percent(compiling)} of the recorded steps is spent compiling, tuning or capturing "
            "graphs, not running."
        )
        return Verdict("compiling", said, promise)
    if mostly_start_up(findings):
        share = units.percent(start_up_share(findings))
        said = (
            f"{share} of the recorded steps is what a run does once, when it starts. What limits a long run, "
            "the rest does not show."
        )
        return Verdict("unknown", said, "")
    if mean_step.device is None:
        return Verdict(*_without_device(mean_step, facts, overview), promise)
    if not overview.kernels_per_step and not overview.parts["kernel"] + overview.parts["communication"]:
        return Verdict("unknown", _without_kernels(mean_step), promise)
    if facts.vendor not in _KNOWN_RUNTIMES:
        return Verdict("unknown", _unknown_runtime(mean_step, facts, overview), promise)
    lagging = _imbalance(tables)
    if lagging:
        return Verdict("imbalanced", lagging, promise)
    setter = _pace_setter(mean_step, overview, tables)
    if setter is None:
        return Verdict(
            "unknown", _not_reproduced(mean_step, overview), promise if mean_step.is_simulated else ""
        )
    if setter != "device":
        return Verdict(_WORDS[setter], _sentence(setter, mean_step, overview, tables), promise)
    if overview.parts["memcpy"] > overview.parts["kernel"] + overview.parts["communication"]:
        return Verdict("copy-bound", _copies(mean_step, overview), promise)
    if _unexplained_ns(mean_step, tables) > mean_step.busy_ns:
        return Verdict("unknown", _unexplained(mean_step, overview, tables), promise)
    limit = _limit(tables)
    reached = _reached(limit, tables)
    held_up = reached is not None and reached < LEAST_REACHED
    if limit in _MEASURED and not held_up and _is_healthy(mean_step, overview, findings):
        return Verdict("healthy", _healthy(mean_step, overview, limit, reached), promise)
    return Verdict(_LIMITED[limit], _of_device(mean_step, overview, limit, tables), promise)


# ---------------------------------------------------------------- what sets the pace

_KNOWN_RUNTIMES = (Vendor.NVIDIA, Vendor.AMD, Vendor.INTEL)
"""Makers of devices whose calls that wait are known: without them no simulation of the steps is right."""

_WORDS: Mapping[PaceSetter, Word] = {
    "host": "host-bound",
    "input": "input-bound",
    "communication": "communication-bound",
    "waits": "sync-bound",
}
_LIMITED: Mapping[str, Word] = {
    "": "device-bound",
    "compute": "compute-bound",
    "memory": "memory-bandwidth-bound",
    "reads": "memory-bandwidth-bound",
}
_MEASURED = ("compute", "memory")
"""Limits that figures of the kernels show, so that it can be said how near they are."""


def _pace_setter(
    mean_step: MeanStep, overview: Overview, tables: Mapping[str, Table[Any]]
) -> PaceSetter | None:
    """What a step loses most by, if it is infinitely fast; None where no simulation says so.

    The device and the host do the work of the program. Loading, collectives and waits do not, so they come
    first where they take nearly as much.
    """
    if not mean_step.is_simulated or not mean_step.losses:
        return _clear(mean_step, overview, tables)
    losses = {name: sum(bounds) / 2 for name, bounds in mean_step.losses.items()}
    if max(losses.values()) < LEAST_LOSS:
        return _clear(mean_step, overview, tables)
    work: PaceSetter = "device" if losses["device"] >= losses["host"] else "host"
    waste: PaceSetter = max(("input", "communication", "waits"), key=lambda name: losses[name])
    if losses[waste] >= max(LEAST_LOSS, WASTE_SHARE * losses[work]):
        return waste
    return work


def _clear(mean_step: MeanStep, overview: Overview, tables: Mapping[str, Table[Any]]) -> PaceSetter | None:
    """What takes most of the recorded step, if that is nearly all of it."""
    loading = mean_step.per_step(_idle_ns(mean_step, tables, SpentIn.DATALOADER))
    shares: dict[PaceSetter, float] = {
        "device": mean_step.share(overview.parts["kernel"]),
        "communication": mean_step.share(overview.parts["communication"]),
        "input": mean_step.share(loading + overview.parts["memcpy"]),
        "host": mean_step.share(max(0.0, mean_step.starved_ns - loading)),
    }
    most = max(shares, key=lambda name: shares[name])
    return most if shares[most] >= CLEAR_SHARE else None


def _idle_ns(mean_step: MeanStep, tables: Mapping[str, Table[Any]], cause: SpentIn) -> int:
    """Idle time of all steps with one cause."""
    rows = tables.get("idle_gaps", ())
    return sum(row.idle_ns for row in rows if row.device == mean_step.device and row.spent_in == cause)


def _unexplained_ns(mean_step: MeanStep, tables: Mapping[str, Table[Any]]) -> float:
    """Idle time of a mean step of which the profile does not show what the device waited for."""
    rows = (row for row in tables.get("idle_gaps", ()) if row.device == mean_step.device)
    return mean_step.per_step(sum(row.idle_ns for row in rows if row.side == Side.UNKNOWN))


def _compiling_share(mean_step: MeanStep, tables: Mapping[str, Table[Any]]) -> float:
    inside = sum(row.total_ns for row in tables.get("compilations", ()) if row.step is not None)
    return min(1.0, mean_step.share(mean_step.per_step(inside)))


def _without_device(mean_step: MeanStep, facts: Facts, overview: Overview) -> tuple[Word, str]:
    step = units.duration(mean_step.step_ns)
    if not sum(overview.parts.values()):
        return "unknown", f"Nothing was recorded in the {step} step: no operators and no device work."
    if facts.kind == "etdump":
        return "unknown", _on_a_small_device(mean_step, overview)
    none = "No device work in this profile."
    data, communication = (mean_step.share(overview.parts[part]) for part in ("dataloader", "communication"))
    if data >= 0.3:
        return "input-bound", f"{none} Waiting for data takes {units.percent(data)} of the {step} step."
    if communication >= 0.3:
        said = f"{none} Collectives take {units.percent(communication)} of the {step} step."
        return "communication-bound", said
    if overview.parts["runtime"]:
        said = "The program called the device's runtime: what the device did is not recorded."
        return "unknown", f"{none} {said}"
    if not overview.parts["cpu"]:
        return "unknown", f"{none} It has no operators either, so it does not show what sets the pace."
    cpu = mean_step.share(overview.parts["cpu"])
    return "host-bound", f"{none} Operators on the CPU take {units.percent(cpu)} of the {step} step."


def _on_a_small_device(mean_step: MeanStep, overview: Overview) -> str:
    cpu = units.percent(mean_step.share(overview.parts["cpu"]))
    return (
        f"Operators and delegates take {cpu} of an execution of {units.duration(mean_step.step_ns)}. An "
        "ETDump does not tell whether a CPU, a DSP or a GPU ran them, so it does not show what limits them."
    )


def _without_kernels(mean_step: MeanStep) -> str:
    return (
        f"The steps of {units.duration(mean_step.step_ns)} have copies or fills, but no kernel: what the "
        "device computes is not in this profile."
    )


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


def _limit(tables: Mapping[str, Table[Any]]) -> str:
    """What limits most of the kernel time: compute, memory, or reads of a decoding step.

    It is empty where that is not known.
    """
    bound = _bounds(tables)
    known = bound.get("compute", 0) + bound.get("memory", 0)
    if known <= KNOWN_SHARE * sum(bound.values()):
        reads = bound.get("memory", 0) + read_bound_ns(tables)
        return "reads" if reads > KNOWN_SHARE * sum(bound.values()) else ""
    return "memory" if bound.get("memory", 0) > bound.get("compute", 0) else "compute"


def _bounds(tables: Mapping[str, Table[Any]]) -> dict[str, int]:
    """Kernel time by what bounds it: compute, memory, latency or unknown."""
    bound: dict[str, int] = {}
    for row in tables.get("rooflines_by_family", ()):
        bound[row.bound] = bound.get(row.bound, 0) + row.work_ns
    return bound


# ---------------------------------------------------------------- sentences


def _computes(mean_step: MeanStep, overview: Overview) -> str:
    busy = units.percent(mean_step.share(overview.parts["kernel"]))
    recorded = "recorded " if mean_step.measured_ns else ""  # the promise is about the measured one
    several = overview.devices_with_work > 1
    who = f"At least one of {overview.devices_with_work} GPUs" if several else "The GPU"
    return f"{who} computes for {busy} of the {recorded}{units.duration(mean_step.step_ns)} step"


def _it(mean_step: MeanStep, overview: Overview) -> str:
    """Whose idle time is told: that of the device with the most work."""
    return "It" if overview.devices_with_work < 2 else f"The busiest, GPU {mean_step.device},"


def _not_reproduced(mean_step: MeanStep, overview: Overview) -> str:
    said = _computes(mean_step, overview)
    if mean_step.is_simulated:
        return f"{said}. The profile does not show what sets the pace."
    error = units.percent(mean_step.simulation_error)
    return (
        f"{said}. The recorded events do not explain the length of the steps: a simulation of them is off by "
        f"{error}. Something that takes time is not in the profile."
    )


def _unexplained(mean_step: MeanStep, overview: Overview, tables: Mapping[str, Table[Any]]) -> str:
    idle = units.percent(mean_step.share(_unexplained_ns(mean_step, tables)))
    return (
        f"{_computes(mean_step, overview)}. {_it(mean_step, overview)} is idle for {idle}, and what it waits "
        "for is not in the profile: the launches of its work were not recorded."
    )


def _unknown_runtime(mean_step: MeanStep, facts: Facts, overview: Overview) -> str:
    named = next((f" ({device.name})" for device in facts.devices if device.name), "")
    return (
        f"The device computes for {units.percent(mean_step.share(overview.parts['kernel']))} of the "
        f"{units.duration(mean_step.step_ns)} step. Which calls of the host wait for this kind of "
        f"device{named} is not known, so nothing can be said about what sets the pace."
    )


def _sentence(
    setter: PaceSetter, mean_step: MeanStep, overview: Overview, tables: Mapping[str, Table[Any]]
) -> str:
    """Why something other than the device sets the pace."""
    computes = _computes(mean_step, overview)
    parts = overview.parts
    if setter == "waits":
        return (
            f"{computes}. Most of the rest it is idle, because the host waited for it "
            "and had no more work queued."
        )
    if setter == "input":
        data = mean_step.per_step(_idle_ns(mean_step, tables, SpentIn.DATALOADER))
        if parts["memcpy"] > data:
            return _copies(mean_step, overview)
        waits = units.percent(mean_step.share(data))
        return f"{computes}. {_it(mean_step, overview)} is idle for {waits}, waiting for the next batch."
    if setter == "communication":
        exposed = units.percent(mean_step.share(parts["communication"]))
        return f"{computes}. Exposed collectives take {exposed}, including the wait for other ranks."
    idle = units.percent(mean_step.share(mean_step.starved_ns))
    it = _it(mean_step, overview)
    said = f"{computes}. {it} is idle for {idle}, waiting for the host to launch work."
    if mean_step.losses and mean_step.share(mean_step.starved_ns) < mean_step.losses["host"][1] / 2:
        return f"{computes}. Even a GPU that takes no time would wait for the host."
    return said


def _copies(mean_step: MeanStep, overview: Overview) -> str:
    copies = units.percent(mean_step.share(overview.parts["memcpy"]))
    return f"{_computes(mean_step, overview)}. Exposed copies, which overlap with no kernel, take {copies}."


def _of_device(mean_step: MeanStep, overview: Overview, limit: str, tables: Mapping[str, Table[Any]]) -> str:
    computes = _computes(mean_step, overview)
    if limit == "reads":
        tokens = units.count(decoded_tokens(tables) or 0)
        return (
            f"{computes}. A step decodes at most {tokens} tokens, so reading the weights and the cache takes "
            "longer than computing with them. How close that is to the peak bandwidth, the profile does not "
            "show."
        )
    if not limit:
        return f"{computes}. The profile does not show what limits its kernels."
    return f"{computes}. Most of its kernel time is limited by {_LIMITS[limit]}."


_LIMITS = {"compute": "arithmetic", "memory": "memory bandwidth"}


def _is_healthy(mean_step: MeanStep, overview: Overview, findings: Sequence[Finding]) -> bool:
    """Whether a device is well used, nothing needs fixing, and no large gain of its kernels is possible."""
    busy = overview.parts["kernel"] / (mean_step.unprofiled_ns[1] or 1.0)
    return busy >= WELL_USED_SHARE and not any(
        one.severity != "low"
        or (one.category in (Category.PRECISION, Category.ATTENTION) and one.gain.high_share >= LARGE_SHARE)
        for one in findings
    )


def _healthy(mean_step: MeanStep, overview: Overview, limit: str, reached: float | None) -> str:
    said = _computes(mean_step, overview)
    if mean_step.share(overview.parts["kernel"]) < WELL_USED_SHARE:
        busy = overview.parts["kernel"] / (mean_step.unprofiled_ns[1] or 1.0)
        said += f" and for {units.percent(busy)} of the unprofiled one"
    said += f", limited by {_LIMITS[limit]}"
    if reached is not None:
        said += f", at {units.percent(reached)} of the hardware's peak"
    return f"{said}. Nothing here needs fixing first."


def _reached(limit: str, tables: Mapping[str, Table[Any]]) -> float | None:
    """The part of the peak that the families bound so reach, by time."""
    column = "peak_share" if limit == "compute" else "bandwidth_share"
    rows = [
        (row.work_ns, getattr(row, column))
        for row in tables.get("rooflines_by_family", ())
        if row.bound == limit and getattr(row, column) is not None
    ]
    time = sum(ns for ns, _ in rows)
    return sum(ns * share for ns, share in rows) / time if time else None


def _promise(mean_step: MeanStep, findings: Sequence[Finding]) -> str:
    """What fixing the first findings that matter should bring."""
    chosen = [
        (place, finding)
        for place, finding in enumerate(findings[:3], 1)
        if finding.severity != "low" and finding.gain.high_ns and finding.gain.is_known
    ]
    if not chosen:
        return ""
    low, high = _promised(mean_step, [finding for _, finding in chosen])
    if high - low > WIDEST * mean_step.unprofiled_ns[1]:
        # What overlapping fixes bring together is hardly known: the first alone says more.
        chosen = chosen[:1]
        low, high = _promised(mean_step, [chosen[0][1]])
    numbers = " and ".join(", ".join(f"#{place}" for place, _ in chosen).rsplit(", ", 1))
    return f"Fixing {numbers} should bring {_from(mean_step)} to {units.between(low, high)}."


def _promised(mean_step: MeanStep, chosen: list[Finding]) -> Bounds:
    """How long the step takes with all of them fixed."""
    low, high = mean_step.left(together(chosen, mean_step))
    # Kernels that none of them makes shorter still have to run.
    on_device = [one for one in chosen if any(c.time is Time.DEVICE for c in one.advice.claims)]
    # Those that several want to make shorter are the same kernels: what one takes away, no other can.
    must_run = mean_step.computing_ns - sum(
        max(one.gain.high_ns for one in group) for group in overlapping(on_device)
    )
    if mean_step.measured_ns:
        must_run = min(must_run, mean_step.measured_ns[1])  # those of the passes may have been slower
    return max(low, must_run), max(high, must_run)


def _from(mean_step: MeanStep) -> str:
    if mean_step.measured_ns is None:
        return "the step"
    return f"the measured step from {units.duration(sum(mean_step.measured_ns) / 2)}"
