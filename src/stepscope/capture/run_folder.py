"""The run folder: what each rank writes of itself, and `run.json`, put together from that.

Files get their names when they are whole. A rank that dies leaves what it had written.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import threading
from pathlib import Path
from typing import Any

__all__ = ["RANK_SCHEMA", "RUN_SCHEMA", "RankFile", "merge", "now_text", "read_rank"]

RANK_SCHEMA = "stepscope.rank/1"
RUN_SCHEMA = "stepscope.run/1"
_OF_THE_RUN = ("schema", "command", "started", "ended", "exit_code", "world_size", "environment")


def now_text() -> str:
    """The time, as run files tell it."""
    return dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class RankFile:
    """What is known about one rank, written as it becomes known; threads may tell at once."""

    def __init__(self, folder: str, rank: int) -> None:
        self.folder = Path(folder)
        self.rank = rank
        self._lock = threading.RLock()
        self.told: dict[str, Any] = {"schema": RANK_SCHEMA, "rank": rank, "files": [], "notes": []}

    def path_of(self, name: str) -> Path:
        """Where a file of this rank lies."""
        return self.folder / f"rank{self.rank}.{name}"

    def claim(self) -> bool:
        """Whether this process is the one that records this rank: the first that says so."""
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            claim = self.folder / f".rank{self.rank}.claim"
            os.close(os.open(claim, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
        except FileExistsError:
            return False
        return True

    def tell(self, **told: Any) -> None:
        """Adds what is known now, and writes it."""
        with self._lock:
            self.told |= told
            self._write()

    def note(self, sentence: str) -> None:
        """Adds a sentence about what was left out or cut short; none if it is empty."""
        with self._lock:
            if sentence and sentence not in self.told["notes"]:
                self.told["notes"].append(sentence)
                self._write()

    def add_file(self, name: str, kind: str, steps: tuple[int, int] | None = None) -> None:
        """Adds a file that was written, in place of an earlier one of its name."""
        path = self.path_of(name)
        entry: dict[str, Any] = {"path": path.name, "pass": kind, "bytes": path.stat().st_size}
        if steps is not None:
            entry["steps"] = list(steps)
        with self._lock:
            kept = [one for one in self.told["files"] if one["path"] != path.name]
            self.told["files"] = [*kept, entry]
            self._write()

    def _write(self) -> None:
        """Writes the file of the rank, and the run's file from all ranks' files."""
        _write(self.folder / f"rank{self.rank}.json", self.told)
        merge(self.folder)


def read_rank(folder: Path, rank: int) -> dict[str, Any] | None:
    """What was written of a rank; None if nothing was."""
    try:
        told: dict[str, Any] = json.loads((folder / f"rank{rank}.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return told


def merge(folder: Path, exit_code: int | None = None, *, ended: bool = False) -> dict[str, Any] | None:
    """Puts `run.json` together from the ranks' files, and gives it; None if there are none.

    Who has waited for the program knows how it ended.
    """
    ranks = []
    for path in sorted(folder.glob("rank*.json")):
        if path.name.removeprefix("rank").removesuffix(".json").isdigit():
            with contextlib.suppress(OSError, ValueError):  # another rank is at it
                ranks.append(json.loads(path.read_text(encoding="utf-8")))
    if not ranks:
        return None
    ranks.sort(key=lambda one: one["rank"])
    first = ranks[0]
    over = ended or all(one.get("ended") for one in ranks)
    run = {
        "schema": RUN_SCHEMA,
        "command": first.get("command"),
        "started": min((one["started"] for one in ranks if one.get("started")), default=None),
        "ended": (now_text() if ended else max(one["ended"] for one in ranks)) if over else None,
        "exit_code": exit_code,
        "world_size": first.get("world_size"),
        "environment": first.get("environment", {}),
        "ranks": [{key: one[key] for key in one if key not in _OF_THE_RUN} for one in ranks],
    }
    _write(folder / "run.json", run)
    return run


def _write(path: Path, told: dict[str, Any]) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    temporary.replace(path)
