"""The capture in a process of the program: finds its steps, and takes the passes once they have settled."""

from __future__ import annotations

import sys
import threading
import time
from _thread import get_ident
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

from stepscope.capture import loaders
from stepscope.capture.endings import Endings
from stepscope.capture.gathering import Gathering
from stepscope.capture.hooks import Hooks, is_building, modules_made, outermost
from stepscope.capture.machine import environment
from stepscope.capture.passes import Passes, is_profiling
from stepscope.capture.plan import Agreement, Plan, has_settled, plan_for
from stepscope.capture.ranks import about_rank, rank, world_size
from stepscope.capture.run_folder import RankFile, now_text
from stepscope.capture.saying import tell
from stepscope.capture.settings import Settings
from stepscope.capture.slow import SlowSteps
from stepscope.capture.steps import Call, StepFinder
from stepscope.capture.timing import uses_cuda

__all__ = ["Capture", "begin", "current", "step"]

_LOOK_EVERY_S = 0.2
_OPTIMIZER_S = 120.0
"""A program that has not used its optimizer for so long may never do."""

_current: Capture | None = None
_begun = 0
"""How many captures there were in this process."""


def current() -> Capture | None:
    """The capture of this process."""
    return _current


def begin(settings: Settings, *, in_code: bool = False) -> Capture:
    """Starts a capture in this process, which has imported torch; `in_code` if the program does so itself."""
    global _current, _begun  # noqa: PLW0603
    _begun += 1
    _current = Capture(settings, in_code=in_code)
    _current.begin()
    return _current


def step(name: str = "stepscope.step()") -> None:
    """The program says that a step has ended."""
    if _current is not None:
        _current.step(name)


def _forget() -> None:
    global _current  # noqa: PLW0603
    _current = None


