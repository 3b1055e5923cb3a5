"""Phases of compiling: the begins and ends of a compile log, put together."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

__all__ = ["Phases"]

_LONGEST = 300
_DEEPEST = 200


class Phases:
    """Pairs begins with ends of the same name, on each thread of each process."""

    def __init__(self) -> None:
        self._open: defaultdict[tuple[int, str, str, str | None], list[dict[str, Any]]] = defaultdict(list)
        self.unfinished = 0
        """Those that were left out: an end without a begin, or the other way round."""

    @property
    def still_open(self) -> int:
        """How many have begun and not ended."""
        return sum(map(len, self._open.values()))

    def add(self, process: int, event: dict[str, Any], moment_ns: int) -> dict[str, Any] | None:
        """Takes an event; a row if it ends a phase."""
        name, phase = str(event.get("name"))[:_LONGEST], event.get("ph")
        given = event.get("args")
        args = given if isinstance(given, dict) else {}
        told = args.get("compile_id")
        region = told.partition("_")[0][:60] if isinstance(told, str) and told != "None" else None
        # What belongs to no region was done by other threads, which the log does not tell apart.
        around = self._open[process, str(event.get("pid"))[:40], str(event.get("tid"))[:40], region]
        if phase == "B" and len(around) < _DEEPEST:
            detail = args.get("fn_name")
            around.append(
                {
                    "name": name,
                    "region": region,
                    "detail": detail[:_LONGEST] if isinstance(detail, str) else None,
                    "depth": len(around),
                    "epoch_ns": moment_ns,
                    "inside_ns": 0,
                }
            )
        elif phase == "E":
            return self._end(around, name, moment_ns)
        return None

    def _end(self, around: list[dict[str, Any]], name: str, moment_ns: int) -> dict[str, Any] | None:
        at = next((at for at in reversed(range(len(around))) if around[at]["name"] == name), None)
        if at is None:
            self.unfinished += 1
            return None
        row = around.pop(at)
        dur = max(0, moment_ns - row["epoch_ns"])
        inside = row.pop("inside_ns")
        if at:
            around[at - 1]["inside_ns"] += dur
        return {**row, "dur_ns": dur, "self_ns": max(0, dur - inside)}
