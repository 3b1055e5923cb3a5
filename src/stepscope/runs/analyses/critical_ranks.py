"""The critical path across ranks: whose own time, and which transfers, set the length of each step."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

from stepscope.records import dataclass
from stepscope.runs.aligned import aligned, on_one_clock, reference_time
from stepscope.runs.analyses import run_analysis
from stepscope.runs.analyses.rank_steps import rank_steps
from stepscope.runs.analyses.run_steps import run_steps
from stepscope.runs.many import ManyRanks
from stepscope.store.arrow_sql import ask
from stepscope.tables import Table

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["CriticalRank", "critical_ranks"]

_RIGHT_BEHIND_NS = 20_000
"""A call that begins so soon after the one before it on its stream had been waiting for that."""
_MOST_HOPS = 100_000


@dataclass(frozen=True, slots=True)
class CriticalRank:
    """A stretch of the path through a step of the run; all of a step are as long as the step."""

    step: Annotated[int | None, "Step of the run; NULL for several."]
    rank: Annotated[int, "The rank that the path is on."]
    host: Annotated[str | None, "Its machine; NULL if not recorded."]
    kind: Annotated[
        str,
        "own: time of the rank itself. transfer: a collective after its last arrival. start: the rank began "
        "its step later than the first one did.",
    ]
    number: Annotated[int | None, "The collective that a transfer belongs to; NULL if unmatched, or several."]
    start_ns: Annotated[int | None, "When it began, on the reference clock; NULL for several."]
    dur_ns: Annotated[int, "How long it is; by rank: in all steps together."]
    share: Annotated[float, "Part of the step; by rank: of all steps."]


@run_analysis
def critical_ranks(
    run: ManyRanks,
    *,
    by: Annotated[Literal["step", "rank"], "Every stretch of every step, or sums by rank."] = "step",
) -> Table[CriticalRank]:
    """Follows each step of the run back from its end: what has to get shorter for the step to get shorter.

    From the rank that ended last it goes back through own time to a collective that the rank waited for,
    through its transfer, and on to the rank that came last to it.
    """
    steps = list(run_steps(run))
    walk = _Walk(run)
    rows = [row for step in steps for row in walk.through(step)]
    whole = sum(row.dur_ns for row in rows)
    if by == "rank":
        sums: dict[tuple[int, str], int] = {}
        for row in rows:
            sums[row.rank, row.kind] = sums.get((row.rank, row.kind), 0) + row.dur_ns
        rows = [
            CriticalRank(None, rank, run.host_of(rank) or None, kind, None, None, ns, ns / whole)
            for (rank, kind), ns in sorted(sums.items(), key=lambda one: (-one[1], one[0]))
            if ns
        ]
    notes = list(aligned(run).notes)
    if not rows:
        notes.append("No step of the run is known, so there is no path through it.")
    return Table.of(CriticalRank, rows, notes)


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Exposed communication of a rank, or a call of it, on the reference clock."""

    start_ns: int
    end_ns: int
    number: int | None
    stream: str = ""


