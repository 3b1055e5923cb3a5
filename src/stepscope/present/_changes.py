"""How all formats of a comparison say the same things."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stepscope import units
from stepscope.compare import Comparison, Side, StepChange, StepPart, walked
from stepscope.compare.ranks import paired_ranks
from stepscope.findings import Finding
from stepscope.present._phrases import worth
from stepscope.runs.rank_lists import ranks_text

__all__ = [
    "COLOURS",
    "PARTS",
    "between",
    "counted",
    "found",
    "headline",
    "how_a_kernel_changed",
    "kernels",
    "part_name",
    "ranks",
    "rates",
    "reasons",
    "sentence",
    "share",
    "signed",
    "unmatched",
    "unprofiled",
]

PARTS = {
    "kernels": "kernels",
    "copies": "copies",
    "fills": "fills",
    "collectives": "collectives",
    "data": "GPU waits for data",
    "syncs": "GPU idle after blocking calls",
    "host": "GPU waits for the host",
    "launches": "launch latency",
    "device": "GPU waits for other GPU work",
    "unknown": "GPU idle, cause unknown",
    "operators": "CPU operators",
    "calls": "runtime calls",
    "other": "other",
}
"""The parts of a step, as people call them."""
COLOURS = {
    "kernels": "device",
    "copies": "copy",
    "fills": "fill",
    "collectives": "communication",
    "data": "input",
    "syncs": "calls",
    "host": "host",
    "launches": "low",
    "device": "other",
    "unknown": "other",
    "operators": "host",
    "calls": "calls",
    "other": "other",
}
_MEMBERS = {"new": "new", "gone": "gone", "renamed": "renamed", "replaced": "other kernels, same operator"}
_EXPOSED = ("copies", "fills", "collectives")
_TRIFLE = 0.001
_SMALL = 0.005
"""Smaller changes, as a share of the step, are not listed one by one."""


def part_name(part: StepPart) -> str:
    """A part as people call it: of the first level by its meaning, deeper by its own name."""
    return PARTS.get(part.name, part.name)


def signed(ns: float) -> str:
    """A change of time with its sign: `−1.42 ms`."""
    said = units.duration(abs(ns))
    return said if not ns else f"{'+' if ns > 0 else '−'}{said}"


def share(part: float | None) -> str:
    """A change as a part of the whole, with its sign: `−13.0 %`."""
    if part is None:
        return units.ABSENT
    said = units.share(abs(part))
    return said if not part else f"{'+' if part > 0 else '−'}{said}"


def between(change: StepChange) -> str:
    """The interval of the change, as parts of the step before: `−32.0 … +11.4 %`."""
    if change.truth is None:
        return "unknown"
    ends = [end / change.before.true_ns for end in (change.truth.low_ns, change.truth.high_ns)]
    low, high = share(ends[0]), share(ends[1])
    return low if low == high else f"{low.removesuffix(' %')} … {high}"


def sentence(change: StepChange) -> str:
    """What happened to the step, in a sentence."""
    if change.truth is None and {one.report.facts.kind for one in (change.before, change.after)} == {
        "snapshot"
    }:
        return "Memory snapshots have no steps: see below what changed in memory."
    if change.truth is None:
        return "One side has no steps, so the change cannot be judged."
    ends = f"from {units.duration(change.before.true_ns)} to {units.duration(change.after.true_ns)}"
    if change.measured:
        ends += ", measured without the profiler"
    moved = f"{signed(change.change_ns)}, {share(change.share)}"
    if change.word == "noise":
        return f"The step changed {ends} ({moved}), within the noise (95 % interval: {between(change)})."
    return f"The step got {change.word}, {ends}: {moved} (95 % interval: {between(change)})."


def reasons(change: StepChange, most: int = 2) -> str:
    """Where most of a change comes from; empty if nothing stands out, or all is noise."""
    if change.word in ("noise", "unknown"):
        return ""
    up = change.change_ns > 0
    told = [
        f"{_cause(part, inner)} ({signed(inner.change_ns)})"
        for part, inner in change.causes
        if (inner.change_ns > 0) == up and abs(inner.change_ns) >= 0.1 * abs(change.recorded_change_ns)
    ]
    return f"Main reasons: {', '.join(told[:most])}." if told else ""


def _cause(part: StepPart, inner: StepPart) -> str:
    name = part_name(part)
    if inner is part or inner.name in (part.name, name) or part.name in ("data", *_EXPOSED):
        return name
    return f"{inner.name} {name}" if part.name == "kernels" else f"{name}: {inner.name}"


def ranks(change: StepChange) -> str:
    """How all ranks changed together; empty where sides are single ranks."""
    before, after = change.before.ranks, change.after.ranks
    if before is None or after is None:
        return ""
    told = [
        f"{name} {units.duration(getattr(before, field))} → {units.duration(getattr(after, field))}"
        for field, name in _OF_RANKS.items()
    ]
    late = [
        "no rank is late" if one.late_rank is None
        else f"rank {one.late_rank} is {units.duration(one.late_ns)} late ({one.cause})"
        for one in (before, after)
    ]  # fmt: skip
    changed = f"before, {late[0]}; after, {late[1]}" if late[0] != late[1] else late[0]
    size = units.count(before.ranks) if before.ranks == after.ranks else f"{before.ranks} → {after.ranks}"
    return f"All {size} ranks: {', '.join(told)}; {changed}.{_unpaired(change)}"


def _unpaired(change: StepChange) -> str:
    """Which ranks have no counterpart; empty where all have one."""
    paired = paired_ranks(change)
    if paired is None:
        return ""
    told = [
        f"{'rank' if len(ranks) == 1 else 'ranks'} {ranks_text(ranks)}, only {when}"
        for ranks, when in ((paired.only_before, "before"), (paired.only_after, "after"))
        if ranks
    ]
    return f" Not compared: {'; '.join(told)}." if told else ""


_OF_RANKS = {
    "step_ns": "step of the run",
    "wait_ns": "exposed wait for others",
    "transfer_ns": "exposed transfer",
}


def headline(comparison: Comparison) -> list[str]:
    """What is compared, where: short pieces for one line."""
    first = comparison.sides[0].report.facts
    devices = dict.fromkeys(
        device.name for side in comparison.sides for device in side.report.facts.devices if device.name
    )
    world = f"rank {first.rank} of {first.world_size}" if first.world_size and first.world_size > 1 else ""
    sides = " → ".join(side.name for side in comparison.sides)
    return [piece for piece in (sides, ", ".join(devices), world) if piece]


def counted(side: Side) -> str:
    """How many steps and runs a side has: `3 runs, 12 steps`."""
    steps = units.counted(side.steps, "step")
    return f"{units.count(len(side.runs))} runs, {steps}" if len(side.runs) > 1 else steps


def rates(side: Side) -> str:
    """What a side gets done in a second: `91.7 steps/s, 1,467 samples/s`."""
    return ", ".join(f"{units.number(rate)} {unit}/s" for unit, rate in side.rates.items())


def unprofiled(change: StepChange) -> str:
    """The steps without the profiler, estimated; empty if recording costs little.

    Where they were measured, it is the recorded ones that are to be told.
    """
    sides = (change.before, change.after)
    if change.measured:
        said = " → ".join(units.duration(side.step_ns) for side in sides)
        return f"Under the profiler, in the light pass: {said}. The parts add up to the change of these."
    if change.interval is None or not any(
        side.step_ns > 1.03 * side.unprofiled_step_ns[0] for side in sides if side.step_ns
    ):
        return ""
    said = " → ".join(units.between(*side.unprofiled_step_ns) for side in sides)
    return f"Unprofiled, estimated: {said}."


def kernels(change: StepChange) -> list[StepPart]:
    """Kernels, copies and collectives that changed, the most first; trifles are left out."""
    work = [part for part in change.parts if part.name in ("kernels", *_EXPOSED)]
    least = _SMALL * max(change.before.step_ns, change.after.step_ns)
    moved = [part for part in walked(tuple(work)) if part.calls and abs(part.change_ns) >= least]
    return sorted(moved, key=lambda part: -abs(part.change_ns))


def how_a_kernel_changed(part: StepPart) -> str:
    """New, gone, more calls, slower: what the change of a kernel is made of."""
    if part.state in ("new", "gone"):
        return part.state
    told = [_MEMBERS[part.state]] if part.state in _MEMBERS else []
    if part.exposed and part.change_ns:
        told.append("less exposed" if part.change_ns < 0 else "more exposed")
    for ns, more, less in (
        (part.more_often_ns, "more calls", "fewer calls"),
        (part.slower_ns, "slower", "faster"),
    ):
        if ns and abs(ns) >= 0.1 * abs(part.change_ns):
            told.append(f"{more if ns > 0 else less} {signed(ns)}")
    return ", ".join(told)


def unmatched(change: StepChange) -> str:
    """What has no counterpart on the other side, or only a guessed one; empty if all was matched."""
    work = [part for part in change.parts if part.name in ("kernels", *_EXPOSED)]
    leaves = [part for part in walked(tuple(work)) if part.calls]
    said = []
    for state, words in (
        ("gone", "only before"),
        ("new", "only after"),
        ("renamed", "matched by a similar name"),
        ("replaced", "matched by operator"),
    ):
        these = [part for part in leaves if part.state == state]
        time = sum(max(part.before_ns, part.after_ns) for part in these)
        if time >= _TRIFLE * max(change.before.step_ns, change.after.step_ns, 1):
            said.append(f"{units.count(len(these))} {words} ({units.duration(time)})")
    return f"Kernels and copies: {', '.join(said)}." if said else ""


def found(findings: Iterable[Finding] | Sequence[tuple[Finding, Finding]]) -> str:
    """Findings with what they gain, or gained before and gain now."""
    told = []
    for one in findings:
        if isinstance(one, Finding):
            told.append(f"{one.id} ({one.severity}, {worth(one)})")
        else:
            ends = [worth(end) for end in one]
            told.append(f"{one[0].id} ({ends[0] if ends[0] == ends[1] else f'{ends[0]}, now {ends[1]}'})")
    return ", ".join(told)
