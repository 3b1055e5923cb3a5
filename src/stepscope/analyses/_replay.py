"""Steps played again: how long host work, kernels and copies take is given, when they start is not.

A replay goes over the graph of `_dependencies`. A thread is a row of pieces of its own time, between its
calls into the runtime and the instants at which threads hand over work. Its own time is given; its waiting
is not:

- a call that waited returns when the work is done and it has done what it did after that; a call that found
  the work done would wait for it, if it came later,
- a thread that paused while another one worked for it goes on when that one is done,
- work begins when the work before it on its stream, the work of other streams that it waits for, and its
  launch let it: for the one of the three that let it begin with the delay that was recorded, for the others
  with the delay that is usual in this trace.

Of a delay that is longer than usual, with nothing in the trace to explain it, `UNEXPLAINED_NS` are kept. So
an unchanged replay is a test of the graph: where it is not as long as the step was, something is missing.
Work whose launch is not in the trace keeps its distance to the work before it. A thread that neither leads
nor is given work begins when it began.

Recording slows the host (`_recording`): a replay can be spared the moment that each event cost where it was
recorded, as far as the host did anything there. That is the step without the profiler; changes are judged by
what they leave of it.

Of a long trace some steps are played: from the second one on, as many as have no more than `MOST_WORK` pieces
of device work or launches, after one step that only leads in.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import TYPE_CHECKING, Any

from stepscope import _native
from stepscope.analyses._dependencies import ALL, DEPENDENCY_READS, dependencies, roles
from stepscope.analyses._path import THREAD_WAIT_NS, leading_thread
from stepscope.analyses._recording import COST_KINDS, COSTS_NS, RECORDING_READS, moment_of
from stepscope.schema import DATALOADER_RANGE
from stepscope.store.columns import arrays, view
from stepscope.store.trace import Reads, Trace

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "ANY_OPERATOR",
    "NOTHING_TO_PLAY",
    "REPLAY_READS",
    "UNCHANGED",
    "Change",
    "Player",
    "Replayed",
    "is_cold",
    "player_of",
]

UNEXPLAINED_NS = 20_000
MOST_WORK = 20_000
LEAST_STEPS = 2
WHOLE = 1_000_000
"""Durations change by parts of a million, so that all times stay whole."""

REPLAY_READS: Reads = {
    **{
        table: tuple(dict.fromkeys((*DEPENDENCY_READS.get(table, ()), *RECORDING_READS.get(table, ()))))
        for table in (*DEPENDENCY_READS, *RECORDING_READS)
    },
    "steps": ("step", "source", "start_ns", "end_ns", "host_start_ns", "host_end_ns", "thread"),
}


@dataclass(frozen=True, slots=True)
class Change:
    """What is different in a replay."""

    no_sync: tuple[str, ...] = ()
    """Patterns of calls, and of operators: these calls, and those of these operators, return without waiting
    for the device. What is called outside of all operators is in one without a name."""
    graph: bool = False
    """What the host does in a step costs nothing after its first launch, but for waiting and loading."""
    no_loader: bool = False
    """The dataloader is waited for no more."""
    overlap_copies: bool = False
    """Copies to the device run beside the work of their stream, and nothing waits for them."""
    kernels: tuple[tuple[str, float], ...] = ()
    """Patterns of names of device work, and how much of its duration it takes; the last that fits counts."""
    ranges: tuple[tuple[str, float], ...] = ()
    """The same for operators, runtime calls and ranges of the host, with all that is in them; the innermost
    counts."""
    host_times: float = 1.0
    """How much of its duration host work takes."""
    spared: float = 0.0
    """How much of what recording an event costs a host of speed 1 is spared: 0 is as recorded."""


UNCHANGED = Change()
ANY_OPERATOR = ("*", "")


@dataclass(frozen=True, slots=True)
class Replayed:
    """Lengths of the steps in their order."""

    dur_ns: list[int]
    explained_ns: list[int]
    """The same without the delays that nothing explains."""

    def unexplained_ns(self, place: int) -> int:
        """How much of a step is such delays."""
        return self.dur_ns[place] - self.explained_ns[place]


_STEPS = """
    SELECT step, thread, host_start_ns, host_end_ns, start_ns, end_ns FROM steps WHERE end_ns > start_ns
    ORDER BY start_ns, end_ns, host_start_ns
