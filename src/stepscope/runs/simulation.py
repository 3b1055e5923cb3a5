"""The steps of all ranks played together, coupled at their collectives.

A rank goes through its own time. It arrives at a collective when its own progress comes to where it arrived,
and when the call before it on the same stream has ended. A collective ends a fixed time after its last rank
arrived: that is its transfer. A rank that had nothing else to do goes on when the call has ended. By the end
of a step, all calls have ended which ended in it. Unchanged, this gives back the recorded steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from enum import IntEnum
from typing import TYPE_CHECKING, Literal

from stepscope._native import CoupledPlay
from stepscope.errors import StepscopeError
from stepscope.findings._simulated import DOUBT
from stepscope.records import dataclass
from stepscope.runs._moves import Moves, moves_of, shift_table
from stepscope.runs.aligned import Aligned, aligned, reference_time
from stepscope.runs.many import ManyRanks
from stepscope.runs.summary import CAUSES
from stepscope.store.arrow_sql import ask
from stepscope.store.columns import arrays, view

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["MOST_ERROR", "Bound", "Pace", "PlayedRun", "RankChange", "RunSimulator", "simulator_of"]

MOST_ERROR = 0.03
"""A play that is further from the recorded steps is not used."""
LEAST_PACE = 0.01
"""A rank that makes the others wait for less than this part of a step does not set the pace."""


class Bound(IntEnum):
    """Which of two plays: one that counts only what every step shows, or one that counts all."""

    LOW = 0
    HIGH = 1


@dataclass(frozen=True, slots=True)
class RankChange:
    """What is different for some ranks."""

    ranks: tuple[int, ...] | None = None
    """None for all."""
    cause: str | None = None
    """One of the causes of own time; None for all of them; `transfer` for what collectives take after their
    last rank arrived; `wait` for the wait until then, of all ranks."""
    times: float = 0.0
    """How much of its time it takes."""
    like: Literal["median rank"] | None = None
    """Takes the place of `times`: what is more than the median rank spends on it goes."""


@dataclass(frozen=True, slots=True)
class Pace:
    """The rank that the others wait for most."""

    rank: int
    wait_ns: int
    """What all others together wait for it in a step."""
    last_share: float
    """How often it comes last, of the collectives for which somebody waits."""


@dataclass(frozen=True, slots=True)
class PlayedRun:
    """The run's steps as they were played."""

    steps_ns: tuple[int, ...]
    """From the earliest start of a step on any rank to its latest end, by step."""
    caused_ns: dict[int, int] = field(default_factory=dict)
    """What others waited for a rank in all steps, by rank."""
    last: dict[int, int] = field(default_factory=dict)
    """In how many collectives a rank came last and somebody waited, by rank."""

    @property
    def mean_ns(self) -> float:
        """The mean step of the run."""
        return sum(self.steps_ns) / len(self.steps_ns) if self.steps_ns else 0.0

    @property
    def pace(self) -> Pace | None:
        """Who sets the pace; None if nobody waits to speak of."""
        if not self.caused_ns or not self.steps_ns:
            return None
        rank = max(self.caused_ns, key=lambda one: (self.caused_ns[one], -one))
        waited = self.caused_ns[rank] // len(self.steps_ns)
        if waited < LEAST_PACE * self.mean_ns:
            return None
        return Pace(rank, waited, self.last.get(rank, 0) / max(1, sum(self.last.values())))


