"""Work in threads of its own, and how far it is: for pages that wait."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from stepscope import interrupts
from stepscope.errors import StepscopeError
from stepscope.records import dataclass

if TYPE_CHECKING:
    from stepscope.streams import Progress

__all__ = ["Background", "Kept", "State"]

Found = TypeVar("Found")
_LOG = logging.getLogger("stepscope.web")


@dataclass(frozen=True, slots=True)
class State:
    """How far the opening is, for a page that waits; what is done now, when it is open already."""

    ready: bool = False
    doing: str = ""
    share: float | None = None
    bytes: int = 0
    events: int = 0
    problem: str = ""
    hint: str = ""


class Background(Generic[Found]):
    """Something that is made in a thread of its own; who needs it waits, others ask for its state."""

    def __init__(self, make: Callable[[Progress], Found], listener: Progress | None = None) -> None:
        self.state = State(doing="opening")
        self._make = make
        self._listener = listener
        self._found: list[Found] = []
        self._error: StepscopeError | None = None
        self._thread = threading.Thread(target=self._run, name="opening", daemon=True)

    def begin(self) -> Background[Found]:
        """Starts the thread."""
        self._thread.start()
        return self

    def ended(self, seconds: float | None = None) -> bool:
        """Waits, at most so long; whether it is done or has failed."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def found(self) -> Found:
        """What was made, once it is; raises what went wrong."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._found[0]

    def progress(self, doing: str, share: float | None, n_bytes: int, events: int) -> None:
        """Notes how far it is; after a signal it is the end of the work."""
        interrupts.pass_on()
        done = share == 1
        if self.state.ready:
            self.state = State(ready=True, doing="" if done else doing, share=None if done else share)
        else:
            self.state = State(doing=doing, share=share, bytes=n_bytes, events=events)
        if self._listener:
            self._listener(doing, share, n_bytes, events)

    def _run(self) -> None:
        try:
            self._found.append(self._make(self.progress))
        except StepscopeError as error:
            self._error = error
        except KeyboardInterrupt:
            self._error = StepscopeError("interrupted")
        except Exception as error:  # noqa: BLE001 - whatever it is, the page that waits must hear of it
            if not interrupts.caught():
                _LOG.exception("opening failed")
            told = f"{type(error).__name__}: {error}"
            self._error = StepscopeError(told, hint="please report this, with the profile if you may")
        if self._error is None:
            self.state = State(ready=True)
        else:
            self.state = State(problem=self._error.message, hint=self._error.hint)


class Kept:
    """What was worked out once: two who ask for the same wait for one maker, others for nobody."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._locks: dict[Any, threading.RLock] = {}
        self._known: dict[Any, Any] = {}

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """What `make` gives, worked out once; a maker that fails is asked again."""
        with self._lock:
            lock = self._locks.setdefault(key, threading.RLock())
        with lock:
            if key not in self._known:
                self._known[key] = make()
            return self._known[key]
