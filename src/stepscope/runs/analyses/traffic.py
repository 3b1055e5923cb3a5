"""What ranks send to one another."""

from __future__ import annotations

from typing import Annotated

from stepscope.records import dataclass
from stepscope.runs._exchanges import exchanges
from stepscope.runs.analyses import run_analysis
from stepscope.runs.many import ManyRanks
from stepscope.tables import Table

__all__ = ["Traffic", "traffic"]


@dataclass(frozen=True, slots=True)
class Traffic:
    """What one rank sends to another in a group, in all recorded steps."""

    group: Annotated[str, "Process group, or its ranks if it has no name."]
    kind: Annotated[str, "all-to-all or send-receive."]
    from_rank: Annotated[int, "Who sends; in an all-to-all also what a rank keeps."]
    to_rank: Annotated[int, "Who receives."]
    bytes: Annotated[int | None, "How much; NULL if not recorded."]
    calls: Annotated[int, "In how many calls."]


@run_analysis
def traffic(run: ManyRanks) -> Table[Traffic]:
    """Gives the matrix of what ranks send to one another: all-to-alls, and sends with receives.

    Parts of an all-to-all are even unless the profile records them. What a missing rank sends is known from
    those that receive it.
    """
    rows, notes = exchanges(run)
    if not rows.num_rows:
        notes.append("No all-to-all, send or receive began inside the steps.")
    return Table(Traffic, rows.select(["group", "kind", "from_rank", "to_rank", "bytes", "calls"]), notes)
