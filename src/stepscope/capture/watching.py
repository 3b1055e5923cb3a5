"""Watches what the profiler does not record while it records: the GPU's clocks, the collector's pauses."""

from __future__ import annotations

import gc
import threading
import time
from array import array
from typing import Any

from stepscope.capture import nvml

__all__ = ["CollectorWatch", "GpuWatch", "Watch"]

_EVERY_S = 0.1
_MOST_SAMPLES = 50_000
_MOST_PAUSES = 20_000
_FIELDS = 4


class Watch:
    """Watches GPUs and collector from `start()` to `stop()`; it can be started again and again."""

    def __init__(self, *, gpus: bool = True, every_s: float = _EVERY_S) -> None:
        self._gpus = GpuWatch(every_s) if gpus else None
        self._collector = CollectorWatch()
        self._is_on = False

    def start(self) -> None:
        """Begins; starting one that is on does nothing."""
        if not self._is_on:
            self._is_on = True
            self._collector.start()
            if self._gpus is not None:
                self._gpus.start()

    def stop(self) -> dict[str, Any]:
        """Ends, and gives what was seen since it was started: `gpu_samples`, `collector_pauses`, `notes`."""
        if not self._is_on:
            return {"gpu_samples": [], "collector_pauses": [], "notes": []}
        self._is_on = False
        samples, said = self._gpus.stop() if self._gpus is not None else ([], [])
        pauses, also_said = self._collector.stop()
        return {"gpu_samples": samples, "collector_pauses": pauses, "notes": [*said, *also_said]}


class GpuWatch:
    """Asks NVML about the GPUs of this process several times a second, in a thread of its own."""

    def __init__(self, every_s: float = _EVERY_S) -> None:
        self._every_s = every_s
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._samples: list[dict[str, Any]] = []
        self._notes: list[str] = []

    def start(self) -> None:
        """Begins to sample."""
        self._stopping, self._samples, self._notes = threading.Event(), [], []
        self._thread = threading.Thread(target=self._sample, name="stepscope GPU watch", daemon=True)
        self._thread.start()

    def stop(self) -> tuple[list[dict[str, Any]], list[str]]:
        """Ends; the samples and what is to be said of them. A call that hangs in the driver is left."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(timeout=5 * self._every_s)
            if self._thread.is_alive():
                self._notes.append("The GPUs' state was not read to the end: the driver did not answer.")
            self._thread = None
        return list(self._samples), list(self._notes)

    def _sample(self) -> None:
        # Of its own start: a thread that was left behind must not add to the next watch.
        stopping, samples, notes = self._stopping, self._samples, self._notes
        try:
            with nvml.opened() as module:
                watched = nvml.gpus(module, used=True)
                if not watched:
                    notes.append("No GPU was watched: the program uses none.")
                while watched and not stopping.is_set() and len(samples) < _MOST_SAMPLES:
                    for gpu in watched:
                        samples.append({"epoch_ns": time.time_ns(), **gpu.sample()})
                    stopping.wait(self._every_s)
        except nvml.NoNvml as error:
            notes.append(f"The GPUs' clocks, power and temperature are not known. {error}")
        except Exception as error:  # noqa: BLE001  # a thread of ours must not print into the user's program
            notes.append(f"The GPUs' state could not be read: {type(error).__name__}: {error}")


class CollectorWatch:
    """Notes when Python's garbage collector stopped the program, and for how long."""

    def __init__(self) -> None:
        # Numbers in an array are no objects that the collector would have to look at.
        self._pauses = array("q")
        self._missed = 0
        self._began = (0, 0)

    def start(self) -> None:
        """Begins to listen."""
        self._pauses, self._missed, self._began = array("q"), 0, (0, 0)
        if self._heard not in gc.callbacks:
            gc.callbacks.append(self._heard)

    def stop(self) -> tuple[list[dict[str, int]], list[str]]:
        """Ends; the pauses and what is to be said of them."""
        if self._heard in gc.callbacks:
            gc.callbacks.remove(self._heard)
        columns = [self._pauses[place::_FIELDS] for place in range(_FIELDS)]
        names = ("epoch_ns", "dur_ns", "generation", "collected")
        found = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
        said = f"The collector ran {self._missed:,} times more than were noted."
        return found, [said] if self._missed else []

    def _heard(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._began = (time.time_ns(), time.perf_counter_ns())
            return
        epoch_ns, began_ns = self._began
        if not began_ns:  # it was in the middle of one when we began
            return
        if len(self._pauses) >= _FIELDS * _MOST_PAUSES:
            self._missed += 1
            return
        lasted_ns = time.perf_counter_ns() - began_ns
        self._pauses.extend((epoch_ns, lasted_ns, info["generation"], info["collected"]))
