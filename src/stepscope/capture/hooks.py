"""Listens to a program: its optimizers, modules, graphs and backward passes say when they were called.

Each hook costs about a microsecond a call and is taken out when everything is recorded. Code that torch
compiles never sees one.
"""

from __future__ import annotations

import copy
import functools
import gc
import sys
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any, Protocol

from stepscope.capture.torch_settings import compiled_graphs

__all__ = ["Hooks", "Listener", "is_building", "modules_made", "outermost"]

_made: dict[int, weakref.ref[Any]] = {}
"""The modules that the program has made since we listen, by their id."""


class Listener(Protocol):
    """Is told what the program calls."""

    def optimizer_stepped(self, optimizer: Any) -> None:
        """An optimizer has updated its parameters."""

    def optimizer_made(self) -> None:
        """The program has made an optimizer of a class that it had none of."""

    def module_called(self, module: Any) -> None:
        """A module that was hooked is about to run."""

    def graph_replayed(self) -> None:
        """A CUDA graph is about to be replayed."""

    def went_backward(self, roots: Any) -> None:
        """A backward pass from these tensors has ended."""

    def goes_without_gradients(self) -> None:
        """The program begins to compute without gradients, as one that does not train."""

    def evaluates(self, module: Any) -> None:
        """A module was put into its evaluation mode."""

    def profiler_starts(self, profiler: Any) -> None:
        """A profiler is about to start."""


