"""For programs that use `torch.profiler` themselves: what it recorded goes to a run folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from itertools import count, takewhile
from pathlib import Path
from typing import Any

from stepscope.capture.launching import short
from stepscope.capture.places import folder_for
from stepscope.capture.ranks import about_rank, rank
from stepscope.capture.recording import write_profile
from stepscope.capture.run_folder import RankFile, now_text
from stepscope.capture.saying import tell
from stepscope.capture.settings import Settings

__all__ = ["on_trace_ready"]


def on_trace_ready(folder: str | os.PathLike[str] | None = None) -> Callable[[Any], None]:
    """What to give to `torch.profiler.profile(on_trace_ready=…)`: writes a run folder, and says where it is.

    Without a name it is a new folder in `stepscope-runs`. A schedule that repeats writes several profiles.
    """
    return _Handler(folder)


class _Handler:
    """Writes each profile that is ready."""

    def __init__(self, folder: str | os.PathLike[str] | None) -> None:
        self._wanted = folder
        self._file: RankFile | None = None
        self._numbers = count(1)
        self._started = now_text()

    def __call__(self, profiler: Any) -> None:
        """Writes what the profiler has recorded."""
        try:
            written = self._write(profiler)
        except Exception as error:  # noqa: BLE001  # the program goes on without its profile
            tell(f"the profile could not be written: {type(error).__name__}: {error}")
            return
        if rank() == 0:
            tell(f"{written.name} is written; to see what is slow: stepscope report {short(written.parent)}")

    def _write(self, profiler: Any) -> Path:
        file = self._file = self._file or self._opened()
        number = next(self._numbers)
        kind = "full" if profiler.with_stack else "light"
        name = f"{kind}{'' if number == 1 else f'-{number}'}.pt.trace.json.gz"
        write_profile(profiler.export_chrome_trace, file.path_of(name), Settings("").most_raw_bytes)
        file.add_file(name, kind, recorded_steps(profiler))
        file.tell(ended=now_text(), state="finished")
        return file.path_of(name)

    def _opened(self) -> RankFile:
        from stepscope.capture.machine import environment

        command = tuple(sys.orig_argv)
        file = RankFile(str(folder_for(self._wanted, command)), rank())
        file.tell(**about_rank(command, self._started))
        file.tell(environment=environment())
        file.note("The program recorded itself: its step was not measured without the profiler.")
        return file


def recorded_steps(profiler: Any) -> tuple[int, int] | None:
    """The first and the last step of what a profiler has just recorded; None without a schedule."""
    from torch.profiler import ProfilerAction

    if not getattr(profiler, "record_steps", False):
        return None
    last = int(profiler.step_num) - 1
    recorded = takewhile(
        lambda step: step == last or profiler.schedule(step) is ProfilerAction.RECORD, range(last, -1, -1)
    )
    steps = list(recorded)
    return (steps[-1], last) if steps else None
