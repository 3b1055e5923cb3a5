"""Runs worked out forward, in plain Python: the simulator has to come to the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import pyarrow as pa

from stepscope.runs.many import ManyRanks
from stepscope.runs.summary import CAUSES, SUMMARY_TABLES, CollectiveCall, RankFacts, RankSummary
from stepscope.tables import Table

__all__ = ["Call", "Own", "PlayedForward", "Wait", "played_forward"]


@dataclass(frozen=True)
class Own:
    """Own time, by rank and step; one number for all."""

    cause: str
    ns: Mapping[tuple[int, int], int]
    usual_ns: int = 0

    def of(self, rank: int, step: int) -> int:
        return self.ns.get((rank, step), self.usual_ns)


@dataclass(frozen=True)
class Call:
    """A collective of all ranks begins, on a stream; the rank goes on."""

    name: str
    transfer_ns: int
    stream: str = "comm"


@dataclass(frozen=True)
class Wait:
    """The rank does nothing until it has ended."""

    name: str


@dataclass
class _Rank:
    now: int
    pieces: list[dict[str, Any]] = field(default_factory=list)
    exposed: list[dict[str, Any]] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    steps: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class PlayedForward:
    """A run and what is known of it."""

    run: ManyRanks
    matched: pa.Table
    offsets: pa.Table
    steps_ns: list[int]


def played_forward(
    program: Sequence[Own | Call | Wait], *, ranks: int, steps: int, offsets: Sequence[int] = ()
) -> PlayedForward:
    """Every rank does the program in each step; calls of a stream come in order."""
    every = [_Rank(0) for _ in range(ranks)]
    offsets = offsets or [0] * ranks
    stream_end: list[dict[str, int]] = [{} for _ in range(ranks)]
    number, matched = 0, []
    for step in range(steps):
        started: dict[str, tuple[int, list[int], int]] = {}
        for rank in every:
            rank.steps.append({"step": step, "start_ns": rank.now, "end_ns": rank.now})
        for part in program:
            if isinstance(part, Own):
                for place, rank in enumerate(every):
                    _own(rank, step, part.cause, part.of(place, step))
            elif isinstance(part, Call):
                arrivals = [
                    max(rank.now, stream_end[place].get(part.stream, 0)) for place, rank in enumerate(every)
                ]
                end = max(arrivals) + part.transfer_ns
                for place, rank in enumerate(every):
                    stream_end[place][part.stream] = end
                    matched.append((place, len(rank.calls), number, arrivals[place], end))
                    rank.calls.append(_call(len(rank.calls), step, part.stream, arrivals[place], end))
                started[part.name] = (end, [len(rank.calls) - 1 for rank in every], number)
                number += 1
            else:
                end, calls, _ = started[part.name]
                for place, rank in enumerate(every):
                    if end > rank.now:
                        waited = {"start_ns": rank.now, "dur_ns": end - rank.now}
                        rank.exposed.append({"step": step, "call": calls[place], **waited})
                        rank.now = end
        for rank in every:
            rank.steps[-1]["end_ns"] = rank.now
    lengths = [
        max(rank.steps[step]["end_ns"] for rank in every)
        - min(rank.steps[step]["start_ns"] for rank in every)
        for step in range(steps)
    ]
    summaries = [_summary(place, rank, -offsets[place]) for place, rank in enumerate(every)]
    names = ("rank", "call", "number", "arrival_ns", "end_ns")
    return PlayedForward(
        ManyRanks("drawn", summaries, ranks),
        pa.table({name: pa.array([row[i] for row in matched], pa.int64()) for i, name in enumerate(names)}),
        pa.table(
            {
                "rank": list(range(ranks)),
                "offset_ns": list(offsets),
                "since_ns": [0] * ranks,
                "drift": [0.0] * ranks,
            }
        ),
        lengths,
    )


def _own(rank: _Rank, step: int, cause: str, ns: int) -> None:
    told = {f"{one}_ns": 0 for one in CAUSES} | {f"{cause}_ns": ns}
    if ns:
        rank.pieces.append({"step": step, "start_ns": rank.now, "dur_ns": ns, **told, "kernels": 1})
    rank.now += ns


def _call(call: int, step: int, stream: str, arrival: int, end: int) -> dict[str, Any]:
    known: dict[str, Any] = dict.fromkeys(one.name for one in fields(CollectiveCall))
    return known | {
        "call": call,
        "step": step,
        "kind": "all-reduce",
        "backend": "device",
        "stream": stream,
        "start_ns": arrival,
        "dur_ns": end - arrival,
        "exposed_ns": 0,
    }


def _summary(number: int, rank: _Rank, shift: int) -> RankSummary:
    tables = {}
    for name, row in SUMMARY_TABLES.items():
        rows = [dict(one) for one in getattr(rank, name, [])]
        for one in rows:
            for key in ("start_ns", "end_ns"):
                if key in one:
                    one[key] += shift
        tables[name] = Table.of(row, [row(**one) for one in rows])
    return RankSummary(RankFacts(number, host="host"), tables)
