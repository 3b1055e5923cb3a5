"""How all faces of a report say the same things."""

from __future__ import annotations

from stepscope import units
from stepscope.findings import Finding, Gain
from stepscope.findings.report import Overview, Report

__all__ = ["PARTS", "gain", "headline", "inflation", "lowered", "not_judged", "recorded_with", "sharing"]

PARTS = {
    "kernel": "kernels",
    "memcpy": "copies",
    "memset": "fills",
    "communication": "collectives",
    "runtime": "runtime calls",
    "dataloader": "data",
    "cpu": "host ops",
    "other": "other",
}
"""The parts of a step, in their order, as people call them."""


def headline(report: Report) -> list[str]:
    """What was recorded, where and how: short pieces for one line."""
    facts, overview = report.facts, report.overview
    names = [device.name for device in facts.devices if device.name]
    used = f"{len(names)} × {names[0]}" if len(set(names)) == 1 else ", ".join(dict.fromkeys(names))
    world = f"rank {facts.rank} of {facts.world_size}" if facts.world_size and facts.world_size > 1 else ""
    steps = f"{units.count(overview.steps)} step{'s' if overview.steps != 1 else ''}"
    if overview.found_by != "marks":
        steps += f" (by {overview.found_by})"
    return [
        piece
        for piece in (facts.source, used, facts.cuda or "", world, steps, recorded_with(report))
        if piece
    ]


def recorded_with(report: Report) -> str:
    """What the profiler recorded beside time, and what that cost."""
    facts = report.facts
    kinds = [name for name in ("stacks", "shapes", "memory") if getattr(facts, name)]
    said = f"recorded with {' and '.join(', '.join(kinds).rsplit(', ', 1))}" if kinds else "recorded lightly"
    slower = inflation(report.overview)
    return f"{said} ({slower})" if slower else said


def inflation(overview: Overview) -> str:
    """How much longer the step is for being recorded; empty where that is not much."""
    low, high = overview.unprofiled_step_ns
    if not low or overview.step_ns / low < 1.03:
        return ""
    ends = sorted(max(0.0, overview.step_ns / end - 1) for end in (low, high))
    return f"steps inflated ≈ {ends[0] * 100:.0f}–{ends[1] * 100:.0f} %"


def gain(of: Gain) -> str:
    """What a step gets shorter by: `−28 … −36 ms`."""
    return units.between(of.low_ns, of.high_ns, sign="−") if of.high_ns else "no time"


def sharing(report: Report, finding: Finding) -> str:
    """Which findings above it want some of the same time; empty where none do."""
    ids = [one.id for one in report.findings]
    numbers = ", ".join(str(ids.index(other) + 1) for other in finding.shares_time_with)
    return f"wants some of the same time as {numbers}" if numbers else ""


def lowered(title: str) -> str:
    """A title inside a sentence; names in capitals keep them."""
    return title if title[:2].isupper() else title[0].lower() + title[1:]


def not_judged(report: Report) -> list[tuple[str, list[str]]]:
    """The rules that could not judge, by what to do about it: (how to record or why not, rules)."""
    found: dict[str, list[str]] = {}
    for one in report.not_run:
        found.setdefault(f"record with {one.record}" if one.record else one.reason, []).append(one.id)
    return list(found.items())
