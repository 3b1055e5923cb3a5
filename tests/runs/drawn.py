"""Runs of many ranks drawn with known truth: a small model of ranks that work, arrive, wait, transfer, go on.

A *program* (`programs.py` has some) is a function of rank and step that gives the operations of that step, in
order: `Work` that the rank does itself, `Talk` that it asks for, and `Join`, at which it waits for one of
these. Ranks go on until they wait. A call begins when it was asked for and the one before it on its stream is
over; it ends so long after its last member began as the transfer takes. So all waits follow from what ranks
do, and from nothing else.

`draw(plan)` gives the run as its summaries tell it, by clocks that are off, and the truth: what happened when
by the one true clock.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from tests.runs.told import Told

from stepscope.runs.many import ManyRanks

__all__ = [
    "BASE_NS",
    "Drawn",
    "Fault",
    "Group",
    "Join",
    "Meeting",
    "Op",
    "Plan",
    "PlayedRank",
    "Program",
    "Talk",
    "Truth",
    "Work",
    "draw",
]

BASE_NS = 1_790_000_000_000_000_000
"""When every run begins, by the true clock."""
TOGETHER = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "barrier")
"""Kinds whose members all leave when the last of them came and the transfer is done."""


@dataclass(frozen=True, slots=True)
class Group:
    """A process group."""

    name: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Work:
    """Own time of a rank: a kernel, or what the device is idle for."""

    dur_ns: int
    cause: str = "compute"
    name: str = "gemm"
    shape: str = "[64,1,1] [256,1,1]"


@dataclass(frozen=True, slots=True)
class Talk:
    """A collective, send or receive that the rank asks for; it waits at once unless `wait` is off."""

    kind: str
    group: Group
    bytes: int
    stream: str = "7"
    wait: bool = True
    tag: str = ""
    """What a `Join` names."""
    source: int | None = None
    target: int | None = None
    in_splits: tuple[int, ...] = ()
    out_splits: tuple[int, ...] = ()
    transfer_ns: int | None = None
    """How long the transfer takes; None for 20 µs and 100 GB/s."""


@dataclass(frozen=True, slots=True)
class Join:
    """The rank waits for a call that it asked for before."""

    tag: str


Op = Work | Talk | Join
Program = Callable[[int, int], Sequence[Op]]


@dataclass(frozen=True, slots=True)
class Fault:
    """What makes one rank late, in some or all steps."""

    rank: int
    cause: str
    """As in `stragglers`: input, more work, slower device, host, memory, collector, compiling."""
    ns: int
    """By how much its own time of a step grows."""
    steps: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Plan:
    """What to draw."""

    program: Program
    ranks: int = 4
    steps: int = 5
    faults: tuple[Fault, ...] = ()
    hosts: int = 1
    """Ranks are on them in equal parts, one after the other."""
    offsets_ns: tuple[int, ...] = ()
    """Of each host: true time = local time + offset + drift."""
    drifts_ppm: tuple[float, ...] = ()
    named_hosts: bool = True
    jitter_ns: int = 0
    """How far the ends of one collective lie apart, at most."""
    noise: float = 0.0
    """By how much the length of work varies, as a part of it."""
    missing: tuple[int, ...] = ()
    sequence: bool = True
    named: bool = True
    """Whether calls say their group: name, ranks and size."""
    begins: dict[int, int] = field(default_factory=dict)
    """The first step that a rank recorded, if not the first of all."""
    ends: dict[int, int] = field(default_factory=dict)
    """The step after the last that a rank recorded."""
    renumbered: bool = False
    """Whether each rank counts its steps from 0, as profiles do that name no steps."""
    device: str = "NVIDIA H100 80GB HBM3"
    seed: int = 0

    def host(self, rank: int) -> int:
        """The number of a rank's host."""
        return rank * self.hosts // self.ranks


@dataclass
class Meeting:
    """A collective as it was, by the true clock."""

    kind: str
    group: Group
    sequence: int
    members: tuple[int, ...]
    bytes: int
    step: int
    asked: dict[int, int] = field(default_factory=dict)
    arrivals: dict[int, int] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)

    @property
    def last_rank(self) -> int:
        """Who came last; of several the lowest."""
        return min(self.arrivals, key=lambda rank: (-self.arrivals[rank], rank))

    @property
    def last_ns(self) -> int:
        """When it came."""
        return max(self.arrivals.values())


