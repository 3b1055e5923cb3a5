"""The report: verdict, findings ranked by gain, rules without an answer, a checklist and next steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Literal

from stepscope.analyses.trust import Caveat
from stepscope.findings import Finding
from stepscope.findings.facts import Facts
from stepscope.findings.pictures import Picture
from stepscope.records import dataclass
from stepscope.showing import InNotebook
from stepscope.store.measured import MeasuredStep
from stepscope.tables import Table

__all__ = [
    "SCHEMA",
    "ChecklistItem",
    "NextStep",
    "NotRun",
    "Overview",
    "PassFacts",
    "PassName",
    "Passes",
    "PhaseShare",
    "Replaced",
    "Report",
    "RunFacts",
    "ServedKind",
    "Verdict",
    "Word",
]

SCHEMA = "stepscope.report/1"

Word = Literal[
    "host-bound",
    "input-bound",
    "sync-bound",
    "communication-bound",
    "copy-bound",
    "device-bound",
    "memory-bandwidth-bound",
    "compute-bound",
    "compiling",
    "imbalanced",
    "healthy",
    "unknown",
]


@dataclass(frozen=True, slots=True)
class PhaseShare:
    """One phase of training in the mean step."""

    phase: str
    share: float
    """Part of the step, on the host, pauses between its calls included."""
    device_share: float | None
    """Part of the device's work; None without any."""


@dataclass(frozen=True, slots=True)
class ServedKind:
    """What a server's iterations of one kind take, and what they get done."""

    kind: str
    """prefill, decode, mixed, draft or idle."""
    iterations: int
    share: float
    """Part of all iterations."""
    time_share: float | None
    prefill_tokens_per_s: float | None
    """In a second of their own time, as recorded; None if their names or shapes do not tell."""
    decode_tokens_per_s: float | None


@dataclass(frozen=True, slots=True)
class Overview:
    """Where the mean step goes. What is not known is None."""

    steps: int
    found_by: str
    """What marks the steps: `marks`, or how they were found; `nothing` if the whole trace counts as one."""
    step_ns: int
    steady_step_ns: int
    """The same without a first step that was the longest: what `unprofiled_step_ns` is to be held against."""
    unprofiled_step_ns: tuple[int, int]
    parts: Mapping[str, int]
    """The mean step by what it was spent on: kernel, memcpy, memset, communication, runtime, dataloader, cpu,
    other; they sum to the step up to rounding."""
    phases: tuple[PhaseShare, ...]
    pace_set_by: Literal["host", "device"]
    """Whose shares of the phases say where the step goes: a host that runs ahead says little about it."""
    devices_with_work: int
    """How many devices have any work in this profile."""
    kernels_per_step: int
    utilization_share: float | None
    """Part of the step in which a kernel ran, on the busiest device."""
    starved_share: float | None
    """Part of the step in which that device waited for the host."""
    sm_efficiency_share: float | None
    peak_memory_bytes: int | None
    memory_bytes: int | None
    mfu_share: float | None
    rates: Mapping[str, float]
    """How many steps, samples, tokens a second: as recorded, or by the measured step if there is one."""
    served: tuple[ServedKind, ...] = ()
    """Of a server: its iterations by kind; those of unknown kind are left out."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What limits the program, in a word and a sentence."""

    word: Word
    sentence: str
    promise: str
    """What fixing the first findings should bring; empty if there are none."""


@dataclass(frozen=True, slots=True)
class NotRun:
    """A rule without an answer, and how to record what it needs."""

    id: str
    reason: str
    record: str
    crashed: bool = False
    """Whether the rule or a table that it reads failed, which is nobody's fault but ours or a plug-in's."""


@dataclass(frozen=True, slots=True)
class Replaced:
    """A rule whose finding was left out, because another one says the same with more insight."""

    id: str
    by: str
    """The finding that took its place."""


@dataclass(frozen=True, slots=True)
class ChecklistItem:
    """One point of the checklist that people are taught."""

    name: str
    state: Literal["pass", "fail", "info", "not known"]
    """`info` for a usual value that a healthy run need not have."""
    value: str
    """What this trace has; or why that is not known."""
    target: str


@dataclass(frozen=True, slots=True)
class NextStep:
    """Something to do next, and what to type for it."""

    text: str
    command: str = ""


PassName = Literal["light", "full"]


@dataclass(frozen=True, slots=True)
class PassFacts:
    """One recording of a run."""

    name: PassName
    file: str
    steps: int
    step_ns: int
    """The mean step as it was recorded."""


@dataclass(frozen=True, slots=True)
class Passes:
    """Which figures of a report on a run come from where."""

    run: str
    rank: int
    ranks: tuple[int, ...]
    """All ranks of the run with a profile."""
    measured: MeasuredStep | None
    """The step without the profiler; None if it was not timed, and is an estimate."""
    times: PassFacts
    """Where times are from."""
    places: PassFacts
    """Where lines, modules, shapes and memory are from, as far as they were recorded."""
    step: str
    """What a step of the program is, as a sentence; empty if that is not known."""
    notes: tuple[str, ...]
    """What the capture left out or cut short, as sentences."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """A run of several ranks, all of which were looked at."""

    name: str
    ranks: tuple[int, ...]
    """Those that could be read."""
    missing: tuple[int, ...]
    """Those of which there is no profile."""
    failed: tuple[str, ...]
    """Profiles that could not be read, and why, as sentences."""
    hosts: Mapping[str, tuple[int, ...]]
    """The ranks of each machine; one without a name stands for those of unknown machines."""
    steps: int
    step_ns: int
    """The mean step of the run: from the first start of a rank to the last end."""
    judged_rank: int
    """The rank that the rest of the report is about."""
    judged_because: str
    """Why it was chosen: `sets the pace`, or `typical`."""
    compared_rank: int | None
    """A usual rank, which tells what holds for all of them from what holds for the judged one alone."""
    notes: tuple[str, ...]
    """What has to be said about the run."""
    tables: Mapping[str, Table[Any]]
    """Tables over all ranks, by name."""


@dataclass(frozen=True, slots=True)
class Report(InNotebook):
    """Everything that a format of the report shows."""

    facts: Facts
    trust: tuple[Caveat, ...]
    overview: Overview
    verdict: Verdict
    findings: tuple[Finding, ...]
    not_run: tuple[NotRun, ...]
    checklist: tuple[ChecklistItem, ...]
    next_steps: tuple[NextStep, ...]
    tables: Mapping[str, Table[Any]] = field(default_factory=dict)
    """Tables that a format asked for beside all this."""
    replaced: tuple[Replaced, ...] = ()
    passes: Passes | None = None
    """Of a run, what comes from which of its recordings; None for a single profile."""
    pictures: tuple[Picture, ...] = ()
    """What the profile shows that is no step, such as the memory of a snapshot."""
    run: RunFacts | None = None
    """Of several ranks, what was seen of all of them; None for a report on one profile or rank."""
