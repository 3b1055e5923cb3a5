"""Transfers that nothing runs beside, by kind and size: what is left of communication once nobody waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.records import dataclass
from stepscope.store.arrow_sql import ask
from stepscope.tables import Table

if TYPE_CHECKING:
    from stepscope.runs.analyses.collective_ranks import CollectiveRank
    from stepscope.runs.analyses.collectives import Collective
    from stepscope.runs.mean_step import RunMeanStep

__all__ = ["ExposedKind", "exposed_kinds"]

SMALL_BYTES = 1 << 20
"""Smaller messages are mostly latency."""


@dataclass(frozen=True, slots=True)
class ExposedKind:
    """Collectives of one kind and backend, in the mean step of the mean rank."""

    kind: str
    backend: str
    calls: float
    """Collectives a step that a rank takes part in."""
    small_calls: float
    """Those of less than 1 MiB."""
    bytes: float | None
    """Of one call on average; None if not known."""
    transfer_ns: float
    """From the last arrival to the end."""
    exposed_ns: float
    """The part of it in which the rank did nothing else."""
    small_exposed_ns: float
    in_a_row: float
    """Which part of them follows another one of the same rank while that was exposed: 0 to 1."""

    @property
    def exposed_share(self) -> float:
        """The exposed part of the transfers."""
        return self.exposed_ns / self.transfer_ns if self.transfer_ns else 0.0


_KINDS = """
WITH every AS (
    SELECT r.rank, r.kind, c.backend, c.bytes, r.transfer_ns, r.exposed_transfer_ns, r.exposed_ns,
           r.arrival_ns,
           lag(r.arrival_ns + r.wait_ns + r.transfer_ns) OVER by_rank AS before_end,
           lag(r.exposed_ns) OVER by_rank AS before_exposed
    FROM parts r JOIN met c USING (number) WHERE r.step IS NOT NULL AND r.transfer_ns IS NOT NULL
    WINDOW by_rank AS (PARTITION BY r.rank ORDER BY r.arrival_ns))
SELECT kind, backend, count(*) AS calls, (count(*) FILTER (bytes < $small)) AS small_calls,
       CASE WHEN count(bytes) = count(*) THEN avg(bytes) END AS bytes,
       sum(greatest(0, transfer_ns))::DOUBLE AS transfer_ns,
       sum(exposed_transfer_ns)::DOUBLE AS exposed_ns,
       coalesce(sum(exposed_transfer_ns) FILTER (bytes < $small), 0)::DOUBLE AS small_exposed_ns,
       avg(CASE WHEN before_exposed > 0 AND arrival_ns - before_end < 20000 THEN 1.0 ELSE 0.0 END) AS in_a_row
FROM every GROUP BY kind, backend ORDER BY exposed_ns DESC, kind, backend
"""


def exposed_kinds(
    run_step: RunMeanStep, collective_ranks: Table[CollectiveRank], collectives: Table[Collective]
) -> list[ExposedKind]:
    """Kinds of collectives by what their transfers cost a rank, most exposed first."""
    rows = ask(
        _KINDS,
        {"small": SMALL_BYTES},
        parts=collective_ranks.arrow,
        met=collectives.arrow.select(["number", "backend", "bytes"]),
    ).to_pylist()
    each = max(1, run_step.steps * run_step.ranks)

    def made(row: dict[str, Any]) -> ExposedKind:
        summed = ("calls", "small_calls", "transfer_ns", "exposed_ns", "small_exposed_ns")
        return ExposedKind(**{**row, **{name: (row[name] or 0) / each for name in summed}})

    return [made(row) for row in rows]