class RunSimulator:
    """Plays the steps of a run under changes."""

    def __init__(self, moves: Moves, recorded_ns: Sequence[int], reason: str = "") -> None:
        self.recorded_ns = tuple(recorded_ns)
        """The steps of the run as recorded, in order."""
        self._moves = moves
        self._kept: dict[object, PlayedRun | None] = {}
        self._play = _native_play(moves)
        self.unchanged = self._played((), Bound.LOW) or PlayedRun(())
        if not reason and not self.unchanged.steps_ns:
            reason = "collectives of the ranks do not come in one order, so that some would wait for ever"
        self.error = _error(self.unchanged.steps_ns, self.recorded_ns)
        """How far the play without a change is from the recorded steps, as a part of them."""
        if not reason and self.error > MOST_ERROR:
            reason = f"without a change it is {self.error:.0%} off the recorded steps"
        self.reason = reason
        """Why it is not to be used; empty if it is."""

    @property
    def is_usable(self) -> bool:
        """Whether it reproduces the run."""
        return not self.reason

    def played(self, changes: Sequence[RankChange], bound: Bound = Bound.LOW) -> PlayedRun:
        """The run under changes."""
        played = self._played(tuple(changes), bound)
        if played is None:
            raise StepscopeError(f"the run cannot be simulated: {self.reason or 'some ranks wait for ever'}")
        return played

    def steps(self, changes: Sequence[RankChange], bound: Bound = Bound.LOW) -> list[int]:
        """The lengths of the run's steps under changes, in ns."""
        return list(self.played(changes, bound).steps_ns)

    def saving_ns(self, changes: Sequence[RankChange]) -> tuple[float, float]:
        """What changes take off the run's mean step, at least and at most.

        At least: what is more than on the median rank over all steps, less the error of the play without a
        change. At most: what is more in each step, and the error. Both with the doubt that fits programs of
        one rank: what a fix gains differs from what a simulation says.
        """
        before = self.unchanged.mean_ns
        off = self.error * before
        low, high = sorted(before - self.played(changes, bound).mean_ns for bound in Bound)
        if high <= 0:
            return 0.0, 0.0
        return max(0.0, DOUBT[0] * low - off), min(before, DOUBT[1] * high + off)

    def _played(self, changes: tuple[RankChange, ...], bound: Bound) -> PlayedRun | None:
        key = (changes, bound)
        if key not in self._kept:
            self._kept[key] = self._play_once(changes, bound)
        return self._kept[key]

    def _play_once(self, changes: tuple[RankChange, ...], bound: Bound) -> PlayedRun | None:
        import pyarrow as pa

        moves = self._moves
        finished, marks, last, wait, _ = self._play.play(
            view(moves.ranks["start_ns"]),
            view(_times(moves, changes, bound)),
            view(_tails(moves, changes)),
            not any(one.cause == "wait" and not one.times for one in changes),
        )
        if not finished:
            return None
        marked = moves.moves.filter(_is_mark(moves.moves)).select(["place", "step"])
        steps = ask(
            "SELECT step, max(at_ns) - min(at_ns) AS dur_ns FROM marked GROUP BY step ORDER BY step",
            marked=marked.append_column("at_ns", arrays([marks])[0]),
        )
        met = pa.table({"target": arrays([(last, None)])[0], "wait_ns": arrays([(wait, None)])[0]})
        caused = ask(
            "SELECT c.rank, sum(wait_ns)::BIGINT AS wait_ns, count(*) AS calls FROM met "
            "JOIN (SELECT rank, row_number() OVER () - 1 AS target FROM calls) c USING (target) "
            "WHERE wait_ns > 0 GROUP BY c.rank",
            met=met,
            calls=moves.calls,
        )
        ranks = caused["rank"].to_pylist()
        return PlayedRun(
            tuple(steps["dur_ns"].to_pylist()),
            dict(zip(ranks, caused["wait_ns"].to_pylist(), strict=True)),
            dict(zip(ranks, caused["calls"].to_pylist(), strict=True)),
        )


def simulator_of(run: ManyRanks) -> RunSimulator:
    """The simulator of a run, made once."""
    made: RunSimulator = run.once("simulator", lambda: _make(run))
    return made


def _make(run: ManyRanks) -> RunSimulator:
    import pyarrow.compute as pc

    found = aligned(run)
    calls = found.calls.select(["rank", "call", "number", "arrival_ns", "end_ns"])
    calls = calls.filter(pc.is_valid(calls["number"]))
    moves = moves_of(run, calls, found.fit.table, found.shifts)
    reason = "" if calls.num_rows else "no two ranks have collectives in common"
    return RunSimulator(moves, _recorded(run, found), reason)


def _recorded(run: ManyRanks, found: Aligned) -> list[int]:
    """The run's steps on the reference clock."""
    lengths = ask(
        f"SELECT max({reference_time('s.end_ns')}) - min({reference_time('s.start_ns')}) AS dur_ns "
        "FROM steps s JOIN clocks k USING (rank) LEFT JOIN shifts USING (rank) "
        "GROUP BY s.step + coalesce(shift, 0) ORDER BY s.step + coalesce(shift, 0)",
        steps=run.stacked("steps"),
        clocks=found.fit.table,
        shifts=shift_table(found.shifts),
    )
    steps: list[int] = lengths["dur_ns"].to_pylist()
    return steps


