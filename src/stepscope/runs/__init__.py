"""A run of one program as the capture left it: a folder with profiles, times and what the program said.

`run.json` names the ranks, and of each rank its passes: a light profile for times, a full one for places.
The step without the profiler was timed before them. `reading` reads the folder, `choosing` finds the rank
and the pass that a command is about, `needs` knows what only the full pass can tell, and `merging` makes one
report of both.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Literal

from stepscope.records import dataclass
from stepscope.store.measured import MeasuredStep

__all__ = ["FailedRank", "MeasuredStep", "Pass", "PassName", "RankRecord", "Run"]

PassName = Literal["light", "full", "profile"]
"""What a profile of a rank is: light or full if `stepscope run` wrote it, else just a profile."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One profile of a rank."""

    name: PassName
    path: Path
    """Where it lies; inside the folder of the run, if that has a record."""
    steps: tuple[int, int] | None = None
    """The first and the last step that it recorded, as the capture counted; None if it did not say."""
    url: str = ""
    """Its address, if it is not a file of this machine."""

    @property
    def word(self) -> str:
        """What to open: its path or its address."""
        return self.url or str(self.path)


@dataclass(frozen=True, slots=True)
class RankRecord:
    """What the capture wrote about one process."""

    rank: int
    path: Path | None
    """The file of this rank alone, if it is there."""
    passes: tuple[Pass, ...]
    """Those whose file is there."""
    measured: MeasuredStep | None
    """The step without the profiler; None if too few were timed."""
    host: str = ""
    state: str = ""
    devices: tuple[str, ...] = ()
    recorded_ns: Mapping[str, int] = field(default_factory=dict)
    """The step on the clock, under each pass."""
    step: str = ""
    """What a step of the program is, as a sentence."""
    notes: tuple[str, ...] = ()
    """What was left out or cut short, as sentences."""
    rank_source: str = "run.json"
    """Where its number comes from: run.json, metadata, file name, order."""
    summaries: tuple[str, ...] = ()
    """Files of `stepscope summarize` about it: they are read in place of its profiles."""
    beside: tuple[str, ...] = ()
    """Files of other kinds about it, which add to its profile: snapshots, counters, logs."""

    @property
    def spans(self) -> tuple[Pass, ...]:
        """The profiles that tell its times, one after the other: the light ones, or else all of one kind."""
        for name in ("light", "profile", "full"):
            if found := tuple(one for one in self.passes if one.name == name):
                return found
        return ()

    def also(self, one: Pass) -> tuple[str, ...]:
        """What is read with one of its profiles: its own file, and what stands beside, once for all."""
        own = (str(self.path),) if self.path else ()
        detailed = self.named("full") or next(reversed(self.spans), None)
        return (*own, *self.beside) if one == detailed else own

    def named(self, name: PassName) -> Pass | None:
        """The pass of that name; of several the last."""
        return next((one for one in reversed(self.passes) if one.name == name), None)


@dataclass(frozen=True, slots=True)
class FailedRank:
    """A profile of the run that could not be read."""

    rank: int | None
    source: str
    reason: str


@dataclass(frozen=True, slots=True)
class Run:
    """The profiles of one program, by rank."""

    folder: Path
    command: tuple[str, ...]
    started: str
    ended: str
    exit_code: int | None
    world_size: int
    ranks: tuple[RankRecord, ...]
    """In the order of their numbers."""
    name: str = ""
    """What the user named; empty for its folder."""
    failed: tuple[FailedRank, ...] = ()
    """Files that should be profiles of it and cannot be read."""
    notes: tuple[str, ...] = ()
    """How ranks were told apart, which are missing, what was left out, as sentences."""

    @property
    def called(self) -> str:
        """As the user named it, or its folder."""
        return self.name or str(self.folder)

    @property
    def again(self) -> str:
        """What to type to record it once more."""
        words = self.command[1:] if "python" in "".join(self.command[:1]) else self.command
        return f"stepscope run {shlex.join(words) or 'train.py'}"

    @property
    def profiled(self) -> tuple[RankRecord, ...]:
        """The ranks that have a profile."""
        return tuple(one for one in self.ranks if one.passes)

    @property
    def told(self) -> tuple[RankRecord, ...]:
        """The ranks that have a profile or a summary."""
        return tuple(one for one in self.ranks if one.passes or one.summaries)
