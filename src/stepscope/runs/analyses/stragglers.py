"""Which ranks make the others wait, and why they are late."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from stepscope.records import dataclass
from stepscope.runs._lateness import Lateness, lateness
from stepscope.runs._work_split import WorkSplit, work_splits
from stepscope.runs.aligned import Aligned, aligned
from stepscope.runs.analyses import run_analysis
from stepscope.runs.analyses.collectives import skew_notes
from stepscope.runs.many import ManyRanks
from stepscope.store.arrow_sql import ask
from stepscope.tables import Table

__all__ = ["Straggler", "stragglers"]

_CAUSES = {
    "copies": "more work",
    "input": "input",
    "memory": "memory",
    "collector": "collector",
    "compiling": "compiling",
    "sync": "host",
    "host": "host",
    "other": "other",
}
"""What a difference in own time is called; computing is more work, or a slower device."""
_SENDER = "sender"
"""In place of a cause: the rank waited for this one's message, and why that came late is to be found out."""


@dataclass(frozen=True, slots=True)
class Straggler:
    """A rank that others wait for, and one of the causes of it."""

    rank: Annotated[int, "The rank that is late."]
    host: Annotated[str | None, "Its machine; NULL if not recorded."]
    cause: Annotated[
        str,
        "By what it differs from the median rank before it arrives: input, more work (more or other kernels, "
        "bytes), slower device (same kernels and shapes, longer), host, memory, collector, compiling, other.",
    ]
    cost_ns: Annotated[int, "Waiting of all others that it causes, per step; sums over causes."]
    exposed_cost_ns: Annotated[int, "The part of it in which they did nothing else, per step."]
    late_ns: Annotated[int, "How much later than the median rank it arrives, per step; sums over causes."]
    steps: Annotated[int, "Steps in which it made others wait."]
    last_share: Annotated[float, "How often it came last, of the collectives that it took part in."]
    place: Annotated[str | None, "The function where it happens, if known."]


@run_analysis
def stragglers(run: ManyRanks) -> Table[Straggler]:
    """Names the ranks that make others wait, why they are late, and what it costs; most expensive first.

    Lateness is traced to what the rank did differently from the median of the others since all of them left
    a collective together. Of a rank that waited for another one meanwhile, it is the other's.
    """
    found, late = aligned(run), lateness(run)
    steps = len(set(run.stacked("steps")["step"].to_pylist()))
    blame = _Blame(found, late, work_splits(run))
    rows = sorted(_rows(run, blame, late, max(1, steps)), key=lambda one: (-one.cost_ns, one.rank, one.cause))
    notes = [*found.notes, *skew_notes(found)]
    if not rows:
        notes.append("No rank came later than the others by more than the clocks may be wrong.")
    if run.missing:
        notes.append("A rank that is missing may be the late one.")
    return Table.of(Straggler, rows, notes)


def _rows(run: ManyRanks, blame: _Blame, late: Lateness, steps: int) -> Iterator[Straggler]:
    took_part = dict(
        zip(late.all_of["rank"].to_pylist(), late.all_of["collectives"].to_pylist(), strict=True)
    )
    for rank in sorted(blame.cost):
        causes = sorted(blame.cost[rank])
        costs = _apportioned([blame.cost[rank][cause] for cause in causes], steps)
        exposed = _apportioned([blame.exposed[rank][cause] for cause in causes], steps)
        lates = _apportioned([blame.late[rank][cause] for cause in causes], steps)
        for cause, cost_ns, exposed_ns, late_ns in zip(causes, costs, exposed, lates, strict=True):
            if cost_ns > 0:
                yield Straggler(
                    rank=rank,
                    host=run.host_of(rank) or None,
                    cause=cause,
                    cost_ns=cost_ns,
                    exposed_cost_ns=exposed_ns,
                    late_ns=late_ns,
                    steps=len(blame.steps[rank]),
                    last_share=blame.lasts[rank] / took_part[rank] if took_part.get(rank) else 0.0,
                    place=None,
                )


