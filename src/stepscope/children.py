"""Processes of our own: each has a channel to the one that started it, which nobody else has."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from multiprocessing.connection import Connection

__all__ = ["Child", "channel_of", "command", "words_of"]

_START = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); import {module} as m; m.serve()"


def command(module: str, handle: int, *words: str) -> list[str]:
    """The command line of a process that serves; `handle` is the number of its socket."""
    start = _START.format(module=module)
    return [sys.executable, "-P", "-c", start, json.dumps(sys.path), str(handle), *words]


class Child:
    """A process that runs `serve` of a module, which it finds where this process finds modules."""

    def __init__(self, module: str, *words: str, quiet: bool = False) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(  # noqa: S603 - ourselves
                command(module, theirs.fileno(), *words),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL if quiet else None,
                pass_fds=[theirs.fileno()],
                process_group=0,  # Ctrl-C is for the one that started it, and ends it
                env={"OMP_NUM_THREADS": "1", **os.environ},
            )
        self.channel = Connection(ours.detach())

    def kill(self) -> None:
        """Ends it at once, whatever it is at."""
        self.process.kill()
        self.process.wait()

    def how_it_ended(self) -> str:
        """For it did."""
        code = self.process.wait()
        return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"


def channel_of() -> Connection:
    """The channel of this process to the one that started it."""
    return Connection(socket.socket(fileno=int(sys.argv[2])).detach())


def words_of() -> list[str]:
    """What this process was told when it was started."""
    return sys.argv[3:]
