"""What a run folder has in it, for tests of the capture."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

__all__ = ["calls_in_steps", "passes_of", "rank_of"]


def rank_of(folder: Path) -> dict[str, Any]:
    """What rank 0 wrote of itself; the run's file says the same."""
    rank: dict[str, Any] = json.loads((folder / "rank0.json").read_text())
    run = json.loads((folder / "run.json").read_text())
    assert run["command"] == rank["command"]
    assert run["ranks"][0]["files"] == rank["files"]
    return rank


def passes_of(folder: Path) -> dict[str, dict[str, Any]]:
    """The files of the passes, all of which are there."""
    files = {one["pass"]: one for one in rank_of(folder)["files"]}
    assert all((folder / one["path"]).stat().st_size == one["bytes"] for one in files.values())
    assert not [name for name in folder.iterdir() if name.name.endswith(".part")]
    return files


def calls_in_steps(folder: Path, name: str, *calls: str) -> list[tuple[int, ...]]:
    """For each step that a file says it has: how often these ranges and operators begin in its mark."""
    one = passes_of(folder)[name]
    with gzip.open(folder / one["path"]) as file:
        events = [event for event in json.load(file)["traceEvents"] if event.get("ph") == "X"]
    first, last = one["steps"]
    found = []
    for number in range(first, last + 1):
        (mark,) = [event for event in events if event["name"] == f"ProfilerStep#{number}"]
        inside = [event for event in events if 0 <= event["ts"] - mark["ts"] < mark["dur"]]
        found.append(tuple(sum(event["name"].startswith(call) for event in inside) for call in calls))
    return found