def _apportioned(parts: list[float], steps: int) -> list[int]:
    """The parts per step as whole numbers that sum to the rounded whole."""
    whole = round(sum(parts) / steps)
    rounded = [int(part / steps) for part in parts]
    left = sorted(range(len(parts)), key=lambda place: rounded[place] - parts[place] / steps)
    for place in left[: max(0, whole - sum(rounded))]:
        rounded[place] += 1
    return rounded


Parts = dict[tuple[int, str], float]
"""Shares of a lateness by rank and cause; together 1."""


class _Blame:
    """Whose lateness it is, for one late collective after the other."""

    def __init__(self, found: Aligned, late: Lateness, splits: Mapping[int, WorkSplit]) -> None:
        def by_cause() -> defaultdict[Any, defaultdict[str, float]]:
            return defaultdict(lambda: defaultdict(float))

        self.cost, self.exposed, self.late = by_cause(), by_cause(), by_cause()
        self.steps: defaultdict[int, set[int]] = defaultdict(set)
        self.lasts: defaultdict[int, int] = defaultdict(int)
        self._splits = splits
        self._shares: dict[int, Parts] = {}
        self._senders = _Senders(found)
        waits: defaultdict[int, dict[int, int]] = defaultdict(dict)
        for row in late.waits.to_pylist():
            waits[row["number"]][row["other"]] = row["wait_ns"]
        rows = late.late.to_pylist()
        for row in rows:
            self._shares[row["number"]] = self._parts(row, waits[row["number"]])
        self._own: defaultdict[tuple[int, int], defaultdict[str, float]] = by_cause()
        for row in rows:
            for (rank, cause), share in self._shares[row["number"]].items():
                if rank == row["last_rank"] and cause not in ("other", _SENDER):
                    self._own[row["step"], rank][cause] += share * row["late_ns"]
        self._sum_up(rows)

    def _sum_up(self, rows: list[dict[str, Any]]) -> None:
        by_last: defaultdict[int, list[dict[str, Any]]] = defaultdict(list)
        for row in rows:
            by_last[row["last_rank"]].append(row)
            self.lasts[row["last_rank"]] += 1
            for (rank, cause), share in self._resolved(row).items():
                self.cost[rank][cause] += share * row["cost_ns"]
                self.exposed[rank][cause] += share * row["exposed_cost_ns"]
                self.steps[rank].add(row["step"])
        for last, mine in by_last.items():
            for row in _apart(mine):
                for (rank, cause), share in self._resolved(row).items():
                    if rank == last:
                        self.late[rank][cause] += share * row["late_ns"]

    def _parts(self, row: dict[str, Any], waits: Mapping[int, int]) -> Parts:
        """What the last rank did more than others, and whom it waited for itself meanwhile."""
        last, lateness_ns = row["last_rank"], row["late_ns"]
        parts: defaultdict[tuple[int, str], float] = defaultdict(float)
        for cause, named in _CAUSES.items():
            parts[last, named] += max(0, row[f"{cause}_ns"])
        computing = self._computing(last, max(0, row["compute_ns"]))
        for named, part in computing.items():
            parts[last, named] += part
        away, waited = max(0, row["away_ns"]), sum(waits.values())
        for number, wait_ns in waits.items():
            for key, share in self._shares.get(number, self._senders.of(number, last)).items():
                parts[key] += share * away * wait_ns / waited
        if not waited:
            parts[last, "other"] += away
        return _whole(parts, lateness_ns, last, max(0, row["compute_ns"]) - sum(computing.values()))

    def _computing(self, rank: int, longer_ns: int) -> dict[str, float]:
        """How a rank's longer computing divides into more work and a slower device.

        If it computes no longer in the whole, it merely does now what others have done before.
        """
        split = self._splits.get(rank)
        if split is None:
            return {"other": float(longer_ns)}
        more, slower = max(0.0, split.more_ns), max(0.0, split.slower_ns)
        if more + slower <= 0:
            return {}
        real = min(longer_ns, (more + slower) * split.steps)
        return {"more work": real * more / (more + slower), "slower device": real * slower / (more + slower)}

    def _resolved(self, row: dict[str, Any]) -> Parts:
        """The shares of a collective; where a rank waited for a sender, those of whoever held that one up."""
        shares: defaultdict[tuple[int, str], float] = defaultdict(float)
        for (rank, cause), share in self._shares[row["number"]].items():
            if cause != _SENDER:
                shares[rank, cause] += share
                continue
            for key, part in self._held_up(rank, row["step"]).items():
                shares[key] += share * part
        return dict(shares)

    def _held_up(self, rank: int, step: int) -> Parts:
        """Of all that a sender waited for in its turn, those that were late for reasons of their own."""
        own = {
            (one, cause): part
            for one in self._senders.before(rank, step)
            for cause, part in self._own.get((step, one), {}).items()
        }
        whole = sum(own.values())
        return {key: part / whole for key, part in own.items()} if whole else {(rank, "other"): 1.0}