"""
_AMOUNT = """
    SELECT greatest((SELECT count(*) FROM device_work),
                    (SELECT count(*) FROM launches WHERE work_events > 0)) AS n
"""
_INSIDE = "start_ns >= $since AND start_ns < $until"
_SPARED = f"""
    SELECT thread, start_ns, sum(cost)::BIGINT AS cost FROM ({
    " UNION ALL ".join(
        f"SELECT thread, start_ns, (events * {COSTS_NS[kind]})::BIGINT AS cost FROM ({sql}) WHERE {_INSIDE}"
        for kind, sql in COST_KINDS.items()
    )
}) WHERE thread IS NOT NULL GROUP BY thread, start_ns ORDER BY thread, start_ns
"""
_SCALED_WORK = f"SELECT event, $part::BIGINT AS part FROM device_work WHERE name GLOB $pattern AND {_INSIDE}"
_COPIES = f"""
    SELECT event FROM device_work
    WHERE kind = 'memcpy' AND regexp_matches(name, '(?i)HtoD|HostToDevice') AND {_INSIDE}
"""
_WAITING = f"""
    SELECT l.event FROM (SELECT event, op, name FROM launches WHERE {_INSIDE}) l
    LEFT JOIN (SELECT event, name FROM ops WHERE {_INSIDE}) o ON o.event = l.op
    WHERE coalesce(o.name, '') GLOB $pattern OR l.name GLOB $pattern
"""
_LOADING = f"""
    SELECT thread, start_ns, dur_ns, $part::BIGINT AS part FROM (
        SELECT thread, start_ns, dur_ns, name FROM annotations
        UNION ALL SELECT thread, start_ns, dur_ns, name FROM ops)
    WHERE {_INSIDE} AND dur_ns > 0 AND regexp_matches(name, '{DATALOADER_RANGE}')
"""
_SCALED_RANGES = f"""
    SELECT thread, start_ns, dur_ns, $part::BIGINT AS part FROM (
        SELECT thread, start_ns, dur_ns, name FROM annotations WHERE category = 'user_annotation'
        UNION ALL SELECT thread, start_ns, dur_ns, name FROM ops
        UNION ALL SELECT thread, start_ns, dur_ns, name FROM launches)
    WHERE {_INSIDE} AND dur_ns > 0 AND name GLOB $pattern
"""
# From the end of the first launch of a step to its end, on every thread that drives it.
_GRAPHED = f"""
    WITH launching AS (SELECT thread, start_ns, start_ns + coalesce(dur_ns, 0) AS end_ns FROM launches
                       WHERE work_events > 0 AND {_INSIDE}),
    driving AS (SELECT thread FROM launching UNION SELECT thread FROM ops WHERE forward_thread > 0
                UNION SELECT thread FROM steps WHERE thread IS NOT NULL),
    marks AS (SELECT CASE WHEN thread IS NULL THEN start_ns ELSE host_start_ns END AS since,
                     CASE WHEN thread IS NULL THEN end_ns ELSE host_end_ns END AS until FROM steps),
    firsts AS (SELECT m.since, m.until, min(l.end_ns) AS launched FROM launching l ASOF JOIN marks m
               ON l.start_ns >= m.since WHERE l.start_ns < m.until GROUP BY ALL)
    SELECT d.thread, f.launched AS start_ns, f.until - f.launched AS dur_ns, 0::BIGINT AS part
    FROM firsts f CROSS JOIN driving d WHERE f.until > f.launched
