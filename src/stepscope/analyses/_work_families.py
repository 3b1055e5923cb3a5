"""Device work with the operators that launched it, and the families of such pairs."""

from __future__ import annotations

from typing import Any

from stepscope.costs.families import family_of
from stepscope.store.trace import Trace

__all__ = ["WORK", "WORK_READS", "WorkGroup", "family_of_group", "work_groups"]

WORK_READS = {
    "device_work": ("name", "kind", "communicates", "op"),
    "ops": ("event", "name"),
}
"""What all of this reads, beside what an analysis takes of the work."""

WORK = """
    SELECT w.*, o.name AS op_name, (hash(kind, w.name, o.name) >> 1)::BIGINT AS grouped
    FROM device_work w LEFT JOIN (SELECT event, name FROM ops) o ON o.event = w.op
"""
"""SQL of all device work; `grouped` is one number for all work of one name that one operator launched."""

_GROUPS = f"""
    SELECT grouped, any_value(kind) AS kind, any_value(name) AS name, any_value(op_name) AS op,
           bool_or(communicates) AS communicates
    FROM ({WORK}) GROUP BY grouped ORDER BY kind, name NULLS FIRST, op NULLS FIRST
"""

WorkGroup = dict[str, Any]


def work_groups(trace: Trace) -> list[WorkGroup]:
    """All groups of work: grouped, kind, name, op, communicates."""
    found: list[WorkGroup] = trace.once("groups of device work", lambda: trace.rows(_GROUPS))
    return found


def family_of_group(group: WorkGroup) -> str:
    """What kind of work it does."""
    if group["kind"] != "kernel":
        return "copy"
    return "communication" if group["communicates"] else family_of(group["name"], group["op"])
