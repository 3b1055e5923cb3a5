"""Budgets: what a step may take, and what must hold, as people write it: `step_time < +3 %`."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

from stepscope import registry, units
from stepscope.compare import Side
from stepscope.errors import StepscopeError
from stepscope.findings.thresholds import found_above, toml_of
from stepscope.patterns import late_pattern
from stepscope.records import dataclass

__all__ = ["FIGURES", "GROUPS", "Budget", "Figure", "budget_of", "budgets_in", "nearest_budgets"]

Kind = Literal["time", "share", "bytes", "number"]
Sign = Literal["<", "<=", ">", ">=", "="]
FILES = ("stepscope.toml", "pyproject.toml")
SEVERITIES = ("none", "low", "medium", "high")


@dataclass(frozen=True, slots=True)
class Figure:
    """Something of a side that a budget can be about."""

    kind: Kind
    of: Callable[[Side], float | None]
    record: str = ""
    """How to record it where it is not known."""

    def text(self, value: float | None) -> str:
        """A value as people read it."""
        show: dict[Kind, Callable[[float | None], str]] = {
            "time": units.duration,
            "share": units.share,
            "bytes": units.size,
            "number": units.number,
        }
        return show[self.kind](value)


def _exposed(side: Side) -> float | None:
    parts = side.report.overview.parts
    whole = sum(parts.values())
    return parts.get("communication", 0) / whole if whole else None


FIGURES = {
    "step_time": Figure("time", lambda side: side.true_ns or None),
    "steps_per_second": Figure("number", lambda side: side.rates.get("steps")),
    "samples_per_second": Figure("number", lambda side: side.rates.get("samples"), "record_shapes=True"),
    "tokens_per_second": Figure("number", lambda side: side.rates.get("tokens"), "record_shapes=True"),
    "utilization": Figure("share", lambda side: side.report.overview.utilization_share),
    "sm_efficiency": Figure("share", lambda side: side.report.overview.sm_efficiency_share),
    "mfu": Figure("share", lambda side: side.report.overview.mfu_share, "record_shapes=True"),
    "waiting_for_host": Figure("share", lambda side: side.report.overview.starved_share),
    "exposed_communication": Figure("share", _exposed),
    "peak_memory": Figure(
        "bytes", lambda side: side.report.overview.peak_memory_bytes, "profile_memory=True"
    ),
    "kernels_per_step": Figure("number", lambda side: float(side.report.overview.kernels_per_step)),
}
"""What a budget can be about, by name; with repetitions, all but times and rates are those of the first."""
GROUPS = {"host-syncs": ("scalar-reads", "implicit-syncs", "explicit-syncs")}
"""Findings that people name by one word."""
ANY = "any"
_MOST = 1000
"""So many budgets a file may have."""

_UNITS: dict[Kind, dict[str, float]] = {
    "time": {"ns": 1, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9, "min": 60e9},
    "share": {"": 1, "%": 0.01},
    "bytes": {
        "b": 1, "kib": 2.0**10, "mib": 2.0**20, "gib": 2.0**30, "tib": 2.0**40,
        "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12,
    },
    "number": {"": 1},
}  # fmt: skip
_LIMIT = late_pattern(r"(?P<name>[\w-]+)\s*(?P<sign><=|>=|<|>|=)\s*(?P<limit>.+)")
_VALUE = late_pattern(
    r"(?P<move>[+\-−]?)\s*(?P<number>\d[\d_,]*(?:\.\d+)?(?:[eE][+-]?\d+)?)\s*(?P<unit>%|[a-zA-Zµ]*)"
)
_FINDING = late_pattern(r"finding\s+(?P<id>[\w-]+)\s*(?P<sign><=|=)\s*(?P<severity>\w+)")
_EXAMPLE = (
    "write it like: step_time < +3 %, utilization >= 0.8, peak_memory <= 70 GiB, finding scalar-reads = none"
)


@dataclass(frozen=True, slots=True)
class Budget:
    """One budget, read and understood."""

    text: str
    where: str
    """The option, or the file and its line."""
    name: str
    """A figure; or a finding, a group of them or `any`."""
    sign: Sign
    limit: float
    """Of a figure its value, or with `relative` the part by which it may differ from the baseline; of a
    finding the highest severity that is allowed, as a place in SEVERITIES."""
    relative: bool = False
    about_finding: bool = False

    @property
    def ids(self) -> tuple[str, ...]:
        """The findings that it is about; empty for all of them."""
        return () if self.name == ANY else GROUPS.get(self.name, (self.name,))

    def kept_by(self, value: float) -> bool:
        """Whether a value keeps the limit."""
        ways = {
            "<": value < self.limit,
            "<=": value <= self.limit,
            ">": value > self.limit,
            ">=": value >= self.limit,
            "=": value == self.limit,
        }
        return ways[self.sign]


def budget_of(text: str, where: str) -> Budget:
    """Reads a budget; what cannot be read is an error that names the place."""
    said = " ".join(text.split())
    if said == "finding" or said.startswith("finding "):
        return _about_finding(said, where)
    found = _LIMIT.fullmatch(said)
    if not found:
        raise StepscopeError(f"{where}: the budget {said!r} cannot be read", hint=_EXAMPLE)
    name, limit = found["name"].replace("-", "_"), found["limit"]
    if name not in FIGURES:
        raise StepscopeError(
            f"{where}: the budget {said!r} is about {found['name']!r}, which is not a figure of a step",
            hint=_near(name, FIGURES),
        )
    value = _VALUE.fullmatch(limit)
    if not value:
        raise StepscopeError(f"{where}: {limit!r} in the budget {said!r} is not a value", hint=_EXAMPLE)
    number, relative = _number(value, FIGURES[name].kind, said, where)
    return Budget(said, where, name, found["sign"], number, relative)  # type: ignore[arg-type]  # it is a sign


def _number(value: re.Match[str], kind: Kind, said: str, where: str) -> tuple[float, bool]:
    """The limit in ns, bytes or as a plain number; and whether it is a part of the baseline."""
    number = float(value["number"].replace(",", "").replace("_", ""))
    unit, move = value["unit"].lower(), value["move"]
    if move:
        if unit != "%":
            raise StepscopeError(
                f"{where}: the change in the budget {said!r} has no % sign",
                hint=f"write {move}3 % for a change against the baseline, or a value without a sign",
            )
        return (number if move == "+" else -number) / 100, True
    if unit not in _UNITS[kind]:
        known = ", ".join(filter(None, _UNITS[kind])) or "none"
        raise StepscopeError(
            f"{where}: {value[0]!r} in the budget {said!r} has no fitting unit", hint=f"there are: {known}"
        )
    return number * _UNITS[kind][unit], False


def _about_finding(said: str, where: str) -> Budget:
    found = _FINDING.fullmatch(said)
    if not found or found["severity"] not in SEVERITIES:
        raise StepscopeError(
            f"{where}: the budget {said!r} cannot be read",
            hint="write it like: finding scalar-reads = none, finding any <= low",
        )
    known = [name.replace("_", "-") for name, _ in registry.names("findings.rules", installed=True)]
    if found["id"] not in (ANY, *GROUPS, *known):
        raise StepscopeError(
            f"{where}: there is no finding {found['id']!r}", hint=_near(found["id"], (ANY, *GROUPS, *known))
        )
    severity = float(SEVERITIES.index(found["severity"]))
    return Budget(said, where, found["id"], "<=", severity, about_finding=True)


def _near(word: str, known: Iterable[str]) -> str:
    names = list(known)
    close = difflib.get_close_matches(word, names, n=1)
    return f"did you mean {close[0]}?" if close else f"there are: {', '.join(names)}"


def nearest_budgets(folder: Path) -> list[Budget]:
    """Those of the nearest stepscope.toml or pyproject.toml that has some; none where there is no such."""
    for file in found_above(folder, FILES):
        if found := budgets_in(file):
            return found
    return []


def budgets_in(file: Path) -> list[Budget]:
    """Those of a file: a list `budgets`, in a pyproject.toml under `tool.stepscope`."""
    read = toml_of(file)
    inside: Any = read
    for name in ("tool", "stepscope") if file.name == "pyproject.toml" else ():
        inside = inside.get(name, {}) if isinstance(inside, dict) else {}
    written = inside.get("budgets", []) if isinstance(inside, dict) else []
    if not isinstance(written, list) or not all(isinstance(one, str) for one in written):
        raise StepscopeError(
            f"{file}: `budgets` is not a list of strings", hint='write budgets = ["step_time < +3 %"]'
        )
    if len(written) > _MOST:
        raise StepscopeError(f"{file}: {len(written):,} budgets are too many", hint=f"keep the {_MOST} best")
    lines = file.read_text(encoding="utf-8").splitlines() if written else []
    return [budget_of(text, f"{file.name}:{_line(lines, text)}") for text in written]


def _line(lines: list[str], text: str) -> int:
    """Where a text stands in the file, as people count lines."""
    return next((number for number, line in enumerate(lines, 1) if text in line), 1)
