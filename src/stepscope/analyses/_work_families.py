"""Device work with the operators that launched it, and the families of such pairs."""

from __future__ import annotations

from typing import Any

from stepscope.costs.families import family_of
from stepscope.store.trace import Trace

__all__ = ["PAIR", "WORK", "WORK_READS", "WorkGroup", "family_of_group", "work_groups"]

WORK_READS = {
    "device_work": ("name", "name_id", "kind", "communicates", "op"),
    "ops": ("event", "name", "name_id"),
}
"""What all of this reads, beside what an analysis takes of the work."""

PAIR = "(hash(w.kind, w.name_id, o.name_id) >> 1)::BIGINT"
"""SQL of one number for all work `w` of one name that one operator `o` launched."""
WORK = f"""
    SELECT w.*, o.name AS op_name, {PAIR} AS grouped
    FROM device_work w LEFT JOIN (SELECT event, name, name_id FROM ops) o ON o.event = w.op
"""
"""SQL of all device work; `grouped` is such a number."""

_GROUPS = f"""
    SELECT grouped, any_value(kind) AS kind, any_value(name) AS name, any_value(name_id) AS name_id,
           any_value(op_name) AS op, bool_or(communicates) AS communicates
    FROM ({WORK}) GROUP BY grouped ORDER BY kind, name NULLS FIRST, op NULLS FIRST
"""

WorkGroup = dict[str, Any]


def work_groups(trace: Trace) -> list[WorkGroup]:
    """All groups of work: grouped, kind, name and its number, op, communicates."""
    found: list[WorkGroup] = trace.once("groups of device work", lambda: trace.rows(_GROUPS))
    return found


def family_of_group(group: WorkGroup) -> str:
    """What kind of work it does."""
    if group["kind"] != "kernel":
        return "copy"
    return "communication" if group["communicates"] else family_of(group["name"], group["op"])
