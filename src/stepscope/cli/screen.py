"""Standard output and standard error behind one fence: what is printed by anybody is guarded text.

Commands print through `output`, which makes names printable. But argparse, warnings, tracebacks and what
somebody writes later print as well. So the streams themselves are replaced while a command runs, and a
control character passes only in a text whose type says that it was put there by us.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, TextIO

from stepscope.errors import StepscopeError
from stepscope.present._printable import codes, guarded

__all__ = ["Guarded", "fence", "fenced", "let_go"]

_AS_CODES = "stepscope.codes"


class Guarded:
    """A stream for text: guards it, and says in words what is wrong with the stream below.

    A stream that is closed or full is an error where the answer goes. Where messages go it is not: then
    there is nobody to tell.
    """

    def __init__(self, below: TextIO | None, name: str, *, needed: bool) -> None:
        self._below = below
        self._name = name
        self._needed = needed
        self._begins_line = True
        self.left = False

    def write(self, text: str) -> int:
        """Writes the text, guarded."""
        shown = guarded(text, begins_line=self._begins_line)
        last = text[text.rfind("\n") + 1 :]
        self._begins_line = (self._begins_line or "\n" in text) and not last.strip()
        with self._explained():
            self._open().write(shown)
        return len(text)

    def flush(self) -> None:
        """Hands everything on."""
        with self._explained():
            if self.left and self._needed:  # argparse does not mind that a write fails
                raise BrokenPipeError
            if self._below is not None:
                self._below.flush()

    def isatty(self) -> bool:
        """Whether somebody looks at it."""
        return self._below is not None and self._below.isatty()

    def fileno(self) -> int:
        """The handle below."""
        return self._open().fileno()

    @property
    def buffer(self) -> GuardedBytes:
        """The stream for bytes, which are not guarded: for files of other formats only."""
        self.flush()
        return GuardedBytes(self)

    def write_bytes(self, piece: bytes | memoryview) -> int:
        """Writes what is not text."""
        with self._explained():
            self._open().buffer.write(piece)
        return len(piece)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._below, name)  # how it is encoded, and whatever else somebody asks

    def _open(self) -> TextIO:
        if self._below is None:
            raise OSError(errno.EBADF, "it is closed")
        return self._below

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            self.left = True
            if self._needed:
                raise
        except OSError as error:
            let_go(self._below)
            if self._needed:
                why = "the disk is full" if error.errno == errno.ENOSPC else error.strerror or error
                raise StepscopeError(
                    f"cannot write {self._name}: {why}", hint="send it to a file: > FILE, or -o FILE"
                ) from error


class GuardedBytes(io.RawIOBase):
    """The bytes of a stream: what is wrong with it is said in the same words."""

    def __init__(self, above: Guarded) -> None:
        self._above = above

    def write(self, piece: Any) -> int:
        """Writes it all."""
        return self._above.write_bytes(piece)

    def flush(self) -> None:
        """Hands everything on."""
        self._above.flush()

    def writable(self) -> bool:
        """It is for writing."""
        return True


def fence() -> None:
    """Guards both streams to the end of the process, and what the interpreter itself prints to them.

    A handle that was closed is opened: else the next file that is opened would be standard output.
    """
    # Each takes the lowest free number; the first that is none of the three says that all are open.
    while (handle := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(handle)
    _replace()
    sys.excepthook = _plain_traceback


@contextmanager
def fenced() -> Iterator[None]:
    """Guards both streams for a while."""
    before = sys.stdout, sys.stderr
    _replace()
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def _replace() -> None:
    for stream in (sys.stdout, sys.stderr):
        # A stream that cannot hold a character shows its code instead of failing the command.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=_AS_CODES)
    sys.stdout = Guarded(sys.stdout, "standard output", needed=True)
    sys.stderr = Guarded(sys.stderr, "standard error", needed=False)


def let_go(stream: Any) -> None:
    """Sends into nothing what a stream still holds, which the interpreter would try to write as it ends."""
    if isinstance(stream, Guarded):
        stream.left = False
    with contextlib.suppress(OSError, StepscopeError):
        if stream is not None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _plain_traceback(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
    """A bug keeps its traceback, without the colours that newer Pythons give it: they would be codes."""
    import traceback

    for line in traceback.format_exception(kind, error, where):
        sys.stderr.write(line)


def _codes(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return codes(error.object[error.start : error.end]), error.end


codecs.register_error(_AS_CODES, _codes)
