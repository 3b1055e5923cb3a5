"""What kinds of events a profile holds."""

from __future__ import annotations

from typing import Annotated

from stepscope.analyses import analysis
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["Category", "categories"]


@dataclass(frozen=True, slots=True)
class Category:
    """One category and phase, as written."""

    category: Annotated[str | None, "Category as the profile writes it; NULL where events have none."]
    phase: Annotated[str | None, "Phase: X complete, i instant, M metadata, s and f ends of arrows."]
    events: Annotated[int, "How many events; every event read is in exactly one row."]
    total_ns: Annotated[int | None, "Summed duration; NULL for phases without one."]


@analysis(reads={"skeletons": ("category", "phase", "events", "total_ns")})
def categories(trace: Trace) -> Table[Category]:
    """Counts events and their time by category, exactly as the profile writes them."""
    found = trace.query(
        Category,
        """
        SELECT category, phase, sum(events)::BIGINT AS events,
               CASE WHEN phase = 'X' THEN sum(total_ns)::BIGINT END AS total_ns
        FROM skeletons GROUP BY category, phase
        ORDER BY total_ns DESC NULLS LAST, events DESC, category, phase
        """,
    )
    return found if len(found) else Table(Category, found.arrow, ["The profile holds no events."])