"""


class Player:
    """Steps of a trace, ready to be played again under one change after the other."""

    def __init__(self, trace: Trace, *, whole: bool = False) -> None:
        steps = trace.arrow(_STEPS)
        some = steps.num_rows if whole else _how_many(trace, steps.num_rows)
        self._trace = trace
        self._led_in = int(some < steps.num_rows)
        self._played = steps.slice(0, self._led_in + some)
        self.steps = self._played.slice(self._led_in)
        """Those that are played."""
        window = ALL if whole or some == steps.num_rows else _window(self._played)
        self._within = {"since": window[0], "until": window[1]}
        threads = [thread for thread in steps["thread"].to_pylist() if thread is not None]
        self._lead = max(set(threads), key=threads.count) if threads else leading_thread(trace)
        self._roles = roles(trace)
        self._graph = dependencies(trace, window) if steps.num_rows else None
        self._costs: list[pa.RecordBatch] | None = None
        moment = moment_of(trace)
        self.spared = (moment.least, moment.most)
        """What a change spares a replay without the profiler: at the least and at the most."""

    @property
    def recorded_ns(self) -> list[int]:
        """How long each of the steps was."""
        return [step["end_ns"] - step["start_ns"] for step in self.steps.to_pylist()]

    @property
    def steady(self) -> list[int]:
        """The places of steps that speak for the others: without a first one that was the longest of all."""
        lengths = self.recorded_ns
        return list(range(len(lengths)))[is_cold(lengths) :]

    def mean_of(self, lengths_ns: list[int]) -> int:
        """The mean of the steady steps."""
        return round(mean(lengths_ns[place] for place in self.steady))

    def mean_ns(self, change: Change) -> int:
        """How long a steady step takes under a change, on average."""
        return self.mean_of(self.play(change).dur_ns)

    def play(self, change: Change) -> Replayed:
        """How long each of the steps takes under a change."""
        if self._graph is None:
            return Replayed([], [])
        host = round(change.host_times * WHOLE)
        replay = _native.Replay(self._graph, self._roles, self._lead, UNEXPLAINED_NS, THREAD_WAIT_NS, host)
        replay.add_steps(*(view(column.combine_chunks()) for column in self._played.columns[1:]))
        self._alter(replay, change)
        replay.build()
        return Replayed(self._lengths(replay, kept=True), self._lengths(replay, kept=False))

    def _alter(self, replay: _native.Replay, change: Change) -> None:
        """Tells a replay what is different."""
        if change.graph:
            self._tell(replay.scale_host, _GRAPHED)
        if change.graph or change.no_loader:
            self._tell(replay.scale_host, _LOADING, part=0 if change.no_loader else WHOLE)
        for pattern, times in change.kernels:
            self._tell(replay.scale_works, _SCALED_WORK, pattern=pattern, part=round(times * WHOLE))
        for pattern, times in change.ranges:
            self._tell(replay.scale_host, _SCALED_RANGES, pattern=pattern, part=round(times * WHOLE))
        if change.overlap_copies:
            self._tell(replay.run_beside, _COPIES)
        for pattern in change.no_sync:
            self._tell(replay.let_return, _WAITING, pattern=pattern)
        if change.spared:
            for batch in self._recorded():
                thread, time, cost = map(view, batch.columns)
                replay.spare(thread, time, cost, round(change.spared * WHOLE))

    def _recorded(self) -> list[pa.RecordBatch]:
        """What recording cost a host of speed 1, and where."""
        if self._costs is None:
            self._costs = list(self._rows(_SPARED))
        return self._costs

    def _tell(self, told: Any, sql: str, **params: Any) -> None:
        for batch in self._rows(sql, **params):
            told(*map(view, batch.columns))

    def _rows(self, sql: str, **params: Any) -> Iterator[pa.RecordBatch]:
        return self._trace.batches(sql, **params, **self._within)

    def _lengths(self, replay: _native.Replay, *, kept: bool) -> list[int]:
        import pyarrow.compute as pc

        start, end = arrays(replay.play(kept))
        lengths: list[int] = pc.subtract(end, start).to_pylist()
        return lengths[self._led_in :]


def is_cold(lengths_ns: Sequence[float]) -> bool:
    """Whether the first of some steps is the longest: the device had nothing to do yet, and code was cold."""
    return len(lengths_ns) > LEAST_STEPS and lengths_ns[0] >= max(lengths_ns[1:])


NOTHING_TO_PLAY = "The profile has no step with a length that could be played again."


def player_of(trace: Trace) -> Player:
    """The player of a trace, which plays some of its steps if it is a long one."""
    return trace.once("player", lambda: Player(trace))  # type: ignore[no-any-return]


def _how_many(trace: Trace, steps: int) -> int:
    """How many steps are played."""
    amount = trace.arrow(_AMOUNT)["n"][0].as_py()
    if amount <= MOST_WORK:
        return steps
    return min(steps, max(LEAST_STEPS, int(steps * MOST_WORK / amount)))


def _window(steps: pa.Table) -> tuple[int, int]:
    """From the beginning of the first step, on the host or the device, to the end of the last."""
    import pyarrow.compute as pc

    starts = [pc.min(steps[name]).as_py() for name in ("host_start_ns", "start_ns")]
    ends = [pc.max(steps[name]).as_py() for name in ("host_end_ns", "end_ns")]
    return min(one for one in starts if one is not None), max(one for one in ends if one is not None)
