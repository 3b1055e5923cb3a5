"""Which kernels ran, and how long."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from stepscope.analyses import analysis
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["Kernel", "kernels"]


@dataclass(frozen=True, slots=True)
class Kernel:
    """All runs of the kernels of one name."""

    name: Annotated[str | None, "Name of the kernel."]
    calls: Annotated[int, "How often it ran."]
    total_ns: Annotated[int, "Summed duration over all devices and streams."]
    mean_ns: Annotated[float, "Mean duration."]
    min_ns: Annotated[int, "Shortest duration."]
    max_ns: Annotated[int, "Longest duration."]
    share: Annotated[float | None, "Part of the summed time of all kernels."]


@analysis(reads={"kernels": ("name", "dur_ns")})
def kernels(trace: Trace) -> Table[Kernel]:
    """Sums up kernels by name: calls, time, and share of all kernel time."""
    return trace.query(
        Kernel,
        """
        WITH timed AS (SELECT name, coalesce(dur_ns, 0) AS dur_ns FROM kernels),
             named AS (
                 SELECT name, count(*) AS calls, sum(dur_ns)::BIGINT AS total_ns,
                        min(dur_ns) AS min_ns, max(dur_ns) AS max_ns
                 FROM timed GROUP BY name)
        SELECT name, calls, total_ns, total_ns / calls AS mean_ns, min_ns, max_ns,
               total_ns / nullif(sum(total_ns) OVER (), 0)::DOUBLE AS share
        FROM named ORDER BY total_ns DESC, name
        """,
    )
