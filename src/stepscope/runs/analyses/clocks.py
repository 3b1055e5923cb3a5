"""How the clocks of ranks differ."""

from __future__ import annotations

from typing import Annotated

from stepscope.records import dataclass
from stepscope.runs.analyses import run_analysis
from stepscope.runs.clock_fit import clock_fit
from stepscope.runs.many import ManyRanks
from stepscope.runs.matching import matched
from stepscope.tables import Table

__all__ = ["Clock", "clocks"]


@dataclass(frozen=True, slots=True)
class Clock:
    """The clock of a rank against that of the reference."""

    rank: Annotated[int, "The rank."]
    host: Annotated[str | None, "Its machine; NULL if not recorded."]
    offset_ns: Annotated[
        int | None,
        "Reference time = local time + offset + drift · (local time − since); NULL if not aligned.",
    ]
    drift_ppm: Annotated[
        float | None, "How much faster the reference runs, in millionths; NULL if too little to be seen."
    ]
    since_ns: Annotated[int | None, "Local time at which the offset holds, and from which the drift counts."]
    error_ns: Annotated[
        int | None, "95 % of its aligned ends are this near to the others'; nothing is said about less."
    ]
    collectives: Annotated[int, "Collectives that the fit is made of."]
    state: Annotated[
        str,
        "reference; fitted; shared (that of another rank on its host, which the fit confirms); unaligned.",
    ]


@run_analysis
def clocks(run: ManyRanks) -> Table[Clock]:
    """Fits the clocks of ranks to one another, from collectives that end together: offset, drift, error."""
    fit = clock_fit(run)
    rows = []
    for one in fit.clocks:
        known = one.state != "unaligned"
        rows.append(
            Clock(
                rank=one.rank,
                host=one.host or None,
                offset_ns=one.offset_ns if known else None,
                drift_ppm=one.drift * 1e6 if known and one.drift is not None else None,
                since_ns=one.since_ns if known and one.since_ns else None,
                error_ns=one.error_ns if known else None,
                collectives=one.collectives,
                state=one.state,
            )
        )
    return Table.of(Clock, rows, [*matched(run).notes, *fit.notes])
