"""Runs recorded steps again: how long host work, kernels and copies take is given, when they start is not.

A simulation runs over the graph of `dependencies`. A thread is a row of pieces of its own time, between its
calls into the runtime and the instants at which threads hand over work. Its own time is given; its waiting
is not:

- a call that waited returns when the work is done and it has done what it did after that; a call that found
  the work done would wait for it, if it came later,
- a thread that paused while another one worked for it goes on when that one is done,
- work begins when the work before it on its stream, the work of other streams that it waits for, and its
  launch let it: for the one of the three that let it begin with the delay that was recorded, for the others
  with the delay that is usual in this trace.

Of a delay that is longer than usual, with nothing in the trace to explain it, `UNEXPLAINED_NS` are kept. So
an unchanged simulation is a test of the graph: if it is not as long as the step was, something is missing.
Work whose launch is not in the trace keeps its distance to the work before it. A thread that neither leads
nor is given work begins when it began.

Recording slows the host (`recording_cost`): a simulation can leave out what each event cost where it was
recorded, as far as the host did anything there. That is the step without the profiler; changes are judged by
what they leave of it.

Of a long trace some steps are simulated: from the second one on, as many as have at most `MOST_WORK` pieces
of device work or launches, after one step that only leads in.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from functools import cached_property, partial
from itertools import groupby
from operator import itemgetter
from statistics import mean
from typing import TYPE_CHECKING, Any

from stepscope import _native
from stepscope.records import dataclass
from stepscope.schema import DATALOADER_RANGE, STANDS_STILL_NS
from stepscope.simulation.calibration import calibrated
from stepscope.simulation.changes import UNCHANGED, Change, WorkKind
from stepscope.simulation.critical_path import THREAD_WAIT_NS, leading_thread
from stepscope.simulation.dependencies import ALL, DEPENDENCY_READS, dependencies, roles
from stepscope.simulation.recording_cost import (
    COSTS_NS,
    RECORDING_READS,
    Moment,
    cost_kinds,
    moment_of,
)
from stepscope.store.columns import arrays, view
from stepscope.store.trace import Reads, Trace
from stepscope.threads import BackgroundWorker

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "NO_STEPS",
    "SIMULATION_READS",
    "SimulatedLengths",
    "Simulator",
    "is_cold",
    "recording_moment_of",
    "simulator_of",
]

UNEXPLAINED_NS = 20_000
MOST_WORK = 20_000
LEAST_STEPS = 2
MOST_ANSWERS = 100
"""So many are kept: in a window, every letter of a pattern that is typed asks for other rows."""
WHOLE = 1_000_000
"""Durations change by parts of a million, so that all times stay whole."""

SIMULATION_READS: Reads = {
    **{
        table: tuple(dict.fromkeys((*DEPENDENCY_READS.get(table, ()), *RECORDING_READS.get(table, ()))))
        for table in (*DEPENDENCY_READS, *RECORDING_READS)
    },
    "steps": ("step", "source", "start_ns", "end_ns", "host_start_ns", "host_end_ns", "thread"),
}


@dataclass(frozen=True, slots=True)
class SimulatedLengths:
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
# Sorted, for the costs of one instant are summed up before they are rounded; hardly any two events share one.
_SPARED = "SELECT thread, start_ns, cost FROM ({kinds}) WHERE thread IS NOT NULL ORDER BY thread, start_ns"
_SPARED_OF_KIND = (
    f"SELECT thread, start_ns, (events * {{cost}})::BIGINT AS cost FROM ({{sql}}) WHERE {_INSIDE}"
)
_LIKE = "(SELECT unnest($patterns::VARCHAR[]) AS pattern) p ON"
_SCALED_WORK = f"SELECT event FROM device_work SEMI JOIN {_LIKE} name GLOB pattern WHERE {_INSIDE}"
_TO_DEVICE = "kind = 'memcpy' AND regexp_matches(name, '(?i)HtoD|HostToDevice')"
_COPIES = f"SELECT event FROM device_work WHERE {_TO_DEVICE} AND {_INSIDE}"
_KINDS = f"""
    SELECT event, CASE WHEN communicates THEN '{WorkKind.COLLECTIVES}'
                       WHEN {_TO_DEVICE} THEN '{WorkKind.COPIES_TO_DEVICE}'
                       ELSE '{WorkKind.COMPUTE}' END AS of_kind
    FROM device_work WHERE {_INSIDE}
