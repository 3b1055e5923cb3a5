"""How all formats of a report say the same things."""

from __future__ import annotations

from stepscope import units
from stepscope.findings import Finding, Gain, Location
from stepscope.findings.claims import Time
from stepscope.findings.ranking import MEDIUM_SHARE
from stepscope.findings.report import Overview, PassFacts, Report, ServedKind

__all__ = [
    "PARTS",
    "busy_with",
    "devices",
    "gain",
    "headline",
    "inflation",
    "insides",
    "not_judged",
    "only_ranks",
    "passes",
    "phase_shares",
    "recorded_with",
    "served",
    "sharing",
    "steps",
    "unprofiled",
    "world",
    "worth",
]

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
"""The parts of a step in their order, and what people call them."""
_NEARLY_ALL = 0.95


def headline(report: Report) -> list[str]:
    """What was recorded, where and how: short pieces for one line."""
    facts, overview = report.facts, report.overview
    recorded = passes(report) or [steps(overview), recorded_with(report)]
    return [
        piece
        for piece in (
            facts.source,
            devices(report),
            facts.cuda or "",
            ", ".join(facts.frameworks),
            world(report),
            *recorded,
            joined(report),
        )
        if piece
    ]


def joined(report: Report) -> str:
    """The files that were read with the profile."""
    return f"joined with {', '.join(report.facts.joined)}" if report.facts.joined else ""


def world(report: Report) -> str:
    """Which rank of how many; empty for a program of one process."""
    if report.run:
        return f"in depth: rank {report.run.judged_rank}, which {report.run.judged_because}"
    size = report.facts.world_size or 1
    if size <= 1:
        return ""
    rank = report.passes.rank if report.passes else report.facts.rank
    more = report.passes is not None and len(report.passes.ranks) > 1
    return f"rank {rank} of {size}" + ("; --rank N shows another" if more else "")


def passes(report: Report) -> list[str]:
    """Of a run, which figures come from where; empty for a single profile."""
    told = report.passes
    if told is None:
        return []
    known = {"lines": report.facts.stacks, "shapes": report.facts.shapes, "memory": report.facts.memory}
    places = " and ".join(", ".join(name for name, there in known.items() if there).rsplit(", ", 1))
    slower = inflation(report.overview)
    pieces = [
        f"step measured without profiler: {told.measured.said}"
        if told.measured
        else "step not timed without the profiler: estimated",
        f"times from the {_counted(told.times)}" + (f": {slower}" if slower else ""),
    ]
    if told.places.name != told.times.name:
        pieces.append(f"{places} from the {_counted(told.places)}" if places else "")
    elif places:
        pieces.append(f"{places} from the same")
    return pieces


def _counted(one: PassFacts) -> str:
    return f"{one.name} pass ({units.counted(one.steps, 'step')})"


def devices(report: Report) -> str:
    """The devices by name, and how many of them have work: `1 of 8 × NVIDIA A100`."""
    names = [device.name for device in report.facts.devices if device.name]
    if len(set(names)) != 1:
        return ", ".join(dict.fromkeys(names))
    used, there = report.overview.devices_with_work, len(names)
    return f"{used} of {there} × {names[0]}" if 0 < used < there else f"{there} × {names[0]}"


def steps(overview: Overview) -> str:
    """How many steps there are and what marks them."""
    if overview.found_by == "nothing":
        return "no steps found" + (": the whole trace counts as one" if overview.steps else "")
    said = units.counted(overview.steps, "step")
    return said if overview.found_by == "marks" else f"{said} (found by {overview.found_by})"


def served(overview: Overview) -> list[str]:
    """What each kind of a server's iterations takes and gets done, a piece for each."""
    return [_served(one) for one in overview.served]


def _served(one: ServedKind) -> str:
    time = "" if one.time_share is None else f", {units.share(one.time_share)} of the time"
    told = f"{one.kind}: {units.counted(one.iterations, 'iteration')}{time}"
    rates = {"prefill": one.prefill_tokens_per_s, "decode": one.decode_tokens_per_s}
    known = {kind: rate for kind, rate in rates.items() if rate}
    for kind, rate in known.items():
        told += f", {units.number(rate)} {kind + ' ' if len(known) > 1 else ''}tokens/s"
    return told