class Capture:
    """Listens to the program, and measures and records its steps once their time has settled."""

    def __init__(self, settings: Settings, *, in_code: bool = False) -> None:
        self.in_code = in_code
        """Whether the program began it, and ends it, too."""
        self._settings = settings
        self._torch = sys.modules["torch"]
        self._hooks = Hooks(self)
        self._endings = Endings(self.finish, self._forked, in_code=in_code)
        self._finder = StepFinder(by_hand=settings.steps_by_hand)
        self._started = now_text()
        self._home: int | None = None
        """The thread that takes the steps."""
        self._ended = 0
        self._changes = 0
        self._marks_ns: list[int] = []
        self._updates_ns: list[int] = []
        """When optimizers were called before it was known what a step is."""
        self._losses: list[Any] = []
        self._modules_known = False
        self._made = 0
        """How many modules there were when the outermost ones were looked for."""
        self._only_timed = 0
        """How many steps the hooks were to time by themselves."""
        self._agreement: Agreement | None = None
        self._plan: Plan | None = None
        self._file: RankFile | None = None
        self._passes: Passes | None = None
        self._gathering: Gathering | None = None
        self._is_recorded = False
        self._is_over = False
        self._has_ended = threading.Event()
        self._looking = threading.Thread(target=self._look_for_modules, daemon=True, name="stepscope looks")
        self._is_resting = False
        """Whether steps without an optimizer are recorded; should the program begin to train, that counts."""

    def begin(self) -> None:
        """Starts to listen."""
        self._hooks.install()
        loaders.watch()
        self._endings.install()
        if self.in_code:
            self._listen_to_modules()
        self._looking.start()

    @property
    def folder(self) -> str:
        """The run folder."""
        return self._settings.folder

    # ------------------------------------------------------------ what the program does

    def step(self, name: str = "stepscope.step()") -> None:
        """The program says that a step has ended."""
        self._count_passes()
        self._told(self._finder.step, name)

    def optimizer_made(self) -> None:
        """The program has made an optimizer: it will train, whatever it does before."""
        self._finder.waits_for_optimizer = True

    def optimizer_stepped(self, optimizer: Any) -> None:
        """An optimizer has updated its parameters."""
        if self._finder.call is not Call.OPTIMIZER:
            self._home = threading.get_ident()
        if not self._modules_known:
            self._listen_to_modules()
        if not self._finder.is_found:
            self._updates_ns.append(time.perf_counter_ns())
        self._count_passes()
        self._told(self._finder.optimizer, id(optimizer), f"{type(optimizer).__name__}.step")
        if self._hooks.is_quiet and self._passes is not None and self._finder.is_simple:
            self._only_timed = self._passes.steps_to_time(self._ended)
            if self._only_timed:
                self._hooks.only_time(optimizer, self._only_timed, self._passes.tick)

    def _count_passes(self) -> None:
        """Counts what the hooks took notice of by themselves: steps that were only timed, backward passes."""
        hooks = self._hooks
        steps, self._only_timed = self._only_timed - hooks.timed_left, 0
        hooks.timed_left = 0
        self._ended += steps
        self._finder.went_on(steps)
        if hooks.backwards:
            self._finder.went_backward(hooks.backwards // (steps + 1))
            hooks.backwards = 0

    def module_called(self, module: Any) -> None:
        """An outermost module is about to run."""
        acting = module.training and not self._torch.is_grad_enabled()
        self._told(self._finder.forward, id(module), type(module).__name__, acting)

    def graph_replayed(self) -> None:
        """A CUDA graph is about to be replayed."""
        self._told(self._finder.graph)

    def went_backward(self, roots: Any) -> None:
        """A backward pass from these tensors has ended."""
        if len(self._losses) < self._settings.losses and hasattr(roots, "detach"):
            # Its value is read when the program ends: that would wait for the GPU now.
            self._losses.append(roots.detach().clone())
        self._listen_to_new_modules()
        self._told(self._finder.backward)

    def goes_without_gradients(self) -> None:
        """The program begins to compute without gradients."""
        self._listen_to_new_modules()

    def evaluates(self, module: Any) -> None:
        """A module was put into its evaluation mode."""
        if not self._is_over and not (self._plan and self._trains()):
            named = self._settings.module
            inner = [one for one in module.modules() if type(one).__name__ == named] if named else [module]
            self._hooks.listen_to(inner)

    def profiler_starts(self, profiler: Any) -> None:
        """A profiler starts, perhaps one of the program's own."""
        if self._passes is None or self._is_elsewhere():
            return
        try:
            self._passes.make_room(profiler)
        except Exception as error:  # noqa: BLE001  # the program goes on without us
            self._fail(error)

    def _told(self, ends_step: Callable[..., bool], *call: Any) -> None:
        """Takes a call of the program: this runs a few times in each step, and a step may be short."""
        here = get_ident()
        home = self._home
        if self._is_over or (home is not None and home != here) or self._is_capturing():
            return
        if self._is_resting and self._finder.call is not Call.OPTIMIZER:
            ends_step(*call)  # may find that it trains now
            return
        self._home = here
        self._endings.begin_work()
        try:
            if not ends_step(*call):
                if self._passes is not None:
                    self._passes.look()
                return
            is_done = self._step_ended()
            self._hooks.is_quiet = self._may_be_quiet()
        except Exception as error:  # noqa: BLE001  # the program goes on without us
            self._fail(error)
            return
        finally:
            self._endings.end_work()
        if is_done and self._settings.stop_after:
            tell("everything is recorded; the program ends here (--stop-after)")
            raise SystemExit(0)

    def _is_elsewhere(self) -> bool:
        """Whether this is another thread than the one that takes the steps."""
        return self._home is not None and threading.get_ident() != self._home

    def _fail(self, error: Exception) -> None:
        """Something of ours went wrong in the middle of the program, which it must not notice."""
        self._note(f"The capture failed: {type(error).__name__}: {error}.")
        tell(f"the capture failed, and the program goes on without it: {error!r}")
        self._stop_listening()

    def _is_capturing(self) -> bool:
        """Whether a CUDA graph is being captured: what is called now runs later."""
        cuda = self._torch.cuda
        return bool(cuda.is_initialized() and cuda.is_current_stream_capturing())

    # ------------------------------------------------------------ modules

    def _look_for_modules(self) -> None:
        """Looks for outermost modules when the program has made some, until it is known what a step is."""
        began, seen = time.monotonic(), 0
        while not self._has_ended.wait(_LOOK_EVERY_S) and self._plan is None:
            made = modules_made()
            if made == seen:  # it makes no more right now
                self._listen_to_new_modules()
            seen = made
            if time.monotonic() - began > _OPTIMIZER_S:
                self._finder.waits_for_optimizer = False

    def _listen_to_new_modules(self) -> None:
        made = modules_made()
        if made != self._made and not is_building():
            self._made = made
            self._listen_to_modules()

    def _listen_to_modules(self) -> None:
        found = outermost(self._settings.module)
        if found:
            self._modules_known = True
            self._hooks.listen_to(found)

    # ------------------------------------------------------------ steps

    def _step_ended(self) -> bool:
        """A step has ended: makes the plan, or follows it. Whether everything is recorded."""
        if self._finder.changes != self._changes:
            self._changes = self._finder.changes
            self._start_over()
        self._ended += 1
        if self._plan is None:
            self._marks_ns.append(time.perf_counter_ns())
            self._plan = self._made_plan()
            if self._plan is None:
                return False
            if not self._claim(self._plan):
                self._stop_listening()
                return False
            if self._trains() and not self._finder.has_acted:
                self._hooks.forget_modules()  # the most expensive of the hooks, and of no more use
        if self._passes is None:
            return False
        if not self._is_recorded:
            self._is_recorded = self._passes.step_ended(self._ended)
            if not self._is_recorded:
                return False
            self._tell_count()
            self._gather(self._passes)
        self._let_go(self._passes)
        return True

    def _let_go(self, passes: Passes) -> None:
        """Everything is recorded: leaves the program alone as soon as nothing can be lost any more."""
        if not self._trains() and not self._settings.stop_after:
            self._is_resting = True
            self._hooks.forget_modules()
        elif self._settings.stop_after or passes.are_written:
            self._stop_listening()

    def _may_be_quiet(self) -> bool:
        """Whether nothing but the ends of steps has to be told."""
        is_recording = self._passes is not None and self._passes.is_recording
        return self._trains() and not is_recording and len(self._losses) >= self._settings.losses

    def _trains(self) -> bool:
        """Whether something ends steps that has nothing to do with calls of modules."""
        return self._finder.call in (Call.OPTIMIZER, Call.STEP)

    def _start_over(self) -> None:
        """Something else ends steps now: what was measured is of other steps."""
        if self._passes is not None:
            self._passes.give_up()
        self._modules_known = self._modules_known and self._plan is None  # a plan lets them go
        self._plan, self._passes, self._is_resting, self._is_recorded = None, None, False, False
        # The last of them has just ended a step, and is counted there.
        self._marks_ns = self._updates_ns[-1 - self._finder.calls :: -self._finder.calls][::-1]
        self._ended = max(self._ended, len(self._marks_ns))
        self._updates_ns.clear()

    def _made_plan(self) -> Plan | None:
        """The plan once the step's time has settled; ranks take that of rank 0."""
        if self._agreement is None:
            self._agreement = Agreement(self._settings.folder, _begun)
        if self._agreement.is_needed and rank() != 0:
            return self._agreement.find()
        if len(self._marks_ns) <= (self._settings.skip or 0):
            return None
        steps_ns = [after - before for before, after in pairwise(self._marks_ns)]
        on_gpu = uses_cuda()
        if not has_settled(steps_ns, self._settings.skip, on_gpu=on_gpu) or is_profiling():
            return None
        if not self._agreement.is_needed:
            return plan_for(self._settings, self._ended, steps_ns, on_gpu=on_gpu)
        start = self._ended + Agreement.margin(steps_ns)
        plan = plan_for(self._settings, start, steps_ns, on_gpu=on_gpu)
        self._agreement.publish(plan)
        return replace(plan, is_shared=True)

    def _claim(self, plan: Plan) -> bool:
        """Opens the file of this rank; False if another process records this rank already."""
        if self._file is None:
            file = RankFile(self._settings.folder, rank())
            if not file.claim():
                return False
            self._file = file
            file.tell(**about_rank(self._settings.command, self._started), environment=environment())
        self._file.note(plan.note)
        self._tell_steps()
        kind = SlowSteps if self._settings.slow else Passes
        self._passes = kind(self._settings, plan, self._file)
        self._endings.hold_signals()
        if self._finder.call is not Call.BACKWARD and len(self._losses) >= self._settings.losses:
            self._hooks.steps_are_found()
        return True

    def _tell_steps(self) -> None:
        """Writes what a step is, and how many there were."""
        if self._file is not None:
            self._file.tell(
                step={
                    "found_by": self._finder.call.value if self._finder.call else None,
                    "name": self._finder.name,
                    "calls": self._finder.calls,
                    "backward_passes": self._finder.passes_per_step.get(Call.BACKWARD),
                    "sentence": self._finder.sentence(),
                },
                steps_seen=self._ended,
                settled_after=self._plan.start if self._plan else None,
            )

    def _gather(self, passes: Passes) -> None:
        """Everything is recorded: has it brought to rank 0, if it lies elsewhere and that is wanted."""
        agreed, file = self._agreement, self._file
        if not self._settings.gather or file is None or agreed is None or not agreed.is_needed:
            return
        self._gathering = Gathering(agreed.store, f"{agreed.key}/files", file, world_size())
        if file.rank == 0:
            self._gathering.take()
        elif agreed.is_apart:
            self._gathering.send(passes.wait_until_written)
        else:
            self._gathering.says_it_is_here()

    def _tell_count(self) -> None:
        if self._file is not None:
            self._file.tell(steps_seen=self._ended)

    def _note(self, sentence: str) -> None:
        if self._file is not None:
            self._file.note(sentence)

    # ------------------------------------------------------------ the end

    def _stop_listening(self) -> None:
        """Nothing of us stays in the program."""
        self._is_over = True
        self._has_ended.set()
        self._hooks.remove()
        loaders.unwatch()
        self._endings.remove()

    def _forked(self) -> None:
        """This is a child of the program, which is not recorded."""
        self._is_over = True
        self._hooks.remove()
        loaders.unwatch()
        self._file = self._passes = None
        if self.in_code:
            _forget()

    def close(self, state: str = "finished") -> None:
        """The part of the program that is recorded ends: keeps what there is, and leaves nothing behind."""
        try:
            self.finish(state)
        finally:
            self._stop_listening()
            self._looking.join(_LOOK_EVERY_S)
            self._endings.forget()
            _forget()

    def finish(self, state: str = "finished") -> None:
        """The program ends: keeps what there is."""
        self._endings.begin_work()
        try:
            self._finish(state)
        finally:
            self._endings.end_work()

    def _finish(self, state: str) -> None:
        self._is_over = True
        self._count_passes()
        if self._file is None:
            self._tell_what_was_seen()
            return
        try:
            if self._passes is not None and not self._is_elsewhere():
                self._passes.end()
        except Exception as error:  # noqa: BLE001  # the program's own end is what counts
            self._note(f"The last pass could not be kept: {type(error).__name__}: {error}.")
        losses = [float(loss.float().mean()) for loss in self._losses]
        if self._gathering is not None:
            self._gathering.end()
        self._file.tell(losses=losses, steps_seen=self._ended, ended=now_text(), state=state)
        self._file = None

    def _tell_what_was_seen(self) -> None:
        """A program that ended before anything was recorded: why, for whoever asks for its profile."""
        seen = self._ended or len(self._updates_ns)
        if not seen or self._plan is not None:
            return
        file = RankFile(self._settings.folder, rank())
        if file.claim():
            file.note(f"The program ended after {seen} steps, before the time of a step had settled.")
            if not self.in_code:
                file.note("To record such a short program: stepscope run --skip 1 --steps 2 …")
            file.tell(
                command=list(self._settings.command), started=self._started, ended=now_text(), steps_seen=seen
            )
