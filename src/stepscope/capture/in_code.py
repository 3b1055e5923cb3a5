"""The capture as a part of a program: `with stepscope.profile():`, and what callbacks are made of."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypedDict, TypeVar

from stepscope.capture.launching import short
from stepscope.capture.places import folder_for
from stepscope.capture.saying import tell
from stepscope.capture.settings import Settings
from stepscope.errors import StepscopeError

if TYPE_CHECKING:
    from stepscope.capture.control import Capture

__all__ = ["STEP", "Options", "Profile", "profile"]

P = ParamSpec("P")
T = TypeVar("T")

STEP = "stepscope.step()"
_HINT = "give the loop 30 steps; fewer are enough for stepscope.profile(skip=1, steps=2)"


class Options(TypedDict, total=False):
    """What a profile in code may be told, by the names of the options of `stepscope run`."""

    steps: int | None
    """How many steps to measure and to record; None: by their length."""
    skip: int | None
    """How many steps to leave out first; None: until their time has settled."""
    out: str | os.PathLike[str] | None
    """The run folder to write; None: a new one in `stepscope-runs`."""
    light: bool
    """Whether to record the light profile only: honest times, no lines of code."""
    full: bool
    """Whether to record the full profile only: stacks, shapes and memory."""
    memory: bool
    """Whether to write a snapshot of the GPU memory allocator, too."""
    module: str | None
    """The class of the module whose calls are the steps."""


def profile(  # noqa: PLR0913  # the options of `stepscope run`, by their names
    steps: int | None = None,
    *,
    skip: int | None = None,
    out: str | os.PathLike[str] | None = None,
    light: bool = False,
    full: bool = False,
    memory: bool = False,
    module: str | None = None,
) -> Profile:
    """Measures and records the steps of a block, or of the first call of a function.

    Once the time of a step has settled, some steps are measured without the profiler, then `steps` of them
    are recorded with little overhead, then one or two with stacks, shapes and memory. The run folder is in
    `.folder`, and `.report()` says what is slow. The program is never stopped.
    """
    return Profile(
        {
            "steps": steps,
            "skip": skip,
            "out": out,
            "light": light,
            "full": full,
            "memory": memory,
            "module": module,
        }
    )


class Profile:
    """A part of the program that is measured and recorded: a block, the call of a function, a training."""

    def __init__(self, options: Options, *, by_hand: bool = False) -> None:
        """`by_hand`: nothing but `step` ends a step, in whatever capture there is."""
        _check(options)
        self._options = options
        self._by_hand = by_hand
        self._folder: Path | None = None
        self._capture: Capture | None = None
        self.has_begun = False

    def __enter__(self) -> Self:
        self.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.end(failed=kind is not None)

    def __call__(self, function: Callable[P, T]) -> Callable[P, T]:
        """Records the first call of a function; later ones run as they are."""
        from inspect import iscoroutinefunction

        if iscoroutinefunction(function):

            async def awaiting(*args: Any, **kwargs: Any) -> Any:
                if self.has_begun:
                    return await function(*args, **kwargs)
                with self:
                    return await function(*args, **kwargs)

            return functools.wraps(function)(awaiting)  # type: ignore[return-value]  # it is a coroutine function, too

        @functools.wraps(function)
        def calling(*args: P.args, **kwargs: P.kwargs) -> T:
            if self.has_begun:
                return function(*args, **kwargs)
            with self:
                return function(*args, **kwargs)

        return calling

    @property
    def folder(self) -> Path:
        """The run folder; under `stepscope run`, that of the command."""
        if self._folder is None:
            raise StepscopeError("nothing is recorded yet", hint="with stepscope.profile() as p: …")
        return self._folder

    def report(self) -> Any:
        """What costs time in the steps that were recorded, and what to change: as `stepscope.report` does."""
        from importlib import import_module  # the program's process has no analysis in it until here

        if self._capture is not None:
            raise StepscopeError(
                "the report is made when the block has ended", hint="call report() behind the with block"
            )
        folder = self.folder
        if not any(folder.glob("rank*.pt.trace.json.gz")):
            raise StepscopeError(f"there is no profile in {folder}", hint=_HINT)
        return import_module("stepscope").report(folder)

    def step(self, name: str = STEP) -> None:
        """Ends a step, as `stepscope.step()` does."""
        from stepscope.capture import control

        control.step(name)

    def begin(self) -> None:
        """Starts to listen; under `stepscope run` that command records, and nothing is done here."""
        if self.has_begun:
            raise StepscopeError(
                "this profile was recorded already", hint="make another one: with stepscope.profile():"
            )
        self.has_begun = True
        _import_torch()  # where `stepscope run` waits for this import, its capture starts now
        from stepscope.capture import control

        running = control.current()
        if running is not None and running.in_code and not self._by_hand:
            raise StepscopeError(
                "a profile is being recorded already: there can be one at a time",
                hint="leave out the inner stepscope.profile()",
            )
        if running is not None:
            self._folder = Path(running.folder)
            return
        # The profiler's own lines about its start and end would stand between those of the program.
        os.environ.setdefault("KINETO_LOG_LEVEL", "6")
        try:
            settings = self._settings()
            self._folder = Path(settings.folder)
            self._capture = control.begin(settings, in_code=True)
        except Exception as error:  # noqa: BLE001  # the program goes on without us
            tell(f"nothing is recorded: {type(error).__name__}: {error}")

    def end(self, *, failed: bool = False) -> None:
        """Ends what is being recorded, keeps what there is, and says where."""
        capture, self._capture = self._capture, None
        if capture is None or self._folder is None:
            return
        try:
            capture.close("failed" if failed else "finished")
        except Exception as error:  # noqa: BLE001  # nothing of ours may end the program
            tell(f"the profile could not be kept: {type(error).__name__}: {error}")
            return
        with contextlib.suppress(OSError):
            self._folder.rmdir()  # if nothing is in it
        for line in _outcome(self._folder):
            tell(line)

    def _settings(self) -> Settings:
        told = self._options
        passes = [
            name for name, other in (("light", "full"), ("full", "light")) if not told.get(other, False)
        ]
        command = tuple(sys.orig_argv)
        return Settings(
            folder=str(folder_for(told.get("out"), command)),
            command=command,
            passes=("unprofiled", *passes),
            steps=told.get("steps"),
            skip=told.get("skip"),
            memory=told.get("memory", False),
            module=told.get("module"),
            steps_by_hand=self._by_hand,
        )

    def __repr__(self) -> str:
        return f"<stepscope.profile {self._folder or 'of a block that has not begun'}>"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from html import escape
        from importlib import import_module

        try:
            shown: str = import_module("stepscope.present.cell").cell(self.report(), short(self.folder))
        except StepscopeError as error:
            return f"<p>{escape(error.message)}: {escape(error.hint)}</p>"
        return shown


def _check(options: Options) -> None:
    """Refuses what makes no sense before the program has run for hours."""
    steps: object = options.get("steps")
    skip: object = options.get("skip")
    if steps is not None and (not isinstance(steps, int) or steps < 1):
        raise StepscopeError(f"steps is {steps!r}, not a number of steps", hint="stepscope.profile(steps=5)")
    if skip is not None and (not isinstance(skip, int) or skip < 0):
        raise StepscopeError(f"skip is {skip!r}, not a number of steps", hint="stepscope.profile(skip=10)")
    if options.get("light") and options.get("full"):
        raise StepscopeError("give light or full, or neither for both", hint="stepscope.profile()")


def _import_torch() -> None:
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise StepscopeError(f"torch cannot be imported: {error}", hint="python -c 'import torch'") from error


def _outcome(folder: Path) -> list[str]:
    """What to say about a run that has ended; rank 0 speaks for all."""
    from stepscope.capture.ranks import rank
    from stepscope.capture.run_folder import read_rank

    if rank() != 0:
        return []
    told = read_rank(folder, 0)
    if told is None:
        return ["nothing was recorded: no steps were seen; call stepscope.step() at the end of each step"]
    lines = list(told["notes"])
    if told["files"]:
        return [*lines, f"the profile is recorded; to see what is slow: stepscope report {short(folder)}"]
    return [*lines, f"no profile was recorded in {told['steps_seen']} steps; {_HINT}"]