def _whole(parts: Parts, lateness_ns: int, last: int, elsewhere_ns: float) -> Parts:
    """The parts as shares of a lateness, of which nothing is lost.

    `elsewhere_ns` is computing that others do at another time: what made the rank late made that late, too.
    """
    known = sum(parts.values())
    if known > 0 and elsewhere_ns > 0:
        parts = {key: part * (known + elsewhere_ns) / known for key, part in parts.items()}
        known += elsewhere_ns
    if known < lateness_ns:
        parts = {**parts, (last, "other"): parts.get((last, "other"), 0.0) + lateness_ns - known}
    whole = max(known, lateness_ns)
    return {key: part / whole for key, part in parts.items() if part > 0}


def _apart(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of a rank's late arrivals those that together are latest, and of which none is part of another.

    A rank that is behind is so at each collective until all wait for each other, and in each of its groups:
    it is late once. What it did before two arrivals may count for one of them only.
    """
    rows = sorted(rows, key=lambda row: row["last_arrival_ns"])
    arrivals = [row["last_arrival_ns"] for row in rows]
    best: list[tuple[int, Any, Any]] = [(0, None, None)]
    for place, row in enumerate(rows):
        before = best[bisect_right(arrivals, row["since_ns"], 0, place)]
        with_it = before[0] + row["late_ns"]
        best.append((with_it, before, row) if with_it > best[-1][0] else best[-1])
    chosen, link = [], best[-1]
    while link[2] is not None:
        chosen.append(link[2])
        link = link[1]
    return chosen


class _Senders:
    """Who sent late what a rank waited for."""

    def __init__(self, found: Aligned) -> None:
        self._waited: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        self._before: dict[tuple[int, int], list[int]] = {}
        for row in ask(_SENDERS, collectives=found.collectives, exposed=found.exposed).to_pylist():
            self._waited[row["rank"], row["step"]].append(row["last_rank"])
        sends = ask("SELECT number, last_rank FROM c WHERE kind = 'send-receive'", c=found.collectives)
        self._last = dict(zip(sends["number"].to_pylist(), sends["last_rank"].to_pylist(), strict=True))

    def of(self, number: int, rank: int) -> Parts:
        """The sender of a message is to be asked why; of a collective that nobody was late for, nobody."""
        return {(self._last[number], _SENDER): 1.0} if number in self._last else {(rank, "other"): 1.0}

    def before(self, rank: int, step: int) -> list[int]:
        """A rank, those that it waited for in a step, those that these waited for, and so on."""
        if (rank, step) not in self._before:
            found = [rank]
            for one in found:  # grows meanwhile
                found += [other for other in self._waited.get((one, step), ()) if other not in found]
            self._before[rank, step] = found
        return self._before[rank, step]


_SENDERS = """
SELECT DISTINCT e.rank, e.step, c.last_rank FROM exposed e JOIN collectives c USING (number)
WHERE c.kind = 'send-receive' AND c.last_rank <> e.rank AND e.wait_ns > 0 AND e.step IS NOT NULL ORDER BY ALL
"""
