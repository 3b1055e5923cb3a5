"""What is said of the window of an analysis."""

from __future__ import annotations

from stepscope.store.trace import Trace

__all__ = ["DRIVING", "PLACED", "how_steps_were_found"]

DRIVING = """
    SELECT thread FROM launches WHERE work_events > 0
    UNION SELECT thread FROM ops WHERE forward_thread > 0
    UNION SELECT thread FROM steps WHERE thread IS NOT NULL
"""
"""The threads that drive the work: those of the steps' marks, those that launch, and those that run backward.
Others wait or prepare data, and what they do is not what a step waits for."""

PLACED = "SELECT thread FROM call_tree WHERE parent IS NULL AND phase = 'backward'"
"""The threads all of whose calls are in `places` one by one: those that autograd hands work to."""


_FOUND_BY = {
    "annotation": "a repeating range",
    "optimizer": "the steps of the optimizer",
    "graph": "the launches of a graph",
    "period": "the period of the kernels",
}


def how_steps_were_found(trace: Trace) -> list[str]:
    """A line where steps are not the profiler's own; nothing where they are. Reads `source` of `steps`."""
    found = trace.arrow("SELECT DISTINCT source FROM steps")["source"].to_pylist()
    if found in ([], ["mark"]):
        return []
    if found == ["trace"]:
        return ["No step marks and nothing that repeats: the whole trace is taken as one step."]
    return [f"No step marks: steps were found by {', '.join(_FOUND_BY.get(one, one) for one in found)}."]
