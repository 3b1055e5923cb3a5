"""A worker of the local pool: a process that does one task after the other until its head is gone.

It takes tasks from its own head only, through a socket that nobody else has, and answers with a line of JSON
and bytes. If the head ends, however it does, the worker ends too, in the middle of a rank.
"""

from __future__ import annotations

import atexit
import json
import os
import queue
import signal
import threading
import traceback
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, NoReturn

from stepscope import interrupts, memory
from stepscope.children import channel_of, words_of
from stepscope.errors import StepscopeError

if TYPE_CHECKING:
    from stepscope.cluster.tasks import RankTask

__all__ = ["answer", "answered", "failure", "read_answer", "serve"]


def serve() -> NoReturn:
    """Does tasks until there is no head."""
    [database_bytes] = map(int, words_of())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the head decides
    try:  # the head may be gone, or tell it to end, before anything has begun
        interrupts.watch()
        memory.limit_database(database_bytes)
        channel = channel_of()
        tasks: queue.SimpleQueue[RankTask] = queue.SimpleQueue()
        threading.Thread(target=_listen, args=(channel, tasks), name="stepscope-head", daemon=True).start()
        while True:
            channel.send_bytes(answer(tasks.get()))
    except (KeyboardInterrupt, BrokenPipeError, ConnectionError):
        pass  # there is nobody left to tell
    atexit._run_exitfuncs()  # noqa: SLF001  # temporary files go; to take all modules apart takes time
    os._exit(0)


def _listen(channel: Connection, tasks: queue.SimpleQueue[RankTask]) -> None:
    """Takes tasks; without a head the signal stops what is being done."""
    try:
        while True:
            tasks.put(channel.recv())
    except (EOFError, OSError):
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)


def answer(task: RankTask, where: str = "") -> bytes:
    """What came of a task, as bytes that `read_answer` reads; `where` is added to what went wrong."""
    from stepscope.cluster.tasks import done

    try:
        return answered(done(task))
    except Exception as problem:  # noqa: BLE001  # said by the head; the next rank may be well
        interrupts.pass_on()
        error, detail = failure(problem)
        return answered(b"", error + where, detail)


def answered(payload: bytes = b"", error: str = "", detail: str = "") -> bytes:
    """A line of JSON that tells whether a task failed, then its payload."""
    return b"\n".join((json.dumps({"error": error, "detail": detail}).encode(), payload))


def failure(error: BaseException) -> tuple[str, str]:
    """Why a task failed; the traceback is for what no user can cause."""
    if isinstance(error, StepscopeError):
        return error.message, ""
    if memory.is_lack_of_memory(error):
        return memory.not_enough().message, ""
    lines = traceback.format_exception(error)
    return lines[-1].strip(), "".join(lines)


def read_answer(given: bytes) -> tuple[bytes, str, str]:
    """The payload of an answer, or its error and detail."""
    line, _, payload = given.partition(b"\n")
    told = json.loads(line)
    return payload, told["error"], told["detail"]