def recorded_with(report: Report) -> str:
    """What the profiler recorded beside time, and what that cost."""
    facts = report.facts
    kinds = [name for name in ("stacks", "shapes", "memory") if getattr(facts, name)]
    listed = " and ".join(", ".join(kinds).rsplit(", ", 1))
    said = f"recorded with {listed}" if kinds else "recorded without stacks, shapes or memory"
    if facts.kind != "kineto":
        said = f"{facts.kind.replace('_', ' ')} file" + (f" with {listed}" if kinds else "")
    slower = inflation(report.overview)
    return f"{said} ({slower})" if slower else said


def inflation(overview: Overview) -> str:
    """How much longer the step is because it was recorded; empty if that is little."""
    low, high = overview.unprofiled_step_ns
    if not low or overview.steady_step_ns / low < 1.03:
        return ""
    ends = sorted(max(0.0, overview.steady_step_ns / end - 1) for end in (low, high))
    return f"profiling made steps ≈ {units.percents(*ends)} longer"


def busy_with(overview: Overview) -> str:
    """What a device does in the time that counts as utilization."""
    return "computes or communicates" if overview.parts.get("communication") else "computes"


def unprofiled(report: Report) -> str:
    """The step without the profiler: measured, or as a range; absent if there is none."""
    if report.passes and report.passes.measured:
        return units.duration(report.passes.measured.mean_ns)
    low, high = report.overview.unprofiled_step_ns
    return units.between(low, high) if low and high else units.ABSENT


def gain(of: Gain) -> str:
    """What a step gets shorter by: `−28 … −36 ms`; a range that is too wide to help is not shown as one."""
    if not of.is_known:
        least = f"−{units.duration(of.low_ns)} or more, " if of.low_share >= MEDIUM_SHARE else ""
        return f"{least}unknown until measured"
    return units.between(of.low_ns, of.high_ns, sign="−") if of.high_ns else "step unchanged"


def worth(finding: Finding) -> str:
    """What a fix is worth: time, or a run that does not fail."""
    if finding.gain.high_ns:
        return gain(finding.gain)
    if finding.advice.risk:
        return "run may fail"
    claims = finding.advice.claims
    of_memory = all(one.time is Time.MEMORY and one.part for one in claims) and bool(claims)
    return "less memory" if of_memory else gain(finding.gain)


def sharing(report: Report, finding: Finding) -> str:
    """Which findings above it would save some of the same time; empty if none would."""
    ids = [one.id for one in report.findings]
    numbers = ", ".join(f"#{ids.index(other) + 1}" for other in finding.shares_time_with)
    return f"overlaps with {numbers}: the gains do not add up" if numbers else ""


def insides(place: Location) -> list[str]:
    """The functions of libraries and the modules behind a location, with their part of it."""
    return [
        str(one) if one.share >= _NEARLY_ALL else f"{one} ({units.share(one.share)} of it)"
        for one in place.inside
    ]


def only_ranks(finding: Finding) -> str:
    """Which ranks a finding holds for; empty for all of them."""
    if not finding.ranks:
        return ""
    listed = ", ".join(map(str, finding.ranks[:8])) + (", …" if len(finding.ranks) > 8 else "")
    return f"only rank {listed}" if len(finding.ranks) == 1 else f"only ranks {listed}"


def not_judged(report: Report) -> list[tuple[str, list[str]]]:
    """The rules that could not judge, by what to do about it: (how to record or why not, rules)."""
    found: dict[str, list[str]] = {}
    for one in report.not_run:
        found.setdefault(f"record with {one.record}" if one.record else one.reason, []).append(one.id)
    return list(found.items())


def phase_shares(overview: Overview) -> list[tuple[str, list[tuple[str, str]]]]:
    """Whose phases, and the share of each: what sets the pace comes first, then the other if it differs."""
    phases = overview.phases
    host = [(one.phase, units.share(one.share)) for one in phases if one.share]
    work = [(one.phase, units.share(one.device_share)) for one in phases if one.device_share]
    sides = [(of, shares) for of, shares in (("host", host), ("device", work)) if shares]
    if overview.pace_set_by == "device":
        sides.reverse()
    return sides if _differ(overview) else sides[:1]


def _differ(overview: Overview) -> bool:
    """Whether host and device spend their time on different phases."""
    return any(abs(one.share - (one.device_share or 0.0)) > 0.05 for one in overview.phases)
