"""What a server's time went to: prefill, decode, or both at once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Annotated

from stepscope.analyses import analysis
from stepscope.analyses.iterations import Iteration, iterations
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["IterationKind", "iteration_kinds"]


@dataclass(frozen=True, slots=True)
class IterationKind:
    """All iterations of a server that do the same: prefill, decode, both, or another thing."""

    rank: Annotated[int, "Rank that recorded the profile."]
    kind: Annotated[str | None, "prefill, decode, mixed, draft or idle, as in `iterations`; NULL if unknown."]
    iterations: Annotated[int, "How many."]
    share: Annotated[float, "Share of all iterations."]
    total_ns: Annotated[int, "Their time."]
    time_share: Annotated[float | None, "Share of the time of all iterations."]
    mean_ns: Annotated[float, "Mean time of one."]
    busy_share: Annotated[float | None, "Part of their time in which anything ran on a device."]
    requests: Annotated[float | None, "Requests in an iteration, on average; NULL if one does not say."]
    prefill_tokens_per_s: Annotated[
        float | None, "Tokens of prompts read in a second of this time; NULL if an iteration does not say."
    ]
    decode_tokens_per_s: Annotated[
        float | None, "Tokens decoded in a second of this time; NULL if an iteration does not say."
    ]


@analysis(reads={})
def iteration_kinds(trace: Trace) -> Table[IterationKind]:
    """Sums up a server's iterations by kind: prefill and decode, their time, tokens per second.

    Names of iterations or shapes of attention tell the kind, as in `iterations`. Times are those of the
    recording. Tokens that drafts of speculation propose count as decoded, whether accepted or not.
    """
    found = iterations(trace)
    groups: defaultdict[str | None, list[Iteration]] = defaultdict(list)
    for row in found:
        groups[row.kind].append(row)
    if not any(groups):
        return Table.of(IterationKind, [], ["No step is known to prefill or to decode.", *found.notes])
    whole = sum(row.dur_ns for row in found)
    rows = [_row(trace.rank, kind, of_kind, len(found), whole) for kind, of_kind in groups.items()]
    return Table.of(IterationKind, sorted(rows, key=lambda row: (-row.total_ns, str(row.kind))), found.notes)


def _row(rank: int, kind: str | None, rows: list[Iteration], steps: int, whole_ns: int) -> IterationKind:
    total = sum(row.dur_ns for row in rows)
    requests = _sum(row.requests for row in rows)
    tokens, prompts = (_sum(column) for column in _columns(rows))
    decoded = None if tokens is None or prompts is None else tokens - prompts
    return IterationKind(
        rank=rank,
        kind=kind,
        iterations=len(rows),
        share=len(rows) / steps,
        total_ns=total,
        time_share=total / whole_ns if whole_ns else None,
        mean_ns=total / len(rows),
        busy_share=sum(row.busy_ns for row in rows) / total if total else None,
        requests=None if requests is None else requests / len(rows),
        prefill_tokens_per_s=_rate(prompts, total),
        decode_tokens_per_s=_rate(decoded, total),
    )


def _columns(rows: list[Iteration]) -> tuple[Iterable[int | None], Iterable[int | None]]:
    return (row.tokens for row in rows), (row.prefill_tokens for row in rows)


def _sum(counts: Iterable[int | None]) -> int | None:
    """The sum, if all of them are known."""
    listed = list(counts)
    known = [count for count in listed if count is not None]
    return sum(known) if len(known) == len(listed) else None


def _rate(tokens: int | None, ns: int) -> float | None:
    return tokens * 1e9 / ns if tokens is not None and ns else None
