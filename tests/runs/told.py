"""What a rank of a drawn run would have recorded, by its own clock."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from stepscope.runs.summary import (
    CAUSES,
    SUMMARY_TABLES,
    CollectiveCall,
    ExposedPart,
    Piece,
    RankFacts,
    RankSummary,
    SummaryStep,
    WorkShape,
)
from stepscope.tables import Table

if TYPE_CHECKING:
    from tests.runs.drawn import Plan, PlayedRank, Truth

__all__ = ["Told"]


class Told:
    """What a rank would have recorded, by its own clock."""

    def __init__(self, plan: Plan, truth: Truth, one: PlayedRank) -> None:
        self.plan, self.truth, self.one = plan, truth, one
        first = plan.begins.get(one.rank, 0)
        last = plan.ends.get(one.rank, plan.steps)
        less = first if plan.renumbered else 0
        self.steps = {step - less: ends for step, ends in one.steps.items() if first <= step < last}
        begun = min((start for start, _ in self.steps.values()), default=0)
        done = max((end for _, end in self.steps.values()), default=0)
        kept = [pair for pair in one.talks if begun <= pair[0].arrivals[one.rank] < done]
        self.talks = sorted(kept, key=lambda pair: pair[0].arrivals[one.rank])
        self.line = [part for part in one.line if begun <= part[0] < done]

    def summary(self) -> RankSummary:
        """All of it."""
        rank, plan = self.one.rank, self.plan
        exposed, pieces = self._exposed_and_pieces()
        facts = RankFacts(
            rank,
            rank_source="metadata",
            world_size=plan.ranks,
            host=f"node{plan.host(rank)}" if plan.named_hosts else "",
            device=plan.device,
            vendor="nvidia",
            torch="2.11.0",
            source=f"rank{rank}.pt.trace.json",
            work_steps=len(self.steps),
        )
        rows: dict[str, list[Any]] = {
            "steps": [SummaryStep(step, *map(self._clock, ends)) for step, ends in self.steps.items()],
            "calls": self._calls(exposed),
            "exposed": exposed,
            "pieces": pieces,
            "work": self._work(),
        }
        return RankSummary(facts, {name: Table.of(SUMMARY_TABLES[name], of) for name, of in rows.items()})

    def _clock(self, true_ns: int) -> int:
        return self.truth.local(self.one.rank, true_ns)

    def _step_at(self, true_ns: int) -> int | None:
        starts = [start for start, _ in self.steps.values()]
        place = bisect_right(starts, true_ns) - 1
        step, (_, end) = list(self.steps.items())[place]
        return step if place >= 0 and true_ns < end else None

    def _calls(self, exposed: list[ExposedPart]) -> list[CollectiveCall]:
        rank = self.one.rank
        alone: dict[int, int] = defaultdict(int)
        for part in exposed:
            alone[part.call] += part.dur_ns
        rows = []
        for number, (meeting, talk) in enumerate(self.talks):
            start = self._clock(meeting.arrivals[rank])
            named, numbered = self.plan.named, self.plan.sequence and talk.kind != "send-receive"
            width = 2
            given = sum(talk.in_splits) * width if talk.in_splits else talk.bytes
            got = sum(talk.out_splits) * width if talk.out_splits else talk.bytes
            size = len(talk.group.ranks)
            given = talk.bytes // size if talk.kind == "all-gather" else given
            got = talk.bytes // size if talk.kind == "reduce-scatter" else got
            rows.append(
                CollectiveCall(
                    call=number,
                    step=self._step_at(meeting.arrivals[rank]),
                    kind=talk.kind,
                    backend="device",
                    group=talk.group.name if named else None,
                    group_ranks=",".join(map(str, talk.group.ranks)) if named else None,
                    group_size=size if named else None,
                    sequence=meeting.sequence if numbered else None,
                    dtype="bf16",
                    bytes=max(given, got),
                    in_bytes=given,
                    out_bytes=got,
                    in_splits=",".join(map(str, talk.in_splits)) or None,
                    out_splits=",".join(map(str, talk.out_splits)) or None,
                    source=talk.source,
                    target=talk.target,
                    stream=f"0/{talk.stream}",
                    asked_ns=self._clock(meeting.asked[rank]),
                    start_ns=start,
                    dur_ns=self._clock(meeting.ends[rank]) - start,
                    exposed_ns=alone[number],
                )
            )
        return rows

    def _exposed_and_pieces(self) -> tuple[list[ExposedPart], list[Piece]]:
        """Steps cut where calls begin and end, and where work does; alike neighbours are put together."""
        rank = self.one.rank
        spans = [(of.arrivals[rank], of.ends[rank], number) for number, (of, _) in enumerate(self.talks)]
        arrivals = {start for start, _, _ in spans}
        cuts = sorted({moment for start, end, _ in spans for moment in (start, end)})
        exposed: list[list[int]] = []
        running: list[tuple[int, int]] = []
        begun = 0
        pieces: list[tuple[list[int], dict[str, int], list[int]]] = []
        for start, end, cause, work in self.line:
            inner = cuts[bisect_right(cuts, start) : bisect_left(cuts, end)]
            for since, until in zip([start, *inner], [*inner, end], strict=True):
                step = self._step_at(since)
                while begun < len(spans) and spans[begun][0] <= since:
                    running.append((spans[begun][1], spans[begun][2]))
                    begun += 1
                running = [one for one in running if one[0] > since]
                if running and cause not in ("compute", "copies"):
                    call = max(running)[1]
                    if (
                        exposed
                        and exposed[-1][1] == call
                        and exposed[-1][3] == since
                        and exposed[-1][0] == step
                    ):
                        exposed[-1][3] = until
                    else:
                        exposed.append([step or 0, call, since, until])
                    continue
                old = pieces[-1] if pieces else None
                if old is None or old[0][2] != since or old[0][0] != step or since in arrivals:
                    old = ([step or 0, since, until], dict.fromkeys(CAUSES, 0), [0])
                    pieces.append(old)
                old[0][2] = until
                old[1][cause] += self._clock(until) - self._clock(since)
                old[2][0] += since == start and cause == "compute" and work is not None
        told = [ExposedPart(part[0], part[1], *self._span(part[2], part[3])) for part in exposed]
        own = [
            Piece(step, *self._span(start, end), *(causes[name] for name in CAUSES), kernels[0])  # type: ignore[call-arg]
            for (step, start, end), causes, kernels in pieces
        ]
        return told, own

    def _span(self, start: int, end: int) -> tuple[int, int]:
        return self._clock(start), self._clock(end) - self._clock(start)

    def _work(self) -> list[WorkShape]:
        sums: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
        for start, end, cause, work in self.line:
            if work and cause == "compute":
                entry = sums[work.name, work.shape]
                entry[0] += 1
                entry[1] += self._clock(end) - self._clock(start)
        return [WorkShape(*key, *entry) for key, entry in sums.items()]
