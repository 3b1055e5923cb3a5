"""The process that works out the report on a huge trace: what that takes goes when it ends.

A window stays open for hours; the tables behind a report on many events take more than all of its pages.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING

from stepscope import interrupts, memory
from stepscope.children import Child, channel_of
from stepscope.errors import StepscopeError
from stepscope.records import dataclass

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from stepscope.findings.report import Report
    from stepscope.findings.thresholds import Thresholds
    from stepscope.store.measured import MeasuredStep
    from stepscope.store.trace import Trace

__all__ = ["report_of_child", "serve"]


@dataclass(frozen=True, slots=True)
class _Question:
    """Which store, and what the report on it has to have."""

    folder: str
    measured: MeasuredStep | None
    thresholds: Thresholds | None
    tables: tuple[str, ...]
    database_bytes: int


@dataclass(frozen=True, slots=True)
class _Problem:
    """Why there is no report."""

    message: str
    hint: str


def report_of_child(trace: Trace, thresholds: Thresholds | None, tables: Iterable[str]) -> Report:
    """The report on a trace, worked out in a process of its own."""
    child = Child("stepscope.web.report_process", quiet=True)
    question = _Question(
        str(trace.folder), trace.measured, thresholds, tuple(tables), memory.share_for_database()
    )
    try:
        child.channel.send(question)
        found: Report | _Problem = child.channel.recv()
    except (EOFError, OSError) as error:
        raise StepscopeError(
            f"the process that works out the report {child.how_it_ended()}",
            hint="close other programs if memory is short, and load the page again",
        ) from error
    except BaseException:
        child.kill()
        raise
    child.process.wait()  # it takes its temporary files away
    if isinstance(found, _Problem):
        raise StepscopeError(found.message, hint=found.hint)
    return found


def serve() -> None:
    """Answers the one question, unless the window is gone before."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the window decides
    memory.keep_little()
    channel = channel_of()
    question: _Question = channel.recv()
    threading.Thread(target=_end_with, args=(channel,), daemon=True).start()
    channel.send(_answer(question))


def _end_with(channel: Connection) -> None:
    """Ends this process when there is no window; that sends nothing more."""
    try:
        channel.recv()
    except (EOFError, OSError):
        os._exit(0)


def _answer(question: _Question) -> Report | _Problem:
    from stepscope.findings.build import build_report
    from stepscope.opening import open_trace

    try:
        memory.limit_database(question.database_bytes)
        trace = open_trace(question.folder)
        trace.measured = question.measured
        return build_report(trace, thresholds=question.thresholds, tables=question.tables)
    except StepscopeError as error:
        return _Problem(error.message, error.hint or "")
    except Exception as error:  # noqa: BLE001 - told in the page
        interrupts.pass_on()
        if memory.is_lack_of_memory(error):
            lacking = memory.not_enough()
            return _Problem(lacking.message, lacking.hint or "")
        return _Problem(
            f"{type(error).__name__}: {error}"[:500], "please report this, with the profile if you may"
        )
