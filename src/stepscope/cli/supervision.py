"""A command under a limit of its address space, in a process of its own.

Where memory for a thread or a library cannot be had, native code of others ends the process: there is no
exception to be caught. So the command runs in a child, and this process says in a line what happened.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from types import FrameType

from stepscope.memory import address_space, is_lack_of_memory, not_enough

__all__ = ["is_needed", "supervised"]

_MARK = "STEPSCOPE_SUPERVISED"
_MODEST = {
    # Address space that allocators and pools of threads would set aside for later.
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "ARROW_IO_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "1",
}
_LOOK_S, _STUCK_S = 5, 30
_TRACEBACK = "Traceback (most recent call last):"
_LOST_ERROR = "SystemError: error return without exception set"
"""What Python says where it could not make the exception that memory is lacking."""
_CRASHES = (
    -signal.SIGKILL,
    -signal.SIGSEGV,
    -signal.SIGABRT,
    -signal.SIGBUS,
    -signal.SIGILL,
    -signal.SIGTRAP,
    127,
    134,
    139,
)


def is_needed() -> bool:
    """Whether the address space is limited, and nobody watches yet."""
    return address_space() is not None and _MARK not in os.environ


def _said_by(child: subprocess.Popen[bytes]) -> bytes:
    """What a child says until it ends. One that stands still waits for a thread that could not be had."""
    before, still_s = "", 0
    while True:
        try:
            return child.communicate(timeout=_LOOK_S)[1]
        except subprocess.TimeoutExpired:
            used = _processor_time(child.pid)
            still_s = still_s + _LOOK_S if used == before else 0
            before = used
            if still_s >= _STUCK_S and "-" not in sys.argv:  # who reads from a pipe may have to wait
                child.kill()


def _processor_time(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:  # noqa: PTH123  # no file that is kept
            return " ".join(file.read().rpartition(")")[2].split()[11:13])
    except OSError:  # another system: then it is not watched
        return str(time.monotonic())


def _tells_of_memory(text: str) -> bool:
    """Whether it is a traceback, or lines of a library, about memory: our own messages quote users.

    Memory may also be lacking while a message is written.
    """
    ours = text.startswith("stepscope: ") and f"\n{_TRACEBACK}" not in text
    return not ours and (is_lack_of_memory(text) or _LOST_ERROR in text)


def supervised() -> int:
    """Runs this command line again in a child and gives its exit code; raises if it lacked memory."""
    environment = {**_MODEST, **os.environ, _MARK: "1"}
    command = [sys.executable, *sys.orig_argv[1:]]
    try:
        child = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE)  # noqa: S603  # ourselves
    except (OSError, MemoryError) as error:
        raise not_enough() from error

    def pass_on(number: int, _: FrameType | None) -> None:
        child.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        said = _said_by(child)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    text = said.decode("utf-8", "replace")
    if child.returncode in _CRASHES or (child.returncode and _tells_of_memory(text)):
        raise not_enough()
    sys.stderr.write(text)
    return child.returncode if child.returncode >= 0 else 128 - child.returncode
