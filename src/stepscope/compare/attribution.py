"""Divides the mean step of two sides alike, in whole nanoseconds that sum exactly at every level."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any, TypeVar

from stepscope.compare import StepPart
from stepscope.compare.matching import KernelCost, Match, matched
from stepscope.records import dataclass
from stepscope.tables import Table

__all__ = ["ELSEWHERE", "OUTSIDE", "PARTS", "Spent", "by_op", "by_part", "by_phase", "rounded"]

Key = TypeVar("Key")

PARTS = (
    "kernels",
    "copies",
    "fills",
    "collectives",
    "data",
    "syncs",
    "host",
    "launches",
    "device",
    "unknown",
    "operators",
    "calls",
    "other",
)
"""The parts of a step as `step_costs` names them, in the order in which they are shown."""
_PHASES = ("dataloader", "forward", "backward", "recomputation", "optimizer", "other")
_LATE = ("data", "syncs", "host")
_EXPOSED = ("copies", "fills", "collectives")
OUTSIDE = "outside operators"
ELSEWHERE = "the host, not told by operator"
_NO_CALL = "after no blocking call"


@dataclass(frozen=True, slots=True)
class Spent:
    """What one run knows of where its steps went: tables, and how many steps they sum up."""

    steps: int
    costs: Table[Any]
    phases: Table[Any]
    starving_ops: Table[Any]


Runs = Sequence[Spent]
Costs = dict[str, dict[str, list[KernelCost]]]
"""By part and kind, what is in it."""
Ends = tuple[int, int]
"""A time before and after."""


def rounded(values: Mapping[Key, Fraction], whole: int) -> dict[Key, int]:
    """Whole numbers next to the values that sum to the whole: the largest remainders are rounded up."""
    found = {key: value.numerator // value.denominator for key, value in values.items()}
    missing = whole - sum(found.values())
    by_rest = sorted(values, key=lambda key: found[key] - values[key])
    for key in by_rest[:missing]:
        found[key] += 1
    return found


def by_part(before: Runs, after: Runs, steps_ns: Ends) -> tuple[StepPart, ...]:
    """By what ran and what was waited for; inside, by family or reason; inside, by kernel or call."""
    sides = [_costs(runs) for runs in (before, after)]
    ends = [
        rounded({part: _sum(kinds.values()) for part, kinds in side.items()}, whole)
        for side, whole in zip(sides, steps_ns, strict=True)
    ]
    return tuple(
        StepPart(part, *whole, parts=_kinds(part, sides[0].get(part, {}), sides[1].get(part, {}), whole))
        for part in PARTS
        if part in sides[0] or part in sides[1]
        for whole in [(ends[0].get(part, 0), ends[1].get(part, 0))]
    )


def _sum(kinds: Iterable[list[KernelCost]]) -> Fraction:
    return sum((one.time_ns for kernels in kinds for one in kernels), Fraction())


def _kinds(
    part: str, before: dict[str, list[KernelCost]], after: dict[str, list[KernelCost]], whole: Ends
) -> tuple[StepPart, ...]:
    if (before.keys() | after.keys()) <= {part}:
        return ()
    ends = [
        rounded({kind: _sum([kernels]) for kind, kernels in side.items()}, end)
        for side, end in zip((before, after), whole, strict=True)
    ]
    found = []
    for kind in before.keys() | after.keys():
        inside = (ends[0].get(kind, 0), ends[1].get(kind, 0))
        matches = matched(before.get(kind, ()), after.get(kind, ()))
        named = any(one.name != _NO_CALL for match in matches for one in (*match.before, *match.after))
        found.append(
            StepPart(
                kind, *inside, parts=_matches(matches, inside, exposed=part in _EXPOSED) if named else ()
            )
        )
    return tuple(sorted(found, key=_order))


def _order(part: StepPart) -> tuple[int, int, str]:
    return -abs(part.change_ns), -part.before_ns, part.name


def _matches(matches: Sequence[Match], whole: Ends, *, exposed: bool) -> tuple[StepPart, ...]:
    ends = [
        rounded({place: _sum([list(side)]) for place, side in enumerate(sides)}, end)
        for sides, end in zip(
            ([match.before for match in matches], [match.after for match in matches]), whole, strict=True
        )
    ]
    parts = [
        _kernel(match, (ends[0][place], ends[1][place]), exposed=exposed)
        for place, match in enumerate(matches)
    ]
    return tuple(sorted(parts, key=_order))


def _kernel(match: Match, ends: Ends, *, exposed: bool) -> StepPart:
    calls = [sum((one.calls for one in side), Fraction()) for side in (match.before, match.after)]
    longest = (match.before or match.after)[0]
    often = None
    if all(calls) and not exposed:
        # Half of the change belongs to each order of the two: first more often, or first slower.
        means = [Fraction(end) / n for end, n in zip(ends, calls, strict=True)]
        often = round((calls[1] - calls[0]) * sum(means, Fraction()) / 2)
    names = tuple(tuple(one.name for one in side) for side in (match.before, match.after))
    return StepPart(
        name=longest.name,
        before_ns=ends[0],
        after_ns=ends[1],
        state=match.state,
        calls=(float(calls[0]), float(calls[1])),
        more_often_ns=often,
        names=((), ()) if match.state in ("both", "new", "gone") else (names[0], names[1]),
        op=longest.op,
        exposed=exposed,
    )


def _costs(runs: Runs) -> Costs:
    """What the mean step of a side is made of; each run counts alike."""
    times: dict[tuple[str, str, str], Fraction] = defaultdict(Fraction)
    calls: dict[tuple[str, str, str], Fraction] = defaultdict(Fraction)
    ops: dict[tuple[str, str, str], dict[str | None, int]] = defaultdict(lambda: defaultdict(int))
    for run in runs:
        for row in run.costs:
            key = (row.part, row.kind, row.name or _NO_CALL)
            times[key] += Fraction(row.cost_ns, run.steps * len(runs))
            calls[key] += Fraction(row.calls, run.steps * len(runs))
            ops[key][row.op] += row.cost_ns
    found: Costs = defaultdict(lambda: defaultdict(list))
    for key, time in times.items():
        part, kind, name = key
        op = max(ops[key], key=lambda one: (ops[key][one], one or ""))
        found[part][kind].append(KernelCost(name, op, time, calls[key]))
    return found


def by_phase(before: Runs, after: Runs, steps_ns: Ends) -> tuple[StepPart, ...]:
    """By phase of training on the host, pauses between its calls included."""

    def told(run: Spent) -> Iterable[tuple[str, int]]:
        return ((row.phase, row.stretch_ns) for row in run.phases)

    parts = {part.name: part for part in _flat([_mean(runs, told) for runs in (before, after)], steps_ns)}
    return tuple(parts[phase] for phase in _PHASES if phase in parts and any(_ends(parts[phase])))


def _ends(part: StepPart) -> Ends:
    return part.before_ns, part.after_ns


def by_op(before: Runs, after: Runs, steps_ns: Ends) -> tuple[StepPart, ...]:
    """By operator: the device work that it launches, and the time for which the device waits for it."""
    parts = _flat([_mean(runs, _of_ops) for runs in (before, after)], steps_ns)
    return tuple(sorted((part for part in parts if any(_ends(part))), key=_order))


def _of_ops(run: Spent) -> Iterable[tuple[str, int]]:
    late = 0
    for row in run.costs:
        if row.op is not None:
            yield row.op, row.cost_ns
        elif row.device is not None and (row.part in _LATE or row.kind == "host communication"):
            late += row.cost_ns
        elif row.device is not None and row.part in ("kernels", *_EXPOSED):
            yield OUTSIDE, row.cost_ns
        else:
            yield row.part, row.cost_ns
    if late:
        for op in run.starving_ops:
            late -= op.starved_ns
            yield op.name or OUTSIDE, op.starved_ns
        yield ELSEWHERE, late


def _mean(runs: Runs, told: Callable[[Spent], Iterable[tuple[str, int]]]) -> dict[str, Fraction]:
    found: dict[str, Fraction] = defaultdict(Fraction)
    for run in runs:
        for name, time in told(run):
            found[name] += Fraction(time, run.steps * len(runs))
    return found


def _flat(sides: Sequence[Mapping[str, Fraction]], steps_ns: Ends) -> list[StepPart]:
    ends = [rounded(side, whole) for side, whole in zip(sides, steps_ns, strict=True)]
    names = dict.fromkeys((*ends[0], *ends[1]))
    return [
        StepPart(
            name,
            ends[0].get(name, 0),
            ends[1].get(name, 0),
            "both" if name in ends[0] and name in ends[1] else "gone" if name in ends[0] else "new",
        )
        for name in names
    ]
