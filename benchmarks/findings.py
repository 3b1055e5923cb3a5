"""How true the report is: programs with a planted fault, their fixed twins, and what was measured of both.

Prints a table: whether the planted cause is found, at which rank, whether the measured gain lies in the
predicted interval, how wide that is, and which alarms sound on programs that have nothing planted in them.
An alarm about launches there is true if a CUDA graph of the step was measured to gain as much.

    python -m benchmarks.findings                  all programs
    python -m benchmarks.findings anomaly_mode …   some of them
    python -m benchmarks.findings --measured …     the gains again, with the faulty side's measured step

A run of the capture knows the unprofiled step. With `--measured` the report is given it, and the table holds
gains from the profile alone against gains with that step: whether they are as true, and how much narrower.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.faults import FAULTS, PROGRAMS

import stepscope
from stepscope.findings import Finding, Gain
from stepscope.findings.ranking import HIGH_SHARE, MEDIUM_SHARE
from stepscope.findings.report import Report
from stepscope.store.measured import MeasuredStep

LIBRARY = FAULTS.parent / "library"
GRAPHED = ("launch-bound", "eager-decode", "missed-graphs")
"""Findings that a CUDA graph of the step fixes."""
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

    @property
    def width_in_time(self) -> float | None:
        """The same of the interval in ns, as a part of the measured step."""
        gain = self.finding.gain if self.finding else None
        return (gain.high_ns - gain.low_ns) / self.unprofiled[2] if gain else None


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


@dataclass(frozen=True)
class Alarm:
    """A finding of high or medium severity where nothing was planted."""

    where: str
    id: str
    severity: str
    predicted: Gain
    graph_gain: float | None
    """What a CUDA graph of the whole step gained, as a part of the step; None if that was not measured."""

    @property
    def true(self) -> bool | None:
        """Whether it was worth saying; None if nobody knows."""
        if self.id not in GRAPHED or self.graph_gain is None:
            return None
        return self.graph_gain >= (HIGH_SHARE if self.severity == "high" else MEDIUM_SHARE)


def alarms_of(name: str, program: dict[str, Any]) -> list[Alarm]:
    """The alarms on the mended side of a program, or on a healthy one."""
    side = "mended" if "mended" in program["sides"] else next(iter(program["sides"]))
    graph = program["sides"][side].get("graph", {})
    gain = 1 - graph["graphed_step_ns"] / graph["step_ns"] if graph.get("graphed_step_ns") else None
    return [
        Alarm(f"{name}.{side}", one.id, one.severity, one.gain, gain)
        for one in reported(name, side).findings
        if one.severity != "low"
    ]


def print_pairs(pairs: list[Pair]) -> None:
    """The table of planted faults, and what it comes to."""
    head = (
        f"{'program':28} {'finding':24} {'kind':6} rank  severity  {'predicted':>15}  measured  inside  width"
    )
    print(f"{head}\n{'─' * len(head)}")
    for pair in pairs:
        gain = pair.finding.gain if pair.finding else None
        interval = f"{gain.low_share:6.1%} … {gain.high_share:6.1%}" if gain else "–"
        print(
            f"{pair.name:28} {pair.expected:24} {pair.kind:6} {pair.rank or '–':>4}  "
            f"{pair.finding.severity if pair.finding else '–':8}  {interval:>15}  {pair.gain_share:8.1%}  "
            f"{'yes' if pair.inside else 'NO':6}  {'–' if pair.width is None else f'{pair.width:.2f}'}"
        )
    faults = [pair for pair in pairs if pair.kind == "fault"]
    if faults:
        recall = sum(pair.rank is not None for pair in faults) / len(faults)
        first = sum(pair.rank is not None and pair.rank <= 2 for pair in faults) / len(faults)
        inside = sum(pair.inside for pair in pairs) / len(pairs)
        width = statistics.median([pair.width for pair in pairs if pair.width is not None] or [0.0])
        near = [low / 1.2 <= true <= high * 1.2 for low, high, true in (pair.unprofiled for pair in pairs)]
        print(
            f"\nfound {recall:.0%} · first or second {first:.0%} · gain inside {inside:.0%} · "
            f"width {width:.2f} · unprofiled step within 20 % of its range {sum(near) / len(near):.0%}\n"
        )


def print_alarms(alarms: list[Alarm], programs: int) -> None:
    """What sounded where nothing was planted, beside what a CUDA graph of the step gains there."""
    print(f"alarms on {programs} programs whose planted fault is fixed, or that have none:")
    for one in alarms:
        said = {None: "not measured", True: "true", False: "FALSE"}[one.true]
        gain = "" if one.graph_gain is None else f"a graph of the step gains {one.graph_gain:.0%}"
        interval = f"{one.predicted.low_share:4.0%} … {one.predicted.high_share:4.0%}"
        print(f"  {one.severity:6}  {one.where:34} {one.id:22} {interval}  {said:12}  {gain}")


def measured_of(facts: dict[str, Any]) -> MeasuredStep:
    """The step of a side without the profiler, as sure as a run of the capture has it: to 1 % or better."""
    mean = facts["unprofiled_step_ns"]
    half = min(facts["spread_ns"] // 2, mean // 100)
    return MeasuredStep(mean, mean, mean - half, mean + half, facts["unprofiled_steps"])


def gains_of(folder: Path, name: str, program: dict[str, Any], ids: Iterable[str]) -> list[Pair]:
    """A planted fault twice: by its profile alone, and with the measured step."""
    sides = program["sides"]
    before, after = (sides[side]["unprofiled_step_ns"] for side in ("faulty", "mended"))
    pairs = []
    for measured in (None, measured_of(sides["faulty"])):
        trace = stepscope.open(folder / f"{name}.faulty.light.pt.trace.json.gz")
        trace.measured = measured
        report = stepscope.report(trace)
        found = next((one for one in report.findings if one.id in ids), None)
        ends = (*report.overview.unprofiled_step_ns, before)
        rank = report.findings.index(found) + 1 if found else None
        pairs.append(Pair(name, next(iter(ids)), program["kind"], rank, found, 1 - after / before, ends))
    return pairs


def print_measured(title: str, twice: list[list[Pair]]) -> None:
    """Gains without and with the measured step, and what they come to."""
    print(f"{title}\n")
    head = f"{'program':34} {'finding':24} {'profile alone':>18}  {'with the step':>18}  measured  inside"
    print(f"{head}\n{'─' * len(head)}")
    for alone, timed in twice:
        ends = [
            f"{one.finding.gain.low_share:6.1%} … {one.finding.gain.high_share:6.1%}" if one.finding else "–"
            for one in (alone, timed)
        ]
        said = " → ".join("yes" if one.inside else "NO" for one in (alone, timed))
        found = alone.finding.id if alone.finding else alone.expected
        print(f"{alone.name:34} {found:24} {ends[0]:>18}  {ends[1]:>18}  {alone.gain_share:8.1%}  {said}")
    both = [pair for pair in twice if all(one.width is not None for one in pair)]
    for place, what in enumerate(("profile alone", "with the measured step")):
        inside = sum(pair[place].inside for pair in twice) / max(1, len(twice))
        widths = [pair[place].width or 0.0 for pair in both] or [0.0]
        times = [pair[place].width_in_time or 0.0 for pair in both] or [0.0]
        print(
            f"{what:24} gain inside {inside:.0%} of {len(twice)} · width as a share: median "
            f"{statistics.median(widths):.3f}, mean {statistics.mean(widths):.3f} · in time: median "
            f"{statistics.median(times):.3f}, mean {statistics.mean(times):.3f} of the step"
        )
    print()


def main_measured(only: list[str]) -> int:
    """Prints how much narrower gains are with the measured step, and whether they are as true."""
    library = json.loads((LIBRARY / "measurements.json").read_text(encoding="utf-8"))["programs"]
    made = {name: one for name, one in PROGRAMS.items() if not name.startswith("unseen_")}
    later = {name: one for name, one in PROGRAMS.items() if name.startswith("unseen_")}
    kept = {name: one for name, one in library.items() if one["kept"] and one["findings"]}
    for title, folder, programs in (
        ("The rules were made with these", FAULTS, made),
        ("Recorded when the rules were done", FAULTS, later),
        ("On real libraries", LIBRARY, kept),
    ):
        some = [
            gains_of(folder, name, one, one.get("findings") or [one["finding"]])
            for name, one in programs.items()
            if "mended" in one["sides"] and (not only or name in only)
        ]
        if some:
            print_measured(title, some)
    return 0


def main(only: list[str]) -> int:
    """Prints the tables: of the programs that the rules were made with, and of those that came later."""
    if "--measured" in only:
        return main_measured([name for name in only if name != "--measured"])
    programs = {name: one for name, one in PROGRAMS.items() if not only or name in only}
    for later in (False, True):
        some = {name: one for name, one in programs.items() if name.startswith("unseen_") == later}
        if some:
            print(f"{'Recorded when the rules were done' if later else 'The rules were made with these'}\n")
            print_pairs([pair_of(name, one) for name, one in some.items() if "mended" in one["sides"]])
            print_alarms([alarm for name, one in some.items() for alarm in alarms_of(name, one)], len(some))
            print()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