def _native_play(moves: Moves) -> CoupledPlay:
    calls = [view(moves.calls[name]) for name in ("place", "collective", "previous", "gap", "tail", "dur")]
    place, move, target = (view(moves.moves[name]) for name in ("place", "move", "target"))
    return CoupledPlay(place, move, target, calls)


def _is_mark(moves: pa.Table) -> pa.ChunkedArray:
    import pyarrow.compute as pc

    return pc.equal(moves["move"], 4)


def _error(played: Sequence[int], recorded: Sequence[int]) -> float:
    """The mean distance of played from recorded steps, as a part of these."""
    if len(played) != len(recorded) or not sum(recorded):
        return 1.0
    return sum(abs(one - other) for one, other in zip(played, recorded, strict=True)) / sum(recorded)


def _times(moves: Moves, changes: Sequence[RankChange], bound: Bound) -> pa.ChunkedArray:
    """How long each move takes under changes."""
    import pyarrow.compute as pc

    times = moves.moves["time"]
    own = [one for one in changes if one.cause not in ("transfer", "wait")]
    if not own:
        return times
    left = _left(moves.pieces, own, bound)
    return pc.coalesce(left.take(moves.moves["piece"].combine_chunks()), times)


def _left(pieces: pa.Table, changes: Sequence[RankChange], bound: Bound) -> pa.Array:
    """How long each piece of own time is under changes."""
    import pyarrow as pa
    import pyarrow.compute as pc

    spent = {cause: pc.cast(pieces[f"{cause}_ns"], pa.float64()) for cause in CAUSES}
    for change in changes:
        asked = CAUSES if change.cause is None else (change.cause,)
        for cause in asked:
            if cause not in spent:
                raise StepscopeError(
                    f"no cause {cause!r}", hint=f"there are: {', '.join(CAUSES)}", exit_code=2
                )
            part = _part(pieces, cause, bound) if change.like else pa.scalar(change.times)
            scaled = pc.multiply(spent[cause], part)
            if change.ranks is not None:
                meant = pc.is_in(pieces["rank"], pa.array(change.ranks, pa.int64()))
                scaled = pc.if_else(meant, scaled, spent[cause])
            spent[cause] = scaled
    whole = spent[CAUSES[0]]
    for cause in CAUSES[1:]:
        whole = pc.add(whole, spent[cause])
    return pc.cast(pc.round(whole), pa.int64()).combine_chunks()


def _part(pieces: pa.Table, cause: str, bound: Bound) -> pa.ChunkedArray:
    """Which part of a cause's time is left where it comes down to the median rank's, for each piece.

    Over all steps, only what a rank spends more in every step counts; step by step, all of it.
    """
    by = "rank, step" if bound is Bound.HIGH else "rank"
    per = "step" if bound is Bound.HIGH else "1"
    return ask(
        f"WITH own AS (SELECT {by}, sum({cause}_ns)::DOUBLE AS spent FROM pieces GROUP BY {by}), "
        f"usual AS (SELECT *, quantile_disc(spent, 0.5) OVER (PARTITION BY {per}) AS median FROM own) "
        "SELECT CASE WHEN spent > median THEN median / spent ELSE 1.0 END AS part "
        f"FROM pieces JOIN usual USING ({by}) ORDER BY piece",
        pieces=pieces,
    )["part"]


def _tails(moves: Moves, changes: Sequence[RankChange]) -> pa.ChunkedArray:
    """How long each call takes after its last arrival."""
    import pyarrow as pa
    import pyarrow.compute as pc

    tails = moves.calls["tail"]
    for change in changes:
        if change.cause != "transfer":
            continue
        scaled = pc.cast(pc.round(pc.multiply(pc.cast(tails, pa.float64()), change.times)), pa.int64())
        if change.ranks is not None:
            meant = pc.is_in(moves.calls["rank"], pa.array(change.ranks, pa.int64()))
            scaled = pc.if_else(meant, scaled, tails)
        tails = scaled
    return tails
