"""What to record, and how much of it at most: passed on to the program's processes as one variable."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

__all__ = ["VARIABLE", "Settings"]

VARIABLE = "STEPSCOPE_CAPTURE"


@dataclass(frozen=True)
class Settings:
    """What one capture does."""

    folder: str
    """The run folder, absolute."""
    command: tuple[str, ...] = ()
    passes: tuple[str, ...] = ("unprofiled", "light", "full")
    steps: int | None = None
    """How many steps the unprofiled and the light pass have; None: by the step's length."""
    skip: int | None = None
    """How many steps to leave out first; None: until the step's time has settled."""
    memory: bool = False
    """Whether to write a snapshot of the allocator with its history, too."""
    slow: bool = False
    """Whether to keep only steps that are slower than usual, with what came before them."""
    stop_after: bool = False
    """Whether the program ends when everything is recorded."""
    module: str | None = None
    """The class of the module whose calls are the steps."""
    most_raw_bytes: int = 500_000_000
    most_memory_bytes: int = 4_000_000_000
    most_seconds: float = 300.0
    """How long one pass may take."""
    gather: bool = False
    """Whether rank 0 gets the profiles of ranks that write to another host's disk."""
    losses: int = 0
    """Of how many of the first backward passes to keep the loss, to compare two runs with one seed."""
    steps_by_hand: bool = False
    """Whether only `stepscope.step()` ends a step."""

    def environment(self) -> dict[str, str]:
        """The variables that make a Python process record itself."""
        inject = str(Path(__file__).parent / "inject")
        before = os.environ.get("PYTHONPATH")
        return {
            VARIABLE: json.dumps(asdict(self)),
            "PYTHONPATH": os.pathsep.join([inject, before]) if before else inject,
        }

    @classmethod
    def read(cls, text: str) -> Settings:
        """The settings that a variable holds."""
        told = json.loads(text)
        return cls(**{**told, "command": tuple(told["command"]), "passes": tuple(told["passes"])})