class _Walk:
    """Walks back through the steps of a run; ranks are looked up as the path comes to them."""

    def __init__(self, run: ManyRanks) -> None:
        found = aligned(run)
        clocks = on_one_clock(run)
        self._run = run
        self._exposed = _ByRank(ask(_EXPOSED, parts=run.stacked("exposed"), calls=found.calls, clocks=clocks))
        self._calls = _ByRank(ask(_CALLS, calls=found.calls, told=run.stacked("calls")))
        met = found.collectives.select(["number", "last_rank", "last_arrival_ns"]).to_pydict()
        self._met = {
            number: (rank, at)
            for number, rank, at in zip(met["number"], met["last_rank"], met["last_arrival_ns"], strict=True)
        }
        began = rank_steps(run).arrow.select(["rank", "step", "start_ns"]).to_pydict()
        self._began = dict(
            zip(zip(began["rank"], began["step"], strict=True), began["start_ns"], strict=True)
        )

    def through(self, step: Any) -> list[CriticalRank]:
        """The path through a step, from its start."""
        whole = max(1, step.step_ns)
        rows = [
            CriticalRank(
                step.step, rank, self._run.host_of(rank) or None, kind, number, start, end - start,
                (end - start) / whole,
            )
            for rank, kind, number, start, end in self._back(step)
            if end > start
        ]  # fmt: skip
        return rows[::-1]

    def _back(self, step: Any) -> Iterator[tuple[int, str, int | None, int, int]]:
        """Stretches from the end of the step: rank, kind, collective, start, end."""
        rank, at = step.last_rank, step.end_ns
        for _ in range(_MOST_HOPS):
            begun = max(step.start_ns, self._began.get((rank, step.step), step.start_ns))
            part = self._exposed.last_before(rank, at)
            if part is None or part.end_ns <= begun or at <= begun:
                yield rank, "own", None, min(begun, at), at
                yield rank, "start", None, step.start_ns, min(begun, at)
                return
            yield rank, "own", None, part.end_ns, at
            before, number = at, part.number
            rank, at = yield from self._through_transfers(step, rank, part)
            if at >= before and number is not None:  # clocks that are off must not send us round in circles
                at = part.start_ns

    def _through_transfers(
        self, step: Any, rank: int, part: _Stretch
    ) -> Generator[tuple[int, str, int | None, int, int], None, tuple[int, int]]:
        """From the end of an exposed part to the arrival that its collective waited for."""
        number, end = part.number, part.end_ns
        while number is not None and number in self._met:
            last, arrived = self._met[number]
            arrived = max(step.start_ns, min(arrived, end))
            yield last, "transfer", number, arrived, end
            queued = self._calls.last_before(last, arrived, self._calls.stream_of(last, number))
            if (
                queued is None
                or queued.number == number
                or queued.end_ns < arrived - _RIGHT_BEHIND_NS
                or queued.end_ns <= step.start_ns
            ):
                return last, arrived
            yield last, "own", None, queued.end_ns, arrived
            number, end = queued.number, queued.end_ns
            rank, part = last, queued
        yield rank, "transfer", None, max(step.start_ns, part.start_ns), end
        return rank, max(step.start_ns, part.start_ns)


class _ByRank:
    """Rows of a table in the order of ranks and ends, those of a rank made when they are asked for."""

    def __init__(self, table: pa.Table) -> None:
        ranks = ask("SELECT rank, count(*) AS n FROM rows GROUP BY rank ORDER BY rank", rows=table)
        self._table = table
        self._places: dict[int, tuple[int, int]] = {}
        place = 0
        for rank, count in zip(ranks["rank"].to_pylist(), ranks["n"].to_pylist(), strict=True):
            self._places[rank] = (place, count)
            place += count
        self._known: dict[int, tuple[list[int], list[_Stretch]]] = {}

    def last_before(self, rank: int, at: int, stream: str = "") -> _Stretch | None:
        """The last that ended by then, on one stream or on any."""
        ends, rows = self._of(rank)
        for place in range(bisect_right(ends, at) - 1, -1, -1):
            if not stream or rows[place].stream == stream:
                return rows[place]
        return None

    def stream_of(self, rank: int, number: int) -> str:
        """The stream on which a rank took part in a collective."""
        return next((one.stream for one in self._of(rank)[1] if one.number == number), "")

    def _of(self, rank: int) -> tuple[list[int], list[_Stretch]]:
        if rank not in self._known:
            first, count = self._places.get(rank, (0, 0))
            told = self._table.slice(first, count).drop_columns(["rank"]).to_pylist()
            rows = [_Stretch(**one) for one in told]
            self._known[rank] = [one.end_ns for one in rows], rows
        return self._known[rank]


_EXPOSED = f"""
SELECT p.rank, {reference_time("p.start_ns")} AS start_ns,
       {reference_time("(p.start_ns + p.dur_ns)")} AS end_ns, c.number
FROM parts p JOIN clocks k USING (rank) LEFT JOIN calls c ON c.rank = p.rank AND c.call = p.call
ORDER BY p.rank, end_ns
"""
_CALLS = """
SELECT c.rank, c.arrival_ns AS start_ns, c.end_ns, c.number, t.stream
FROM calls c JOIN told t ON t.rank = c.rank AND t.call = c.call ORDER BY c.rank, c.end_ns
"""
