"""One profile: the profiler is attached, records some steps within limits, and its file is written beside.

Limits hold before they are reached: what a recording holds in memory is read off the process, and tells how
large its file and how much memory its end will take.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stepscope.capture.settings import Settings

__all__ = [
    "OPTIONS",
    "Recording",
    "wait_until_saved",
    "write_profile",
]

OPTIONS: dict[str, dict[str, bool]] = {
    "light": {},
    "slow": {},
    "full": {"record_shapes": True, "with_stack": True, "profile_memory": True},
}
_RAW_FOR_RECORDED = 1.4
"""Bytes of JSON for each byte that the process grows by while it records."""
_MEMORY_FOR_RECORDED = 10.5
"""Bytes that the process has grown by when the profiler has put its events in order."""
_LOOK_S = 0.05
_SPARE_BYTES = 1_000_000_000
"""So much stays free on a disk."""
_PIECE = 1 << 20


_saving = threading.Lock()
"""Held while a profile is being saved. The clock of the GPU's events is that of the last profiler: where the
next one is attached before, all of their times are saved as 0."""


def wait_until_saved() -> None:
    """Waits until the last profile is saved: no profiler may be attached before."""
    with _saving:
        pass


class Recording:
    """Records one pass; `step_ended` is called after each step, `stop` after the last."""

    def __init__(self, name: str, settings: Settings) -> None:
        self.name = name
        self.steps = 0
        self.first_step = 0
        self._settings = settings
        self._profiler: Any = None
        self._mark: Any = None
        self._before_bytes = 0
        self._began = 0.0
        self._looked = 0.0
        self._marks_ns: list[int] = []

    @property
    def has_begun(self) -> bool:
        """Whether it records, and does not only warm up."""
        return self._began > 0

    def owns(self, profiler: Any) -> bool:
        """Whether it is the profiler of this recording, or about to be."""
        return self._profiler is None or getattr(self._profiler, "profiler", None) in (None, profiler)

    def attach(self) -> None:
        """Attaches the profiler; the step after that is slower, and is not recorded."""
        from torch.profiler import profile

        wait_until_saved()
        self._profiler = profile(**OPTIONS[self.name])
        self._profiler.prepare_trace()
        inner = self._profiler.profiler
        if hasattr(inner, "_parse_kineto_results"):
            # Some versions make Python objects of all events at once: nobody here looks at them.
            inner._parse_kineto_results = lambda *_, **__: []  # noqa: SLF001
        self._before_bytes = _resident_bytes()

    def start(self, number: int) -> None:
        """Starts to record, with the step of this number."""
        self.first_step = number
        self._profiler.start_trace()
        self._began = self._looked = time.monotonic()
        self._marks_ns.append(time.perf_counter_ns())
        self._open(number)

    def step_ended(self) -> None:
        """A step has ended; another one begins with `next_step`."""
        self._close()
        self.steps += 1

    def next_step(self) -> None:
        """The next step begins."""
        self._open(self.first_step + self.steps)

    def too_large(self, most_steps: int) -> str:
        """Why the recording has to stop now; empty if it may go on.

        From the first step on, what the whole pass would take is known; before, what it has taken.
        """
        now = time.monotonic()
        if now - self._looked < _LOOK_S and not self.steps:
            return ""
        self._looked = now
        ahead = (self.steps + 1) / self.steps if 0 < self.steps < most_steps else 1.0
        grown = max(0, _resident_bytes() - self._before_bytes) * ahead
        if grown * _RAW_FOR_RECORDED >= self._settings.most_raw_bytes:
            return f"its file would be larger than {_gigabytes(self._settings.most_raw_bytes)}"
        if grown * _MEMORY_FOR_RECORDED >= self._settings.most_memory_bytes:
            return f"it would need more than {_gigabytes(self._settings.most_memory_bytes)} of memory"
        if (now - self._began) * ahead > self._settings.most_seconds:
            return f"it would take longer than {self._settings.most_seconds:.0f} s"
        return ""

    def stop(self) -> None:
        """Stops to record and detaches the profiler; a step that is not over has no mark."""
        self._mark = None
        self._profiler.stop_trace()

    def abandon(self) -> None:
        """Ends a recording of which nothing is kept."""
        self._mark = None
        if self._began:
            self._profiler.stop_trace()
        elif self._profiler is not None:
            # One that is attached has to be started before it can be stopped.
            self._profiler.start_trace()
            self._profiler.stop_trace()
        self._profiler = None

    @property
    def mean_step_ns(self) -> int | None:
        """How long a recorded step took on the host's clock."""
        if not self.steps:
            return None
        return (self._marks_ns[-1] - self._marks_ns[0]) // (len(self._marks_ns) - 1)

    def write(self, path: Path, written: Callable[[str], None]) -> None:
        """Writes the profile, which gets its name when it is whole; `written` is told what went wrong."""
        _saving.acquire()
        self._write(path, written)

    def write_beside(self, path: Path, written: Callable[[str], None]) -> threading.Thread:
        """Writes it in another thread, for the program goes on meanwhile."""
        _saving.acquire()
        writing = threading.Thread(target=self._write, args=(path, written), name="stepscope writes")
        writing.start()
        return writing

    def _write(self, path: Path, written: Callable[[str], None]) -> None:
        problem = ""
        try:
            write_profile(self._save, path, self._settings.most_raw_bytes)
        except OSError as error:
            problem = f"The {self.name} profile could not be written: {error}."
        finally:
            if self._profiler is not None:  # there was no room to save it
                self._profiler = None
                _saving.release()
        written(problem)

    def _save(self, raw: str) -> None:
        try:
            self._profiler.profiler.kineto_results.save(raw)
        finally:
            self._profiler = None
            _saving.release()

    def _open(self, number: int) -> None:
        import torch

        self._mark = torch.profiler.record_function(f"ProfilerStep#{number}")
        self._mark.__enter__()

    def _close(self) -> None:
        self._mark.__exit__(None, None, None)
        self._mark = None
        self._marks_ns.append(time.perf_counter_ns())


def write_profile(save: Callable[[str], object], path: Path, most_raw_bytes: int) -> None:
    """Has the profiler save its JSON, compresses it, and gives it its name."""
    with tempfile.TemporaryDirectory(prefix="stepscope-", dir=_roomy(path.parent, most_raw_bytes)) as scratch:
        raw = Path(scratch) / "trace.json"
        save(str(raw))
        packed = path.with_name(f".{path.name}.part")
        try:
            with raw.open("rb") as read, _packing(packed) as write:
                shutil.copyfileobj(read, write, _PIECE)
            packed.replace(path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                packed.unlink()


def _roomy(folder: Path, most_raw_bytes: int) -> Path:
    """A folder with room for the plain JSON: the disk for temporary files, or that of the run."""
    for place in (Path(tempfile.gettempdir()), folder):
        if shutil.disk_usage(place).free > most_raw_bytes + _SPARE_BYTES:
            return place
    raise OSError(28, f"no disk has {_gigabytes(most_raw_bytes + _SPARE_BYTES)} of room", str(folder))


def _packing(path: Path) -> Any:
    try:
        from isal import igzip
    except ImportError:
        return gzip.open(path, "wb", compresslevel=1)
    opening: Any = igzip.open
    return opening(path, "wb", compresslevel=1)


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.3g} GB"


def _resident_bytes() -> int:
    """How much memory the process has."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # of macOS, in bytes
