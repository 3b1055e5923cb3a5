"""How true the report is: programs with a planted fault, their mended twins, and what was measured of both.

Prints a table: whether the planted cause is found, at which rank, whether the measured gain lies in the
predicted interval, how wide that is, and which alarms sound on programs that have nothing to mend.
"""

from __future__ import annotations

import json
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import stepscope
from stepscope.findings import Finding
from stepscope.findings.report import Report

FAULTS = Path(__file__).parent.parent / "tests" / "data" / "faults"
NEAR = 0.20
"""A measured gain this part beyond an end of the interval still counts as predicted."""


@dataclass(frozen=True)
class Pair:
    """One planted fault: what was expected, found and measured."""

    name: str
    expected: str
    kind: str
    rank: int | None
    finding: Finding | None
    gain_share: float
    """What mending gained, as a part of the unprofiled step."""
    unprofiled: tuple[float, float, float]
    """The unprofiled step: predicted at the least and at the most, and measured."""

    @property
    def inside(self) -> bool:
        """Whether the measured gain lies in the interval, or near its ends."""
        if self.finding is None:
            return abs(self.gain_share) < 0.10
        gain = self.finding.gain
        return gain.low_share * (1 - NEAR) <= max(0.0, self.gain_share) <= gain.high_share * (1 + NEAR) + 0.01

    @property
    def width(self) -> float | None:
        """How wide the interval is, as a part of the step."""
        return self.finding.gain.high_share - self.finding.gain.low_share if self.finding else None


def reported(name: str, side: str, recording: str = "light") -> Report:
    """The report on one side of a program."""
    return stepscope.report(FAULTS / f"{name}.{side}.{recording}.pt.trace.json.gz")


def pair_of(name: str, program: dict[str, Any]) -> Pair:
    """What the report says of the faulty side, against what was measured."""
    report = reported(name, "faulty")
    ids = [finding.id for finding in report.findings]
    found = ids.index(program["finding"]) if program["finding"] in ids else None
    sides = program["sides"]
    before, after = (sides[side]["unprofiled_step_ns"] for side in ("faulty", "mended"))
    return Pair(
        name=name,
        expected=program["finding"],
        kind=program["kind"],
        rank=None if found is None else found + 1,
        finding=None if found is None else report.findings[found],
        gain_share=1 - after / before,
        unprofiled=(*report.overview.unprofiled_step_ns, before),
    )


def alarms(programs: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Findings of high and medium severity on mended twins and healthy programs."""
    found = []
    for name, program in programs.items():
        side = "mended" if "mended" in program["sides"] else next(iter(program["sides"]))
        sounded = [one for one in reported(name, side).findings if one.severity != "low"]
        found += [(f"{name}.{side}", one.id, one.severity) for one in sounded]
    return found


def main() -> int:
    """Prints the table and what it comes to."""
    programs = json.loads((FAULTS / "measurements.json").read_text(encoding="utf-8"))["programs"]
    pairs = [pair_of(name, one) for name, one in programs.items() if "mended" in one["sides"]]
    head = (
        f"{'program':26} {'finding':24} {'kind':6} rank  severity  {'predicted':>15}  measured  inside  width"
    )
    print(head)
    print("─" * len(head))
    for pair in pairs:
        gain = pair.finding.gain if pair.finding else None
        interval = f"{gain.low_share:6.1%} … {gain.high_share:6.1%}" if gain else "–"
        print(
            f"{pair.name:26} {pair.expected:24} {pair.kind:6} {pair.rank or '–':>4}  "
            f"{pair.finding.severity if pair.finding else '–':8}  {interval:>15}  {pair.gain_share:8.1%}  "
            f"{'yes' if pair.inside else 'NO':6}  {'–' if pair.width is None else f'{pair.width:.2f}'}"
        )
    faults = [pair for pair in pairs if pair.kind == "fault"]
    recall = sum(pair.rank is not None for pair in faults) / len(faults)
    first = sum(pair.rank is not None and pair.rank <= 2 for pair in faults) / len(faults)
    inside = sum(pair.inside for pair in pairs) / len(pairs)
    width = statistics.median(pair.width for pair in pairs if pair.width is not None)
    near = [low / 1.2 <= true <= high * 1.2 for low, high, true in (pair.unprofiled for pair in pairs)]
    sounded = alarms(programs)
    print(
        f"\nfound {recall:.0%} · first or second {first:.0%} · gain inside {inside:.0%} · width {width:.2f}"
    )
    print(f"unprofiled step within 20 % of its range: {sum(near) / len(near):.0%}")
    print(f"alarms on {len(programs)} programs with nothing to mend:")
    for where, finding, severity in sounded:
        print(f"  {severity:6}  {where:34} {finding}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