@dataclass(frozen=True)
class Truth:
    """What happened, by the true clock."""

    meetings: list[Meeting]
    steps: dict[tuple[int, int], tuple[int, int]]
    """Start and end by rank and step."""
    offsets_ns: dict[int, int]
    drifts_ppm: dict[int, float]
    calls: dict[tuple[int, int], Meeting]
    """What each call of a rank belongs to, by rank and call."""

    def local(self, rank: int, true_ns: int) -> int:
        """What the clock of a rank shows at that time."""
        since = true_ns - BASE_NS - self.offsets_ns[rank]
        return BASE_NS + round(since / (1 + self.drifts_ppm[rank] * 1e-6))


@dataclass(frozen=True)
class Drawn:
    """A run as its summaries tell it, and what it was."""

    run: ManyRanks
    truth: Truth


@dataclass
class PlayedRank:
    """A rank while it is played."""

    rank: int
    ops: Iterator[tuple[int, Op]]
    now: int = BASE_NS
    step: int = -1
    waiting: Meeting | None = None
    queues: dict[str, list[Meeting]] = field(default_factory=lambda: defaultdict(list))
    ended: dict[str, int] = field(default_factory=dict)
    tags: dict[str, Meeting] = field(default_factory=dict)
    counts: dict[object, int] = field(default_factory=lambda: defaultdict(int))
    talks: list[tuple[Meeting, Talk]] = field(default_factory=list)
    line: list[tuple[int, int, str, Work | None]] = field(default_factory=list)
    """Start, end, cause (or `wait`) and work, without gaps."""
    steps: dict[int, tuple[int, int]] = field(default_factory=dict)


def draw(plan: Plan) -> Drawn:
    """Plays the ranks of a plan together, and tells what each of them would have recorded."""
    dice = random.Random(plan.seed)
    ranks = [PlayedRank(rank, iter(_ops(plan, rank, dice))) for rank in range(plan.ranks)]
    meetings = _Play(plan, ranks, dice).played()
    offsets = {rank: _of(plan.offsets_ns, plan.host(rank)) for rank in range(plan.ranks)}
    drifts = {rank: float(_of(plan.drifts_ppm, plan.host(rank))) for rank in range(plan.ranks)}
    steps = {(one.rank, step): ends for one in ranks for step, ends in one.steps.items()}
    truth = Truth(meetings, steps, {k: int(v) for k, v in offsets.items()}, drifts, {})
    told = []
    for one in ranks:
        if one.rank not in plan.missing:
            rank = Told(plan, truth, one)
            told.append(rank.summary())
            truth.calls.update({(one.rank, call): of for call, (of, _) in enumerate(rank.talks)})
    return Drawn(ManyRanks("drawn", told, world_size=plan.ranks), truth)


def _of(values: Sequence[float], place: int) -> float:
    return values[place] if place < len(values) else 0


def _ops(plan: Plan, rank: int, dice: random.Random) -> list[tuple[int, Op]]:
    """All operations of a rank, each with its step: the program's, and what its faults add."""
    listed: list[tuple[int, Op]] = []
    for step in range(plan.steps):
        ops = list(plan.program(rank, step))
        for fault in plan.faults:
            if fault.rank == rank and (fault.steps is None or step in fault.steps):
                ops = _faulty(ops, fault)
        listed += [(step, _noisy(op, plan.noise, dice)) for op in ops]
    return listed


def _noisy(op: Op, noise: float, dice: random.Random) -> Op:
    if not noise or not isinstance(op, Work):
        return op
    return replace(op, dur_ns=round(op.dur_ns * (1 + noise * dice.uniform(-1, 1))))


def _faulty(ops: list[Op], fault: Fault) -> list[Op]:
    if fault.cause == "more work":
        return [Work(fault.ns, name="extra", shape="[1,1,1] [32,1,1]"), *ops]
    if fault.cause != "slower device":
        return [Work(fault.ns, fault.cause), *ops]
    own = sum(op.dur_ns for op in ops if isinstance(op, Work) and op.cause == "compute")
    factor = 1 + fault.ns / own
    return [
        replace(op, dur_ns=round(op.dur_ns * factor))
        if isinstance(op, Work) and op.cause == "compute"
        else op
        for op in ops
    ]


