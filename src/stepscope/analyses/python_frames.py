"""Which Python functions the time was spent in."""

from __future__ import annotations

from typing import Annotated

from stepscope.analyses import analysis
from stepscope.records import dataclass
from stepscope.store.trace import Trace
from stepscope.tables import Table

__all__ = ["PythonFrame", "python_frames"]


@dataclass(frozen=True, slots=True)
class PythonFrame:
    """All calls of one Python function or nn.Module."""

    name: Annotated[str | None, "The frame as the profiler names it; addresses of objects are left out."]
    calls: Annotated[int, "How often it was called."]
    total_ns: Annotated[int, "Time in it and in all it called; recursion counts once."]
    self_ns: Annotated[int, "Time in which it was the innermost call of its thread, operators included."]
    device_ns: Annotated[int, "Device work launched in it and in all it called; recursion counts once."]


_FRAMES = """
    SELECT name, sum(calls)::BIGINT AS calls,
           coalesce(sum(total_ns) FILTER (recursive = 0), 0)::BIGINT AS total_ns,
           sum(self_ns)::BIGINT AS self_ns,
           coalesce(sum(launched_ns) FILTER (recursive = 0), 0)::BIGINT AS device_ns
    FROM call_tree WHERE stored_in = 'python_frames' GROUP BY name ORDER BY self_ns DESC, name
"""


@analysis(
    reads={"call_tree": ("name", "stored_in", "recursive", "calls", "total_ns", "self_ns", "launched_ns")}
)
def python_frames(trace: Trace) -> Table[PythonFrame]:
    """Sums up Python functions by name: inclusive and own host time, and the device work they launched.

    The whole trace counts, not only its steps. `call_paths` has the same by path, for flame graphs.
    """
    if not trace.has("python_frames"):
        return Table.of(PythonFrame, [], ["No Python frames: record with with_stack=True."])
    return trace.query(PythonFrame, _FRAMES)
