"""The pages that ask SQL, each with a process of its own: a page that asks anew ends what it asked before."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

from stepscope.children import Child
from stepscope.errors import StepscopeError

if TYPE_CHECKING:
    from stepscope.web.sql_process import Question

__all__ = ["Askers"]

_GRACE_S = 3.0
_MOST = 3
"""Pages that have a process at a time; the one that asked least recently gives its own up."""


class Askers:
    """Processes by the page that they answer."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._processes: dict[str, _Process] = {}

    def begin(self, asker: str) -> None:
        """Starts a process for a page, before it asks."""
        self._of(asker)

    def ask(self, asker: str, question: Question) -> dict[str, Any]:
        """The answer to a question of a page; what the same page asked before is stopped."""
        process = self._of(asker)
        if process.is_busy:
            self.stop(asker)
            process = self._of(asker)
        try:
            return process.ask(question)
        finally:
            if process.is_gone:
                self.stop(asker, process)

    def stop(self, asker: str, only: _Process | None = None) -> None:
        """Ends the process of a page, and what it is at."""
        with self._lock:
            process = self._processes.get(asker)
            if process is None or (only is not None and process is not only):
                return
            del self._processes[asker]
        process.end()

    def _of(self, asker: str) -> _Process:
        with self._lock:
            process = self._processes.pop(asker, None)
            if process is None or process.is_gone:
                process = _Process()
            self._processes[asker] = process  # last: it asked most recently
            idle = [one for one in self._processes.values() if one is not process]
            spare = idle[: max(0, len(self._processes) - _MOST)]
            for one in spare:
                self._processes = {name: kept for name, kept in self._processes.items() if kept is not one}
        for one in spare:
            one.end()
        return process


class _Process:
    """One process, and whether it is at something."""

    def __init__(self) -> None:
        self._child = Child("stepscope.web.sql_process", quiet=True)
        self._turn = threading.Lock()
        self._ended = False

    @property
    def is_busy(self) -> bool:
        """Whether a question is not answered yet."""
        return self._turn.locked()

    @property
    def is_gone(self) -> bool:
        """Whether it was ended, or ended by itself."""
        return self._ended or self._child.process.poll() is not None

    def ask(self, question: Question) -> dict[str, Any]:
        """The answer, within the time of the question."""
        with self._turn:
            try:
                self._child.channel.send(question)
                if not self._child.channel.poll(question.seconds + _GRACE_S):
                    self.end()
                    raise StepscopeError(
                        f"the query was stopped: it ran for more than {question.seconds:g} s",
                        hint="ask for less, or of fewer rows: LIMIT 1000",
                    )
                found: dict[str, Any] = json.loads(self._child.channel.recv_bytes())
            except (EOFError, OSError) as error:
                raise self._why() from error
        if "problem" in found:
            raise StepscopeError(found["problem"], hint=found["hint"])
        return found

    def _why(self) -> StepscopeError:
        if self._ended:
            return StepscopeError("the query was stopped, for the page asked another")
        self._child.process.wait()
        return StepscopeError(
            "the query needs more memory than it may take", hint="ask for fewer rows or columns at once"
        )

    def end(self) -> None:
        """Ends it at once, whatever it is at."""
        self._ended = True
        self._child.kill()