class _Play:
    """All ranks, each of which goes on until it waits for others."""

    def __init__(self, plan: Plan, ranks: list[PlayedRank], dice: random.Random) -> None:
        self.plan, self.ranks, self.dice = plan, ranks, dice
        self.open: dict[object, Meeting] = {}
        self.meetings: list[Meeting] = []
        self.transfers: dict[int, int] = {}

    def played(self) -> list[Meeting]:
        """The collectives, in the order in which they were first asked for."""
        todo = list(self.ranks)
        while todo:
            going = todo.pop()
            for rank in self._advance(going):
                if self.ranks[rank] not in todo:
                    todo.append(self.ranks[rank])
        stuck = [one.rank for one in self.ranks if one.waiting or next(one.ops, None)]
        if stuck:
            raise ValueError(f"the ranks {stuck} wait for what never comes")
        return self.meetings

    def _advance(self, one: PlayedRank) -> set[int]:
        """Plays a rank until it waits; gives the ranks that may go on now."""
        freed: set[int] = set()
        while True:
            if one.waiting:
                if one.rank not in one.waiting.ends:
                    return freed
                end = max(one.now, one.waiting.ends[one.rank])
                if end > one.now:
                    one.line.append((one.now, end, "wait", None))
                one.now, one.waiting = end, None
                one.steps[one.step] = (one.steps[one.step][0], one.now)
            step, op = next(one.ops, (None, None))
            if op is None or step is None:
                return freed
            if step != one.step:
                one.step = step
                one.steps[step] = (one.now, one.now)
            if isinstance(op, Work):
                if op.dur_ns > 0:
                    one.line.append((one.now, one.now + op.dur_ns, op.cause, op))
                    one.now += op.dur_ns
            elif isinstance(op, Talk):
                freed |= self._ask(one, op)
            else:
                one.waiting = one.tags[op.tag]
            one.steps[one.step] = (one.steps[one.step][0], one.now)

    def _ask(self, one: PlayedRank, talk: Talk) -> set[int]:
        if talk.kind == "send-receive":
            ends = (
                (one.rank, talk.target)
                if talk.target is not None and talk.target != one.rank
                else (talk.source, one.rank)
            )
            pair: object = ("pair", *ends)
            members = tuple(sorted(rank for rank in ends if rank is not None))
        else:
            pair, members = ("group", talk.group.name), talk.group.ranks
        number = one.counts[pair]
        one.counts[pair] += 1
        key = (pair, number)
        if key not in self.open:
            self.open[key] = Meeting(talk.kind, talk.group, number, members, talk.bytes, one.step)
            self.meetings.append(self.open[key])
        meeting = self.open[key]
        if meeting.kind != talk.kind:
            raise ValueError(f"rank {one.rank} asks for {talk.kind} where others do {meeting.kind}")
        took = talk.transfer_ns if talk.transfer_ns is not None else 20_000 + talk.bytes // 100
        self.transfers[id(meeting)] = max(took, self.transfers.get(id(meeting), 0))
        meeting.asked[one.rank] = one.now
        one.talks.append((meeting, talk))
        one.queues[talk.stream].append(meeting)
        if talk.tag:
            one.tags[talk.tag] = meeting
        if talk.wait:
            one.waiting = meeting
        return self._settle(one, talk.stream)

    def _settle(self, one: PlayedRank, stream: str) -> set[int]:
        """The first of a queue arrives; if it was the last to come, the call ends and others move up."""
        todo, freed = [(one, stream)], set()
        while todo:
            rank, name = todo.pop()
            queue = rank.queues[name]
            if not queue or rank.rank in queue[0].arrivals:
                continue
            meeting = queue[0]
            meeting.arrivals[rank.rank] = max(meeting.asked[rank.rank], rank.ended.get(name, 0))
            if len(meeting.arrivals) < len(meeting.members):
                continue
            self._end(meeting)
            for number in meeting.members:
                member = self.ranks[number]
                for other, waiting in member.queues.items():
                    if waiting and waiting[0] is meeting:
                        waiting.pop(0)
                        member.ended[other] = meeting.ends[number]
                        todo.append((member, other))
                        break
                freed.add(number)
        return freed

    def _end(self, meeting: Meeting) -> None:
        took = self.transfers[id(meeting)]
        root = meeting.members[0]
        for rank, arrival in meeting.arrivals.items():
            begun = meeting.last_ns
            if meeting.kind == "broadcast":
                begun = max(arrival, meeting.arrivals[root])
            elif meeting.kind == "reduce" and rank != root:
                begun = arrival
            meeting.ends[rank] = begun + took + self.dice.randint(0, self.plan.jitter_ns)
