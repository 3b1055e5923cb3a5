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
def one_large_answer(trace: Trace) -> Iterator[None]:
    """One at a time: a page asks for several at once, and each may take hundreds of megabytes for seconds.

    What it took is given back, so that a window that stays open for hours is no larger than it needs to be.
    """
    if trace.is_small:
        yield
        return
    lock: threading.Lock = trace.once("one large answer", threading.Lock)
    with lock:
        try:
            yield
        finally:
            release_freed()