"""
_WAITING = f"""
    SELECT l.event FROM (SELECT event, op, name FROM launches WHERE {_INSIDE}) l
    LEFT JOIN (SELECT event, name FROM ops WHERE {_INSIDE}) o ON o.event = l.op
    SEMI JOIN {_LIKE} coalesce(o.name, '') GLOB pattern OR l.name GLOB pattern
"""
_LOADING = f"""
    SELECT thread, start_ns, dur_ns FROM (
        SELECT thread, start_ns, dur_ns, name FROM annotations
        UNION ALL SELECT thread, start_ns, dur_ns, name FROM ops)
    WHERE {_INSIDE} AND dur_ns > 0 AND regexp_matches(name, '{DATALOADER_RANGE}')
"""
_SCALED_RANGES = f"""
    SELECT thread, start_ns, dur_ns FROM (
        SELECT thread, start_ns, dur_ns, name FROM annotations WHERE category = 'user_annotation'
        UNION ALL SELECT thread, start_ns, dur_ns, name FROM ops
        UNION ALL SELECT thread, start_ns, dur_ns, name FROM launches)
    SEMI JOIN {_LIKE} name GLOB pattern WHERE {_INSIDE} AND dur_ns > 0
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
    SELECT d.thread, f.launched AS start_ns, f.until - f.launched AS dur_ns
    FROM firsts f CROSS JOIN driving d WHERE f.until > f.launched
