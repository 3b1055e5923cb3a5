"""The capture in a process of the program: finds the steps, and takes the passes one after the other."""

from __future__ import annotations

import atexit
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from stepscope.capture.hooks import Hooks, outermost
from stepscope.capture.plan import Agreement, Plan, Span, has_settled, plan_for
from stepscope.capture.recording import Recording
from stepscope.capture.run_folder import RankFile, now_text
from stepscope.capture.settings import Settings
from stepscope.capture.steps import Call, StepFinder
from stepscope.capture.timing import StepClock, summary

__all__ = ["Capture", "begin", "current"]

_LOOK_FOR_MODULES_S = (0.5, 1, 2, 4, 8, 16, 30, 60)
_WRITING_S = 300.0
"""How long the end of the program waits for profiles that are being written."""

_current: Capture | None = None


def current() -> Capture | None:
    """The capture of this process."""
    return _current


def begin(settings: Settings) -> Capture:
    """Starts a capture in this process, which has imported torch."""
    global _current  # noqa: PLW0603
    _current = Capture(settings)
    _current.begin()
    return _current


class Capture:
    """Listens to the program, and measures and records its steps once their time has settled."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._hooks = Hooks(self)
        self._finder = StepFinder(by_hand=settings.steps_by_hand)
        self._pid = os.getpid()
        self._home: int | None = None
        self._ended = 0
        self._changes = 0
        self._marks_ns: list[int] = []
        self._updates_ns: list[int] = []
        """When optimizers were called before it was known what a step is."""
        self._plan: Plan | None = None
        self._agreement: Agreement | None = None
        self._file: RankFile | None = None
        self._span: Span | None = None
        self._clock: StepClock | None = None
        self._recording: Recording | None = None
        self._writing: list[threading.Thread] = []
        self._losses: list[Any] = []
        self._modules_known = False
        self._started = now_text()
        self._is_over = False
        self._exit = os._exit
        self._lock = threading.RLock()

    # ------------------------------------------------------------ what the program does

    def begin(self) -> None:
        """Starts to listen."""
        self._hooks.install()
        atexit.register(self.finish)
        os.register_at_fork(after_in_child=self._forked)
        os._exit = self._exiting  # type: ignore[assignment]
        threading.Thread(target=self._look_for_modules, daemon=True, name="stepscope looks").start()

    def step(self) -> None:
        """The program says that a step has ended."""
        self._told(self._finder.step)

    def optimizer_stepped(self, optimizer: Any) -> None:
        """An optimizer has updated its parameters."""
        if self._home is None or self._finder.call is not Call.OPTIMIZER:
            self._home = threading.get_ident()
        if not self._modules_known:
            self._listen_to_modules()
        if not self._finder.is_found:
            self._updates_ns.append(time.perf_counter_ns())
        self._told(lambda: self._finder.optimizer(id(optimizer), f"{type(optimizer).__name__}.step"))

    def module_called(self, module: Any) -> None:
        """An outermost module is about to run."""
        import torch

        acting = module.training and not torch.is_grad_enabled()
        self._told(lambda: self._finder.forward(id(module), type(module).__name__, acting=acting))

    def graph_replayed(self) -> None:
        """A CUDA graph is about to be replayed."""
        self._told(self._finder.graph)

    def went_backward(self, roots: Any) -> None:
        """A backward pass from these tensors has ended."""
        if len(self._losses) < self._settings.losses and hasattr(roots, "detach"):
            self._losses.append(
                roots.detach().clone()
            )  # read when the program ends: that would wait for the GPU
        self._told(self._finder.backward)

    def evaluates(self, module: Any) -> None:
        """A module was put into its evaluation mode."""
        if self._settings.module is None and not self._is_over:
            self._hooks.listen_to([module])

    def profiler_starts(self, profiler: Any) -> None:
        """A profiler starts: if it is the program's own, ours makes room, for there can be only one."""
        ours = self._recording
        if ours is None or self._is_elsewhere() or ours.owns(profiler):
            return
        self._note(f"The program used the profiler itself during the {ours.name} pass, which was given up.")
        self._guarded(self._give_up)

    def _told(self, ends_step: Callable[[], bool]) -> None:
        """Takes a call of the program; nothing that goes wrong here may reach it."""
        if self._is_over or self._is_elsewhere() or _is_capturing():
            return
        self._home = self._home or threading.get_ident()
        stop = False

        def take() -> None:
            nonlocal stop
            if ends_step():
                stop = self._step_ended()
            elif self._recording is not None:
                self._stay_small()

        self._guarded(take)
        if stop:
            sys.stderr.write("stepscope: everything is recorded; the program ends here (--stop-after)\n")
            raise SystemExit(0)

    def _is_elsewhere(self) -> bool:
        """Whether this is another thread than the one that takes the steps."""
        return self._home is not None and threading.get_ident() != self._home

    def _guarded(self, take: Callable[[], None]) -> None:
        try:
            take()
        except Exception as error:  # noqa: BLE001  # the program goes on without us
            self._note(f"The capture failed: {type(error).__name__}: {error}.")
            sys.stderr.write(f"stepscope: the capture failed, the program goes on: {error!r}\n")
            self._is_over = True
            self._hooks.remove()

    # ------------------------------------------------------------ modules

    def _look_for_modules(self) -> None:
        """Looks for the program's modules now and then, until some are known."""
        for pause in _LOOK_FOR_MODULES_S:
            time.sleep(pause)
            if self._modules_known or self._is_over:
                return
            self._listen_to_modules()

    def _listen_to_modules(self) -> None:
        found = outermost(self._settings.module)
        if found:
            self._modules_known = True
            self._hooks.listen_to(found)

    # ------------------------------------------------------------ steps

    def _step_ended(self) -> bool:
        """A step has ended: takes the time, and begins or ends passes. Whether the program is to end."""
        if self._finder.changes != self._changes:
            self._changes = self._finder.changes
            self._start_over()
        self._ended += 1
        if self._plan is None:
            self._marks_ns.append(time.perf_counter_ns())
            self._make_plan()
            if self._plan is None:
                return False
        return self._follow(self._plan)

    def _start_over(self) -> None:
        """Something else ends steps now: what was measured is of other steps."""
        self._give_up()
        self._plan, self._clock, self._span = None, None, None
        # The last of them has just ended a step and is counted there.
        self._marks_ns = self._updates_ns[-1 - self._finder.calls :: -self._finder.calls][::-1]
        self._ended = max(self._ended, len(self._marks_ns))
        self._updates_ns.clear()

    def _make_plan(self) -> None:
        """Plans the passes once the step's time has settled; ranks agree on rank 0's plan."""
        if self._agreement is None:
            self._agreement = Agreement(self._settings.folder)
        steps_ns = [after - before for before, after in zip(self._marks_ns, self._marks_ns[1:], strict=False)]
        if self._agreement.is_needed and _rank() != 0:
            self._plan = self._agreement.find()
        else:
            settled, note = has_settled(steps_ns, self._settings.skip)
            if not settled or _is_profiling():
                return
            if self._agreement.is_needed:
                margin = Agreement.margin(steps_ns[-1] if steps_ns else 0)
                self._plan = plan_for(self._settings, self._ended + margin, steps_ns)
                self._agreement.publish(self._plan)
            else:
                self._plan = plan_for(self._settings, self._ended, steps_ns)
            self._note(note)
        if self._plan is not None and not self._claim():
            self._is_over = True
            self._hooks.remove()

    def _claim(self) -> bool:
        """Opens the file of this rank; False where another process records it already."""
        if self._file is not None:
            return True
        file = RankFile(self._settings.folder, _rank())
        if not file.claim():
            return False
        self._file = file
        file.told |= {
            "local_rank": int(os.environ.get("LOCAL_RANK", 0)),
            "world_size": _world_size(),
            "host": socket.gethostname(),
            "pid": self._pid,
            "command": list(self._settings.command),
            "started": self._started,
            "ended": None,
            "exit_code": None,
            "state": "running",
            "devices": _devices(),
            "recorded_step_ns": {},
        }
        self._tell_steps()
        file.write()
        return True

    def _tell_steps(self) -> None:
        if self._file is None:
            return
        self._file.told |= {
            "step": {
                "found_by": self._finder.call.value if self._finder.call else None,
                "name": self._finder.name,
                "calls": self._finder.calls,
                "backward_passes": self._finder.passes_per_step.get(Call.BACKWARD),
                "sentence": self._finder.sentence(),
            },
            "steps_seen": self._ended,
            "settled_after": self._plan.start if self._plan else None,
        }

    def _note(self, sentence: str) -> None:
        if self._file is not None:
            self._file.note(sentence)

    # ------------------------------------------------------------ passes

    def _follow(self, plan: Plan) -> bool:
        """Does what the plan says of this moment between two steps."""
        at = self._ended
        if self._clock is not None:
            self._clock.mark()
        if self._recording is not None and self._span is not None and at > self._span.first:
            self._recording.step()
            if at < self._span.end:
                self._stay_small()
        for span in plan.spans:
            if span.end == at and span == self._span:
                self._end_pass()
        for span in plan.spans:
            if span.start == at:
                self._begin_pass(span)
            if span.first == at and span == self._span and self._recording is not None:
                self._recording.start(at)
        if at >= plan.spans[-1].end:
            return self._all_done()
        return False

    def _begin_pass(self, span: Span) -> None:
        self._span = span
        if span.name == "unprofiled":
            self._clock = StepClock(span.end - span.first)
            self._clock.mark()
        elif _is_profiling():
            self._note(f"The program used the profiler itself, so there is no {span.name} pass.")
        else:
            self._recording = Recording(span.name, self._settings)
            self._recording.attach()

    def _end_pass(self) -> None:
        if self._clock is not None:
            self._keep_times(self._clock)
            self._clock = None
        self._keep_recording()
        self._span = None

    def _keep_times(self, clock: StepClock) -> None:
        steps_ns = clock.steps_ns()
        if self._file is not None:
            self._file.told |= {"unprofiled_step_ns": summary(steps_ns), "unprofiled_steps_ns": steps_ns}
            self._tell_steps()
            self._file.write()

    def _keep_recording(self) -> None:
        """Stops the recording and has its file written, if it has a whole step."""
        recording, self._recording = self._recording, None
        file = self._file
        if recording is None or file is None:
            return
        if not recording.steps:
            recording.abandon()
            return
        recording.stop()
        file.told["recorded_step_ns"][recording.name] = recording.mean_step_ns
        name = f"{recording.name}.pt.trace.json.gz"
        steps = (recording.first_step, recording.first_step + recording.steps - 1)

        def written(problem: str) -> None:
            with self._lock:
                if problem:
                    file.note(problem)
                else:
                    file.add_file(name, recording.name, steps)
                file.write()

        if self._is_over:  # no thread can be started while Python ends
            recording.write(file.path_of(name), written)
        else:
            self._writing.append(recording.write_beside(file.path_of(name), written))

    def _stay_small(self) -> None:
        """Stops a recording before it gets too large."""
        span, recording = self._span, self._recording
        if span is None or recording is None or not recording.has_begun:
            return
        reason = recording.too_large(span.end - span.first)
        if reason:
            kept = (
                f"it has {recording.steps} of {span.end - span.first} steps"
                if recording.steps
                else "none is kept"
            )
            self._note(f"The {span.name} pass was stopped because {reason}: {kept}.")
            self._end_pass()

    def _give_up(self) -> None:
        recording, self._recording = self._recording, None
        if recording is not None:
            recording.abandon()

    def _all_done(self) -> bool:
        """Everything is recorded: nothing of us stays in the program."""
        self._is_over = True
        self._hooks.remove()
        os._exit = self._exit
        if self._file is not None:
            self._tell_steps()
            self._file.write()
        return self._settings.stop_after

    # ------------------------------------------------------------ the end

    def _exiting(self, code: int) -> None:
        """What `os._exit` does while we record: nothing else would run."""
        if os.getpid() == self._pid:
            self.finish()
        self._exit(code)

    def _forked(self) -> None:
        """A child of the program, such as a worker of a loader, is not recorded."""
        self._is_over = True
        os._exit = self._exit

    def finish(self) -> None:
        """Keeps what there is when the program ends."""
        if os.getpid() != self._pid:
            return
        self._is_over = True
        try:
            if self._recording is not None and not self._is_elsewhere():
                self._note(f"The program ended during the {self._recording.name} pass.")
                self._end_pass()
            elif self._clock is not None:
                self._end_pass()
        except Exception as error:  # noqa: BLE001  # the program's own end is what counts
            self._note(f"The last pass could not be kept: {type(error).__name__}: {error}.")
        deadline = time.monotonic() + _WRITING_S
        for thread in self._writing:
            thread.join(max(0.0, deadline - time.monotonic()))
        if self._file is not None:
            self._tell_steps()
            self._file.told["losses"] = [float(loss.float().mean()) for loss in self._losses]
            self._file.told |= {"ended": now_text(), "state": "finished"}
            self._file.write()


def _is_capturing() -> bool:
    """Whether a CUDA graph is being captured: what is called then runs later, and no event may be recorded."""
    import torch

    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def _is_profiling() -> bool:
    """Whether some profiler runs in this process."""
    import torch

    return bool(torch.autograd._profiler_enabled())  # noqa: SLF001


def _rank() -> int:
    from torch import distributed

    if distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    return int(os.environ.get("RANK", 0))


def _world_size() -> int:
    from torch import distributed

    if distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_world_size())
    return int(os.environ.get("WORLD_SIZE", 1))


def _devices() -> list[str]:
    """The GPUs that the program may use, if it uses any."""
    import torch

    if not torch.cuda.is_initialized():
        return []
    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
