"""From tables to advice: what a rule gives, what a finding is, and how a rule asks for its tables.

A rule is a function of finished tables. Its positional parameters name what it wants to see: an analysis
(`host_syncs`), an analysis with its option `--by` (`ops_by_user_frame`), or one of `mean_step` (how long a
step takes and what sets its pace) and `facts` (what the profile says of itself). Its keyword-only parameters
are thresholds, which a user may set. It returns an `Advice`, or None where there is nothing to say, or raises
`NotKnown` where the profile does not tell.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from enum import StrEnum
from typing import Any, Literal, Protocol, cast

from stepscope.findings.claims import Claim
from stepscope.patterns import late_pattern
from stepscope.records import dataclass

__all__ = [
    "UNKNOWN_GAIN",
    "Advice",
    "Bounds",
    "Category",
    "Certainty",
    "Figure",
    "Finding",
    "Gain",
    "Inside",
    "Location",
    "NotKnown",
    "Rule",
    "Saving",
    "Severity",
    "analysis_of",
    "frame_parts",
    "locations_of",
    "rule",
    "wanted_by",
]

Figure = int | float | str | bool | None
Bounds = tuple[float, float]
Certainty = Literal["certain", "likely", "possible"]
Severity = Literal["high", "medium", "low"]


class Category(StrEnum):
    """What a rule is about: the report and its reference put findings of one category together."""

    INPUT = "input"
    HOST = "host"
    SYNC = "sync"
    COPIES = "copies"
    DEVICE = "device"
    PRECISION = "precision"
    ATTENTION = "attention"
    MEMORY = "memory"
    COMPILE = "compile"
    COMMUNICATION = "communication"
    INFERENCE = "inference"
    RECORDING = "recording"


@dataclass(frozen=True, slots=True)
class Saving:
    """What a fix takes off a step as it was recorded, on average: at least and at most, in ns."""

    starved_ns: Bounds = (0.0, 0.0)
    """Time in which the device was idle and waited for the host. Recording stretched it."""
    device_ns: Bounds = (0.0, 0.0)
    """Time in which the device worked. It shortens the step as far as the device sets the pace."""
    waited_ns: Bounds = (0.0, 0.0)
    """Time that the step waited for something which recording did not stretch: workers, peers, copies."""
    known: bool = True
    """False where nothing that was recorded says how much it is: a compile log has no steps."""

    def __post_init__(self) -> None:
        for low, high in (self.starved_ns, self.device_ns, self.waited_ns):
            if not 0 <= low <= high:
                raise ValueError(f"a saving is at least 0 and at most its high bound: {self}")


@dataclass(frozen=True, slots=True)
class Inside:
    """A function of a library that the user's function led to, or a module of the model."""

    file: str | None
    """None for the user's own code in a module."""
    line: int | None
    function: str | None
    module: str | None
    """Class of the innermost nn.Module, after that of the module around it: `GPT2Block.GPT2Attention`."""
    share: float
    """Its part of what the finding is about in the user's function, from 0 to 1."""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line} {self.function}" if self.file else ""
        return " ".join(filter(None, (place, f"in {self.module}" if self.module else "")))


@dataclass(frozen=True, slots=True)
class Location:
    """A function of the user's code, and what in libraries and modules it led to."""

    file: str
    line: int
    function: str
    note: str = ""
    """What it has to do with the finding: `128 reads a step`."""
    ops: tuple[str, ...] = ()
    """The operators or runtime calls that it is about; empty for all that the function led to."""
    inside: tuple[Inside, ...] = ()

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.function}"

    @property
    def frame(self) -> str:
        """Its name as the profiler writes it."""
        return f"{self.file}({self.line}): {self.function}"


@dataclass(frozen=True, slots=True)
class Advice:
    """What a rule says of a trace: what costs time, why we think so, and what to change."""

    title: str
    """The state of things as a short sentence without a full stop, no more than 60 characters."""
    because: str
    """The evidence as one or two sentences, with figures of this trace."""
    saving: Saving
    certainty: Certainty
    """certain: measured in this trace. likely: follows from what is measured. possible: cannot be told."""
    fix: str
    """What to type: code, or a command; alternatives on lines of their own."""
    check: str
    """How to see that it helped: what to look at after the change."""
    evidence: Mapping[str, Figure]
    """The figures behind it, unrounded; names end in their unit."""
    claims: frozenset[Claim]
    """Which time it wants to save."""
    locations: tuple[Location, ...] = ()
    risk: bool = False
    """Whether it is about a run that may fail rather than about time."""