"""


class Simulator:
    """Steps of a trace, ready to be simulated under one change after the other."""

    def __init__(self, trace: Trace, *, whole: bool = False) -> None:
        steps = trace.arrow(_STEPS)
        some = steps.num_rows if whole else _how_many(trace, steps.num_rows)
        self._trace = trace
        self._led_in = int(some < steps.num_rows)
        self._simulated = steps.slice(0, self._led_in + some)
        self.steps = self._simulated.slice(self._led_in)
        """Those that are simulated."""
        window = ALL if whole or some == steps.num_rows else _window(self._simulated)
        self._within = {"since": window[0], "until": window[1]}
        threads = [thread for thread in steps["thread"].to_pylist() if thread is not None]
        self._lead = max(set(threads), key=threads.count) if threads else leading_thread(trace)
        self._roles = roles(trace)
        self._graph = dependencies(trace, window) if steps.num_rows else None
        self._answers: dict[tuple[str, tuple[str, ...]], list[list[memoryview]]] = {}
        self._kinds: pa.Table | None = None
        self._costs: dict[int, _native.PointCosts] = {}
        self._known: dict[Change, SimulatedLengths] = {}
        self._lengths: dict[Change, list[int]] = {}
        self._moment: Moment | None = None

    @property
    def moment(self) -> Moment:
        """What recording an event costs, as far as the measured step tells, if there is one."""
        if self._moment is None:
            self._moment = self._calibrated(moment_of(self._trace))
        return self._moment

    @property
    def spared(self) -> tuple[float, float]:
        """`Change.spared` of a simulation without the profiler: at least and at most."""
        return self.moment.least, self.moment.most

    def _calibrated(self, estimated: Moment) -> Moment:
        measured = self._trace.measured
        if measured is None or not self.steady:
            return estimated
        recorded, plain = self.mean_of(self.recorded_ns), max(1, self.mean_ns(UNCHANGED))
        wanted = measured.low_ns / recorded, measured.high_ns / recorded
        error = abs(plain - recorded) / recorded
        return calibrated(
            estimated, lambda spared: self.mean_ns(Change(spared=spared)) / plain, wanted, error
        )

    @cached_property
    def recorded_ns(self) -> list[int]:
        """How long each of the steps was."""
        return [step["end_ns"] - step["start_ns"] for step in self.steps.to_pylist()]

    @cached_property
    def steady(self) -> list[int]:
        """The places of steps that speak for the others: without a first one that was the longest of all."""
        lengths = self.recorded_ns
        return list(range(len(lengths)))[is_cold(lengths) :]

    def mean_of(self, lengths_ns: list[int]) -> int:
        """The mean of the steady steps."""
        return round(mean(lengths_ns[place] for place in self.steady))

    def mean_ns(self, change: Change) -> int:
        """How long a steady step takes under a change, on average."""
        return self.mean_of(self.lengths_ns(change))

    def lengths_ns(self, change: Change) -> list[int]:
        """How long each of the steps takes under a change; several tables ask for the same ones."""
        self.simulate(change)
        return self._lengths[change]

    def simulate(self, *changes: Change) -> None:
        """Works out the lengths under some changes, at once where they are several."""
        new = [change for change in dict.fromkeys(changes) if change not in self._lengths]
        if self._graph is None:
            self._lengths.update((change, []) for change in new)
            return
        ready = [(change, self._simulation(self._graph, change)) for change in new]
        with ExitStack() as beside:
            for one in ready[1:]:
                beside.enter_context(BackgroundWorker()).run(partial(self._play, *one))
            for one in ready[:1]:
                self._play(*one)

    def run(self, change: Change) -> SimulatedLengths:
        """The same, and how much of it nothing explains: that takes a second run."""
        if change not in self._known:
            if self._graph is None:
                return SimulatedLengths([], [])
            simulation = self._simulation(self._graph, change)
            self._play(change, simulation)
            explained = self._played(simulation, kept=False)
            self._known[change] = SimulatedLengths(self._lengths[change], explained)
        return self._known[change]

    def _play(self, change: Change, simulation: _native.Simulation) -> None:
        simulation.build()
        self._lengths[change] = self._played(simulation, kept=True)

    def _simulation(self, graph: _native.Dependencies, change: Change) -> _native.Simulation:
        """One under a change, not built yet."""
        host = round(change.host_times * WHOLE)
        simulation = _native.Simulation(
            graph, self._roles, self._lead, UNEXPLAINED_NS, THREAD_WAIT_NS, STANDS_STILL_NS, host
        )
        simulation.add_steps(*(view(column.combine_chunks()) for column in self._simulated.columns[1:]))
        self._alter(simulation, graph, change)
        return simulation

    def _alter(self, simulation: _native.Simulation, graph: _native.Dependencies, change: Change) -> None:
        """Tells a simulation what is different."""
        if change.graph:
            self._scale(simulation.scale_host, 0.0, _GRAPHED)
        if change.graph or change.no_loader or not change.host_times:
            self._scale(simulation.scale_host, 0.0 if change.no_loader else 1.0, _LOADING)
        # Patterns next to one another that change as much are asked for together.
        for times, patterns in groupby(change.kernels, key=itemgetter(1)):
            self._scale(simulation.scale_works, times, _SCALED_WORK, *(pattern for pattern, _ in patterns))
        for kind in change.no_work:
            self._leave_out(simulation, kind)
        for times, patterns in groupby(change.ranges, key=itemgetter(1)):
            self._scale(simulation.scale_host, times, _SCALED_RANGES, *(pattern for pattern, _ in patterns))
        if change.overlap_copies:
            for columns in self._columns(_COPIES):
                simulation.run_beside(*columns)
        if change.no_sync:
            for columns in self._columns(_WAITING, *change.no_sync):
                simulation.let_return(*columns)
        if change.spared:
            simulation.spare(self._recording(graph, round(change.spared * WHOLE)))

    def _recording(self, graph: _native.Dependencies, part: int) -> _native.PointCosts:
        """So much of what recording cost each thread: summed once, for every change has the same points."""
        if part not in self._costs:
            plain = self._simulation(graph, UNCHANGED)
            plain.build()
            costs = _native.PointCosts(plain)
            kinds = cost_kinds(moment_of(self._trace)).items()
            parts = (_SPARED_OF_KIND.format(cost=COSTS_NS[kind], sql=sql) for kind, sql in kinds)
            for thread, time, cost in self._columns(_SPARED.format(kinds=" UNION ALL ".join(parts))):
                costs.add(thread, time, cost, part)
            self._costs[part] = costs
        return self._costs[part]

    def _leave_out(self, simulation: _native.Simulation, kind: WorkKind) -> None:
        """Tells that device work of a kind takes no time; all kinds are asked for once."""
        import pyarrow.compute as pc

        if self._kinds is None:
            self._kinds = self._trace.arrow(_KINDS, **self._within)
        events = self._kinds.filter(pc.equal(self._kinds["of_kind"], kind))["event"].combine_chunks()
        simulation.scale_works(view(events), view(pc.multiply(events, 0)))

    def _scale(self, told: Any, times: float, sql: str, *patterns: str) -> None:
        """Tells how much of its time something takes."""
        import pyarrow as pa

        for columns in self._columns(sql, *patterns):
            parts = pa.repeat(pa.scalar(round(times * WHOLE), pa.int64()), len(columns[0]))
            told(*columns, view(parts))

    def _columns(self, sql: str, *patterns: str) -> list[list[memoryview]]:
        """The columns of an answer, batch by batch, kept: one simulation after the other asks for them."""
        known = self._answers.get((sql, patterns))
        if known is not None:
            return known
        rows, left = self._known_of(sql, patterns)
        if left or not patterns:
            params: dict[str, Any] = {**self._within, **({"patterns": left} if patterns else {})}
            found = self._trace.batches(sql, **params)
            rows += [[view(column) for column in batch.columns] for batch in found]
        while len(self._answers) >= MOST_ANSWERS:
            self._answers.pop(next(iter(self._answers)), None)
        self._answers[sql, patterns] = rows
        return rows

    def _known_of(self, sql: str, patterns: tuple[str, ...]) -> tuple[list[list[memoryview]], list[str]]:
        """What was found for some of the patterns before, and the patterns that are left.

        Changes that are made together were mostly asked for alone. An event may be found twice.
        """
        rows: list[list[memoryview]] = []
        left = list(patterns)
        asked = {some: found for (of, some), found in self._answers.copy().items() if of == sql}
        for some in sorted(asked, key=len, reverse=True):
            if set(some) < set(patterns) and not set(some).isdisjoint(left):
                rows += asked[some]
                left = [one for one in left if one not in some]
        return rows, left

    def _played(self, simulation: _native.Simulation, *, kept: bool) -> list[int]:
        import pyarrow.compute as pc

        start, end = arrays(simulation.run(kept))
        lengths: list[int] = pc.subtract(end, start).to_pylist()
        return lengths[self._led_in :]


def is_cold(lengths_ns: Sequence[float]) -> bool:
    """Whether the first of some steps is the longest: the device had nothing to do yet, and code was cold."""
    return len(lengths_ns) > LEAST_STEPS and lengths_ns[0] >= max(lengths_ns[1:])


NO_STEPS = "The profile has no step with a length, so there is nothing to simulate."


def simulator_of(trace: Trace) -> Simulator:
    """The simulator of a trace; of a long trace it takes some steps."""
    # Whoever asks first may read less than a simulation does.
    made = partial(Simulator, trace.reading(SIMULATION_READS, ours=True))
    return trace.once("simulator", made)  # type: ignore[no-any-return]


def recording_moment_of(trace: Trace) -> Moment:
    """What recording an event costs the host of a trace: by the measured step if there is one."""
    return moment_of(trace) if trace.measured is None else simulator_of(trace).moment


def _how_many(trace: Trace, steps: int) -> int:
    """How many steps are simulated."""
    amount = trace.rows(_AMOUNT)[0]["n"]
    if amount <= MOST_WORK:
        return steps
    return min(steps, max(LEAST_STEPS, int(steps * MOST_WORK / amount)))


def _window(steps: pa.Table) -> tuple[int, int]:
    """From the beginning of the first step, on the host or the device, to the end of the last."""
    import pyarrow.compute as pc

    starts = [pc.min(steps[name]).as_py() for name in ("host_start_ns", "start_ns")]
    ends = [pc.max(steps[name]).as_py() for name in ("host_end_ns", "end_ns")]
    return min(one for one in starts if one is not None), max(one for one in ends if one is not None)
