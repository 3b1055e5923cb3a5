"""Answers that take much memory on a large trace."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from stepscope.memory import release_freed

if TYPE_CHECKING:
    from stepscope.store.trace import Trace

__all__ = ["one_large_answer"]


@contextlib.contextmanager
def one_large_answer(trace: Trace, more_than: int = 0) -> Iterator[None]:
    """One at a time: a page asks for several at once, and each may take hundreds of megabytes for seconds.

    What it took is given back, so that a window that stays open for hours is no larger than it needs to be.
    Of a small trace, or of no more events than `more_than`, answers do not wait for one another.
    """
    if trace.is_small or trace.meta.events <= more_than:
        yield
        return
    lock: threading.RLock = trace.once("one large answer", threading.RLock)
    with lock:
        try:
            yield
        finally:
            release_freed()
