"""Which calls into the device's runtime and driver were made, and how long the host spent in them."""

from __future__ import annotations

from typing import Annotated

from stepscope.analyses import analysis
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["RuntimeCall", "runtime_calls"]


@dataclass(frozen=True, slots=True)
class RuntimeCall:
    """All calls of one function of the runtime or driver."""

    name: Annotated[str | None, "Name of the function."]
    calls: Annotated[int, "How often it was called."]
    total_ns: Annotated[int, "Summed duration; a call inside another counts in both."]


@analysis(reads={"launches": ("name", "dur_ns")})
def runtime_calls(trace: Trace) -> Table[RuntimeCall]:
    """Sums up calls into the device's runtime and driver by name."""
    found = trace.query(
        RuntimeCall,
        """
        SELECT name, count(*) AS calls, coalesce(sum(dur_ns), 0)::BIGINT AS total_ns
        FROM launches GROUP BY name ORDER BY total_ns DESC, name
        """,
    )
    nothing = ["No calls into a device's runtime: record with ProfilerActivity.CUDA among the activities."]
    return found if len(found) else Table(RuntimeCall, found.arrow, nothing)