class Hooks:
    """What was put into torch to listen, and takes it out again."""

    def __init__(self, listener: Listener) -> None:
        self._listener: Listener | None = listener
        self._undo: list[Callable[[], None]] = []
        self._depth = 0
        self._modules: list[tuple[Any, _PassingHooks]] = []
        self._hears_modules = False
        self._for_finding: list[Callable[[], None]] = []
        self._is_compiling: Callable[[], bool] = bool
        self._has_gradients: Callable[[], bool] = bool
        self.is_quiet = False
        """Whether only ends of steps matter: passes are counted here, for code that seldom runs is slow."""
        self._timed: Any = None
        self._tick: Callable[[], None] = lambda: None
        self.timed_left = 0
        """How many steps will still be only timed."""
        self.backwards = 0
        """Backward passes since this was last set to 0, while it is quiet."""

    def only_time(self, optimizer: Any, steps: int, tick: Callable[[], None]) -> None:
        """Has so many calls of an optimizer do nothing but `tick`, for the next steps need no more."""
        self._timed, self.timed_left, self._tick = optimizer, steps, tick

    def install(self) -> None:
        """Puts hooks into the torch that the program has imported."""
        import torch

        self._is_compiling = torch.compiler.is_compiling
        self._has_gradients = torch.is_grad_enabled
        self._hook_optimizers(torch)
        for_finding = [(torch.autograd, "backward", self._backward_told)]
        for_finding += [(torch.nn.Module, "eval", self._evaluated)]
        for_finding += [(torch.nn.Module, maker, self._made) for maker in ("__init__", "__setstate__")]
        without_gradients = (torch.no_grad, torch.inference_mode)
        for_finding += [(kind, "__enter__", self._without_gradients) for kind in without_gradients]
        self._for_finding = [self._replace(*one) for one in for_finding]
        graph = getattr(torch.cuda, "CUDAGraph", None)
        if graph is not None and "replay" in vars(graph):
            self._replace(graph, "replay", self._replay_told)
        profiler = sys.modules.get("torch.autograd.profiler")
        if profiler is not None and hasattr(profiler.profile, "_prepare_trace"):
            self._replace(profiler.profile, "_prepare_trace", self._profiler_started)

    def steps_are_found(self) -> None:
        """Takes out what is needed only to find the steps: it would be in the way, and in the stacks."""
        for undo in self._for_finding:
            undo()

    def remove(self) -> None:
        """Takes everything out; what cannot be taken out passes calls on and says nothing."""
        self._listener = self._timed = None
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()
        _made.clear()
        self.forget_modules()

    def forget_modules(self) -> None:
        """Takes the hooks out of modules.

        Code that torch has compiled may have looked at them, and would be compiled again if they were gone:
        then they stay and tell nothing.
        """
        self._hears_modules = False
        if compiled_graphs():
            return
        for module, hooks in self._modules:
            hooks.clear_ours()
            if not hooks and module._forward_pre_hooks is hooks:  # noqa: SLF001
                module._forward_pre_hooks = OrderedDict()  # noqa: SLF001
        self._modules.clear()

    def listen_to(self, modules: Iterable[Any]) -> None:
        """Has the calls of these modules told, too.

        Another thread may be calling them, so their table of hooks is replaced, and only an empty one:
        handles of the program's own hooks know their table. A module that torch compiles is left alone.
        """
        self._hears_modules = True
        for module in modules:
            compiled = getattr(module, "_compiled_call_impl", None) is not None
            if not compiled and not module._forward_pre_hooks:  # noqa: SLF001
                hooks = _PassingHooks(self._called)
                module._forward_pre_hooks = hooks  # noqa: SLF001
                self._modules.append((module, hooks))

    def _called(self, module: Any, _inputs: Any) -> None:
        if self._is_compiling() or not self._hears_modules:
            return
        if self.is_quiet and (self._has_gradients() or not module.training):
            return
        if self._listener is not None:
            self._listener.module_called(module)

    # ------------------------------------------------------------ optimizers

    def _hook_optimizers(self, torch: Any) -> None:
        """Has optimizers tell when `step()` has returned.

        A step of the program ends after the range that torch records around `step()`. The hook that torch
        offers runs inside of it; it is for optimizers whose `step` was bound before this.
        """
        from torch.optim.optimizer import register_optimizer_step_post_hook

        optimizer = torch.optim.Optimizer
        plain = optimizer.profile_hook_step

        def hooked(step: Callable[..., Any]) -> Callable[..., Any]:
            if self._listener is not None:
                self._listener.optimizer_made()
            return self._told_after(plain(step))

        optimizer.profile_hook_step = staticmethod(hooked)
        self._undo.append(lambda: setattr(optimizer, "profile_hook_step", staticmethod(plain)))
        for kind in _subclasses(optimizer):
            step = vars(kind).get("step")
            if getattr(step, "hooked", False):
                kind.step = self._told_after(step)
                self._undo.append(functools.partial(setattr, kind, "step", step))
        handle = register_optimizer_step_post_hook(self._stepped)
        self._undo.append(handle.remove)

    def _told_after(self, step: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(step)
        def stepping(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            # Asked first everywhere here: what is compiled must not depend on anything of ours that changes.
            if self._is_compiling() or self._listener is None:
                return step(optimizer, *args, **kwargs)
            self._depth += 1
            try:
                outcome = step(optimizer, *args, **kwargs)
            finally:
                self._depth -= 1
            # An optimizer inside another one is a part of its step.
            if self._depth == 0 and self._listener is not None:
                if optimizer is self._timed and self.timed_left:
                    self.timed_left -= 1
                    self._tick()
                else:
                    self._listener.optimizer_stepped(optimizer)
            return outcome

        return stepping

    def _stepped(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        if self._depth == 0 and self._listener is not None and not self._is_compiling():
            self._listener.optimizer_stepped(optimizer)

    # ------------------------------------------------------------ functions of torch

    def _replace(
        self, owner: Any, name: str, wrap: Callable[[Callable[..., Any]], Any]
    ) -> Callable[[], None]:
        plain = getattr(owner, name)
        ours = functools.wraps(plain)(wrap(plain))
        setattr(owner, name, ours)

        def undo() -> None:
            if getattr(owner, name) is ours:  # or somebody has replaced ours
                setattr(owner, name, plain)

        self._undo.append(undo)
        return undo

    def _backward_told(self, plain: Callable[..., Any]) -> Any:
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            outcome = plain(tensors, *args, **kwargs)
            if self._is_compiling():
                return outcome
            if self.is_quiet:
                self.backwards += 1
            elif self._listener is not None:
                self._listener.went_backward(tensors)
            return outcome

        return backward

    def _replay_told(self, plain: Callable[..., Any]) -> Any:
        def replay(*args: Any, **kwargs: Any) -> Any:
            if self._listener is not None:
                self._listener.graph_replayed()
            return plain(*args, **kwargs)

        return replay

    def _evaluated(self, plain: Callable[..., Any]) -> Any:
        def evaluate(module: Any) -> Any:
            outcome = plain(module)
            if self._listener is not None and not self._is_compiling():
                self._listener.evaluates(module)
            return outcome

        return evaluate

    def _without_gradients(self, plain: Callable[..., Any]) -> Any:
        def enter(mode: Any) -> Any:
            if self._listener is not None and not self._is_compiling():
                self._listener.goes_without_gradients()
            return plain(mode)

        return enter

    def _made(self, plain: Callable[..., Any]) -> Any:
        def make(module: Any, *args: Any, **kwargs: Any) -> None:
            plain(module, *args, **kwargs)
            if self._listener is not None and not self._is_compiling():
                _made[id(module)] = weakref.ref(module)
                if type(module).__name__ == "OptimizedModule":
                    # Takes the place of the module in it, which is about to be compiled without our hook.
                    self.forget_modules()

        return make

    def _profiler_started(self, plain: Callable[..., Any]) -> Any:
        def prepare(profiler: Any) -> Any:
            if self._listener is not None:
                self._listener.profiler_starts(profiler)
            return plain(profiler)

        return prepare


class _PassingHooks(OrderedDict[int, Any]):
    """The hooks of a module with one of ours, which is in no copy and no pickle of the module."""

    def __init__(self, ours: Callable[..., Any]) -> None:
        from torch.utils.hooks import RemovableHandle

        super().__init__()
        self._ours = RemovableHandle(self).id
        self[self._ours] = ours

    def clear_ours(self) -> None:
        """Takes our hook out."""
        self.pop(self._ours, None)

    def _others(self) -> list[tuple[int, Any]]:
        return [(key, hook) for key, hook in self.items() if key != self._ours]

    def __reduce__(self) -> tuple[Any, ...]:
        return OrderedDict, (self._others(),)

    def __deepcopy__(self, memo: dict[int, Any]) -> OrderedDict[int, Any]:
        return OrderedDict(copy.deepcopy(self._others(), memo))


def modules_made() -> int:
    """How many modules the program has made since we listen."""
    return len(_made)


def is_building() -> bool:
    """Whether some thread makes a module right now: what is made first belongs to nothing yet."""
    import torch

    for frame in sys._current_frames().values():  # noqa: SLF001  # documented, in spite of its name
        at: FrameType | None = frame
        while at is not None:
            code = at.f_code
            if code.co_name == "__init__" and code.co_varnames:
                made = at.f_locals.get(code.co_varnames[0])
                if issubclass(type(made), torch.nn.Module):
                    return True
            at = at.f_back
    return False


def outermost(named: str | None = None) -> list[Any]:
    """The modules of the program with weights that are part of no other; or those of a named class."""
    import torch

    found = [one for one in (made() for made in list(_made.values())) if one is not None]
    if not found and threading.current_thread() is threading.main_thread():
        # Those from before we began. Only here: Python fails to build a tuple that another thread has
        # come to know through `gc`. `type()`, for proxies may make what they stand for when asked.
        found = [thing for thing in gc.get_objects() if issubclass(type(thing), torch.nn.Module)]
    if named is not None:
        return [one for one in found if type(one).__name__ == named]
    inner = {id(child) for one in found for child in list(one.__dict__.get("_modules", {}).values())}
    return [one for one in found if id(one) not in inner and _has_weights(one)]


def _has_weights(module: Any) -> bool:
    try:
        return next(module.parameters(), None) is not None
    except Exception:  # noqa: BLE001  # one that is not made yet has no tables
        return False


def _subclasses(kind: type) -> list[Any]:
    found = [kind]
    one: Any
    for one in kind.__subclasses__():
        found += _subclasses(one)
    return found
