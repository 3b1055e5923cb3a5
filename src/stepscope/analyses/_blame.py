"""Who made a runtime call: its operators, outermost first, and the line of the user's code."""

from __future__ import annotations

from collections.abc import Collection

from stepscope.records import dataclass
from stepscope.store.trace import Reads, Trace

__all__ = ["BLAME_READS", "Caller", "callers", "names_of_nodes"]

BLAME_READS: Reads = {
    "launches": ("event", "name", "op"),
    "ops": ("event", "name", "parent"),
    "call_sites": ("event", "user_frame"),
    "call_tree": ("node", "name"),
}
"""What `callers` reads."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who made one call."""

    call: str
    ops: tuple[str, ...]
    user_frame: str | None

    @property
    def chain(self) -> str:
        """The operators and the call, in the order in which they were entered."""
        return " → ".join((*self.ops, self.call))


_CALLERS = """
    WITH RECURSIVE asked AS (
        SELECT event, name, op FROM launches WHERE list_contains($events, event)),
    around AS (
        SELECT event, op, 0 AS level FROM asked WHERE op IS NOT NULL
        UNION ALL
        SELECT a.event, o.parent, level + 1 FROM around a JOIN ops o ON o.event = a.op
        WHERE o.parent IS NOT NULL),
    chains AS (
        SELECT a.event, list(o.name ORDER BY level DESC) AS ops
        FROM around a JOIN ops o ON o.event = a.op GROUP BY a.event),
    framed AS (
        SELECT p.event, c.name AS user_frame FROM call_sites p JOIN call_tree c ON c.node = p.user_frame
        WHERE list_contains($events, p.event))
    SELECT a.event, a.name, c.ops, f.user_frame
    FROM asked a LEFT JOIN chains c USING (event) LEFT JOIN framed f USING (event)
"""


def callers(trace: Trace, events: Collection[int]) -> dict[int, Caller]:
    """Who made each of some calls; not for many of them."""
    if not events:
        return {}
    return {
        row["event"]: Caller(
            row["name"] or "", tuple(name or "" for name in row["ops"] or ()), row["user_frame"]
        )
        for row in trace.rows(_CALLERS, events=sorted(events))
    }


def names_of_nodes(trace: Trace, nodes: Collection[int | None]) -> dict[int | None, str]:
    """The names of functions and modules by their nodes in the tree of calls, which must be declared."""
    known = sorted(node for node in nodes if node is not None)
    sql = "SELECT node, name FROM call_tree WHERE list_contains($nodes, node)"
    return {row["node"]: row["name"] for row in trace.rows(sql, nodes=known)} if known else {}
