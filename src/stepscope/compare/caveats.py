"""What differs between two recordings besides the program, and distorts their comparison."""

from __future__ import annotations

from collections.abc import Iterator

from stepscope import units
from stepscope.compare import Side
from stepscope.compare.held import held_changes
from stepscope.findings.facts import Facts
from stepscope.findings.report import Report

__all__ = ["caveats_between"]

_FEW = 3
_MIX = 0.1
_STRETCHED = 0.03


def caveats_between(before: Side, after: Side) -> Iterator[str]:
    """Each difference as a sentence."""
    facts = before.report.facts, after.report.facts
    yield from _machines(*facts)
    yield from _recorded(before, after)
    yield from _batches(before, after)
    held = list(held_changes(before.report, after.report))
    yield from held
    for side in (before, after):
        yield from _steps(side, compared=bool(held))
    yield from _mix(before, after)
    yield from _stretched(before, after)


def _machines(before: Facts, after: Facts) -> Iterator[str]:
    devices = [
        ", ".join(dict.fromkeys(one.name for one in facts.devices if one.name)) for facts in (before, after)
    ]
    if devices[0] != devices[1]:
        ends = " → ".join(name or "none named" for name in devices)
        yield f"The devices differ ({ends}), so kernels have different names and times."
    elif before.cuda != after.cuda:
        ends = f"{before.cuda or 'none'} → {after.cuda or 'none'}"
        yield f"The runtimes differ ({ends}), so libraries may use different kernels."
    if before.world_size != after.world_size:
        yield (
            f"The runs have {before.world_size or 1} and {after.world_size or 1} ranks, "
            "so a rank has a different share of the work."
        )
    elif before.rank != after.rank:
        yield f"These are ranks {before.rank} and {after.rank}, not the same process."
    if before.device_work != after.device_work:
        yield "Only one side has device work, so the parts of the step differ."


def _recorded(before: Side, after: Side) -> Iterator[str]:
    ways = [_way(side.report.facts) for side in (before, after)]
    if ways[0] != ways[1]:
        yield (
            f"The sides were recorded differently ({ways[0]} → {ways[1]}), which slows the host differently: "
            "compare the unprofiled steps, or record both the same way."
        )
    found = [side.report.overview.found_by for side in (before, after)]
    if found[0] != found[1] and "nothing" not in found:
        yield f"Their steps were found differently: by {found[0]} and by {found[1]}."


def _way(facts: Facts) -> str:
    kinds = [name for name in ("stacks", "shapes", "memory") if getattr(facts, name)]
    return f"with {', '.join(kinds)}" if kinds else "without extras"


def _batches(before: Side, after: Side) -> Iterator[str]:
    for unit in ("samples", "tokens"):
        ends = before.per_step.get(unit), after.per_step.get(unit)
        if None not in ends and ends[0] != ends[1]:
            said = " → ".join(units.number(end) for end in ends)
            yield f"The {unit} per step differ ({said}): compare {unit} per second, not steps."


def _steps(side: Side, *, compared: bool) -> Iterator[str]:
    report: Report = side.report
    if not side.steps and compared:
        return
    if not side.steps:
        yield f"{side.name} has no steps, so nothing can be compared."
    elif report.overview.found_by == "nothing":
        yield f"No steps were found in {side.name}: the whole trace counts as one."
    elif side.steps < _FEW:
        yield f"{side.name} has only {units.counted(side.steps, 'step')}: record more."
    if any(doubt.what == "warm-up" for run in side.runs for doubt in run.report.trust):
        yield f"The mean of {side.name} includes a warm-up step: record later steps."


def _mix(before: Side, after: Side) -> Iterator[str]:
    """Steps of several kinds whose numbers differ: the means then differ for that alone."""
    shares = []
    for side in (before, after):
        counts = [row.steps for row in side.report.tables["step_classes"]]
        shares.append(max(counts) / sum(counts) if counts else 1.0)
    if abs(shares[0] - shares[1]) > _MIX:
        ends = " and ".join(units.share(share) for share in shares)
        yield f"There are several kinds of steps. The most frequent kind is {ends} of them."


def _stretched(before: Side, after: Side) -> Iterator[str]:
    """Recording may stretch the two sides by more than they differ; measured steps it does not."""
    if after.measured_ns:
        return
    ends = before.unprofiled_step_ns, after.unprofiled_step_ns
    order = sorted((side.step_ns, *end) for side, end in zip((before, after), ends, strict=True))
    (shorter, *_, most), (longer, least, _) = order
    if shorter < longer and least < most and (longer - least) > _STRETCHED * longer:
        said = " and ".join(units.between(*end) for end in ends)
        yield (
            f"Profiling made these steps longer: unprofiled they take an estimated {said}. "
            "Time some steps without the profiler to be certain."
        )
