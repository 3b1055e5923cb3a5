"""The passes of a capture, one after the other: unprofiled times, a light profile, a full one."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

from stepscope.capture import loaders
from stepscope.capture.memory import keep_snapshot, start_history
from stepscope.capture.plan import Plan, Span
from stepscope.capture.recording import Recording, wait_until_saved
from stepscope.capture.run_folder import RankFile
from stepscope.capture.settings import Settings
from stepscope.capture.timing import StepClock, summary, uses_cuda
from stepscope.capture.watching import Watch

__all__ = ["Passes", "is_profiling"]

_WELL_KNOWN = 0.02
_MORE, _MOST_MEASURED, _MOST_MEASURED_NS = 25, 100, 4_000_000_000
_LONG_PROGRAM_S = 20.0
"""A program that has run for this long is no short one: a few more steps are nothing to it."""
_WRITING_S = 300.0
"""How long the end of the program waits for profiles that are being written."""


class Passes:
    """Follows a plan: is told of each end of a step, and begins and ends the passes."""

    def __init__(self, settings: Settings, plan: Plan, file: RankFile) -> None:
        self._settings = settings
        self._plan = plan
        self._file = file
        self._span: Span | None = None
        self._clock: StepClock | None = None
        self._recording: Recording | None = None
        self._writing: list[threading.Thread] = []
        self._memory = False
        self._watch = Watch(gpus=uses_cuda())
        self._began = _process_began()

    @property
    def is_recording(self) -> bool:
        """Whether a profiler is attached, whose size has to be looked at."""
        return self._recording is not None

    def steps_to_time(self, at: int) -> int:
        """After so many steps, how many of the next ones have nothing done but their time taken."""
        if self._clock is None or self._recording is not None or self._span is None:
            return 0
        return max(0, self._span.end - at - 1)

    def tick(self) -> None:
        """One of these steps has ended."""
        if self._clock is not None:
            self._clock.mark()

    def step_ended(self, at: int) -> bool:
        """So many steps have ended: does what the plan says of this moment; whether that was all of it."""
        self.tick()
        if self._recording is not None and self._recording.has_begun:
            self._recording.step_ended()
            self.look()
        if self._clock is not None and self._span is not None and at == self._span.end:
            self._measure_longer(self._clock, self._span)
        spans = self._plan.spans
        if self._span is not None and at >= self._span.end:
            self._end_pass()
        elif self._recording is not None and self._recording.has_begun:
            self._recording.next_step()
        for span in spans:
            if span.start == at:
                self._begin_pass(span)
            if span.first == at and span == self._span and self._recording is not None:
                self._recording.start(at)
        if at < spans[-1].end:
            return False
        self._tell_what_was_watched()
        return True

    def _tell_what_was_watched(self) -> None:
        """Writes what GPU and collector did during the passes."""
        seen = self._watch.stop()
        for note in seen.pop("notes"):
            self._file.note(note)
        if any(seen.values()):
            self._file.tell(**seen)

    def _measure_longer(self, clock: StepClock, span: Span) -> None:
        """Measures more steps where their mean is not known well, in a program that takes its time."""
        steps = span.end - span.first
        if self._plan.is_shared or self._settings.steps or time.monotonic() - self._began < _LONG_PROGRAM_S:
            return
        times_ns = clock.steps_ns()
        found = summary(times_ns)
        if found is None or found["high"] - found["low"] <= 2 * _WELL_KNOWN * found["mean"]:
            return
        if steps < _MOST_MEASURED and sum(times_ns) < _MOST_MEASURED_NS:
            self._plan = self._plan.extended(span.name, _MORE)
            self._span = self._plan.spans[0]

    def look(self) -> None:
        """Stops a recording before it gets too large; called within steps, too, for a step can be long."""
        span, recording = self._span, self._recording
        if span is None or recording is None or not recording.has_begun:
            return
        planned = span.end - span.first
        reason = recording.too_large(planned)
        if reason and recording.steps < planned:
            kept = (
                f"It has {recording.steps} of {planned} steps." if recording.steps else "None of it is kept."
            )
            self._file.note(f"The {span.name} pass was stopped because {reason}. {kept}")
            self._end_pass()

    def make_room(self, profiler: Any) -> None:
        """The program starts a profiler of its own: there can be only one."""
        recording = self._recording
        if recording is None:
            wait_until_saved()
        elif not recording.owns(profiler):
            self._file.note(
                f"The program used the profiler itself during the {recording.name} pass: it is given up."
            )
            self.give_up()

    def give_up(self) -> None:
        """Ends what is being recorded and keeps nothing of it."""
        recording, self._recording = self._recording, None
        self._clock, self._span = None, None
        if recording is not None:
            recording.abandon()

    def end(self) -> None:
        """The program ends: keeps what there is, and waits until it is written."""
        if self._recording is not None and self._recording.has_begun:
            self._file.note(f"The program ended during the {self._recording.name} pass.")
        if self._span is not None:
            self._end_pass(beside=False)
        self._tell_what_was_watched()
        self.wait_until_written()

    @property
    def are_written(self) -> bool:
        """Whether all profiles have their names."""
        return not any(thread.is_alive() for thread in self._writing)

    def wait_until_written(self) -> None:
        """Waits until all profiles have their names."""
        deadline = time.monotonic() + _WRITING_S
        for thread in self._writing:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _begin_pass(self, span: Span) -> None:
        self._span = span
        if span.name == "unprofiled":
            self._watch.start()
            loaders.reset()
            self._clock = StepClock(max(_MOST_MEASURED, span.end - span.first))
            self._clock.mark()
            return
        if span.name == "full" and self._settings.memory:
            self._memory = start_history()
        if is_profiling():
            self._file.note(f"The program used the profiler itself, so there is no {span.name} pass.")
        else:
            self._recording = Recording(span.name, self._settings)
            self._recording.attach()

    def _end_pass(self, *, beside: bool = True) -> None:
        clock, self._clock = self._clock, None
        recording, self._recording = self._recording, None
        self._span = None
        if clock is not None:
            steps_ns = clock.steps_ns()
            self._file.tell(
                unprofiled_step_ns=summary(steps_ns),
                unprofiled_steps_ns=steps_ns,
                loaders=loaders.found(len(steps_ns)),
            )
        if self._memory:
            self._memory = False
            self._file.note(keep_snapshot(self._file))
        if recording is not None and recording.steps:
            self._keep(recording, beside=beside)
        elif recording is not None:
            recording.abandon()

    def _keep(self, recording: Recording, *, beside: bool, name: str = "") -> None:
        """Stops a recording and has its file written; not beside the program if that has ended."""
        file, name = self._file, f"{name or recording.name}.pt.trace.json.gz"
        recording.stop()
        recorded = file.told.get("recorded_step_ns", {})
        file.tell(recorded_step_ns={**recorded, recording.name: recording.mean_step_ns})
        steps = (recording.first_step, recording.first_step + recording.steps - 1)

        def written(problem: str) -> None:
            if problem:
                file.note(problem)
            else:
                file.add_file(name, recording.name, steps)

        if beside:
            self._writing.append(recording.write_beside(file.path_of(name), written))
        else:
            recording.write(file.path_of(name), written)


def _process_began() -> float:
    """When this process was started, on the clock of `time.monotonic`."""
    try:
        with open("/proc/self/stat", encoding="utf-8") as file:  # noqa: PTH123
            ticks = int(file.read().rpartition(")")[2].split()[19])
        return ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return time.monotonic()


def is_profiling() -> bool:
    """Whether some profiler runs in this process."""
    import torch

    return bool(torch.autograd._profiler_enabled())  # noqa: SLF001