@dataclass(frozen=True, slots=True)
class Gain:
    """The predicted reduction of the mean step without the profiler."""

    low_ns: int
    high_ns: int
    low_share: float
    high_share: float

    @property
    def is_known(self) -> bool:
        """Whether the range helps; one wider than half the step says only that something can be gained."""
        return self.high_share - self.low_share <= WIDEST


WIDEST = 0.5

UNKNOWN_GAIN = Gain(0, 0, 0.0, 1.0)
"""Of a fix whose saving is not known: anything from nothing to the whole step."""


@dataclass(frozen=True, slots=True)
class Finding:
    """An advice with its place in a report."""

    id: str
    category: Category
    advice: Advice
    gain: Gain
    severity: Severity
    shares_time_with: tuple[str, ...] = field(default=())
    """Findings above it that want to save some of the same time."""
    ranks: tuple[int, ...] = field(default=())
    """Of a run, the ranks that it holds for, if it does not for all."""


class NotKnown(Exception):  # noqa: N818  # no error: an answer
    """The profile does not tell; `record` says how to record one that does."""

    def __init__(self, reason: str, record: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.record = record


class Rule(Protocol):
    """A function that `rule` has marked."""

    __name__: str
    category: Category
    yields_to: tuple[str, ...]
    """Rules whose finding takes the place of this one's."""

    def __call__(self, *seen: Any, **thresholds: Any) -> Advice | None:
        """What it says of these tables; None where there is nothing to say."""


_BY = late_pattern(r"(\w+?)_by_(\w+)")


def rule(
    *, category: Category, yields_to: tuple[str, ...] = ()
) -> Callable[[Callable[..., Advice | None]], Rule]:
    """Marks a function as a rule.

    `yields_to` names rules that say the same with more insight: if one of them finds something, what this
    one found is left out of the report.
    """

    def mark(function: Callable[..., Advice | None]) -> Rule:
        marked = cast("Rule", function)
        marked.category, marked.yields_to = category, yields_to
        return marked

    return mark


Wanted = tuple[dict[str, tuple[str, dict[str, str]]], dict[str, Any]]
_wanted: dict[Any, Wanted] = {}


def wanted_by(function: Callable[..., Any]) -> Wanted:
    """What a rule wants to see, by parameter: an analysis and its options; and its thresholds."""
    if function not in _wanted:
        _wanted[function] = _parameters_of(function)
    return _wanted[function]


def _parameters_of(function: Callable[..., Any]) -> Wanted:
    tables: dict[str, tuple[str, dict[str, str]]] = {}
    thresholds: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            thresholds[name] = parameter.default
        else:
            tables[name] = analysis_of(name)
    return tables, thresholds


def analysis_of(name: str) -> tuple[str, dict[str, str]]:
    """The analysis that a parameter names, and its options: `ops_by_user_frame` is `ops` by user frame."""
    found = _BY.fullmatch(name)
    return (found[1], {"by": found[2]}) if found else (name, {})


_FRAME = late_pattern(r"(.+)\((\d+)\): (.+)")
Called = tuple[str | None, str] | tuple[str | None, str, Iterable[str | None]]
"""A frame as the profiler names it, a note, and the operators that it is about."""


def frame_parts(frame: str | None) -> tuple[str, int, str] | None:
    """File, line and function of a frame as the profiler names it; None for what is no frame."""
    parts = _FRAME.fullmatch(frame or "")
    return (parts[1], int(parts[2]), parts[3]) if parts else None


def locations_of(frames: Iterable[Called], most: int = 3) -> tuple[Location, ...]:
    """Frames, each with a note, as locations; what is no frame is left out."""
    found: dict[str, Location] = {}
    for frame, note, *ops in frames:
        if frame and frame not in found and (parts := frame_parts(frame)):
            named = tuple(dict.fromkeys(name for group in ops for name in group if name))
            found[frame] = Location(*parts, note, named)
    return tuple(found.values())[:most]
