"""Runs a program as it is, with the capture in it: its output, signals and exit code are its own."""

from __future__ import annotations

import datetime as dt
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NoReturn

from stepscope.errors import StepscopeError

__all__ = ["command_of", "die_like", "is_one_of_many", "new_folder", "run_program", "short"]

_PASSED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT)


def command_of(words: Sequence[str]) -> list[str]:
    """The command that runs a program: a script, `-m` and a module, or a command of its own behind `--`."""
    if not words or (words[0] in ("-m", "--") and len(words) < 2):
        raise StepscopeError(
            "no program given",
            hint="stepscope run train.py, or stepscope run -- torchrun train.py",
            exit_code=2,
        )
    if words[0] == "--":
        return _checked(list(words[1:]))
    if words[0] == "-m" or Path(words[0]).exists():
        return [sys.executable, *words]
    if shutil.which(words[0]):
        return list(words)
    raise StepscopeError(f"there is no file {words[0]}", hint="name a script, or -m MODULE, or -- COMMAND")


def _checked(command: list[str]) -> list[str]:
    if shutil.which(command[0]) is None:
        raise StepscopeError(f"there is no command {command[0]}", hint=f"which {command[0]}")
    return command


def new_folder(out: Path | None, command: Sequence[str]) -> Path:
    """The run folder: a new one, or one that is empty; ranks that were started together share it."""
    if out is None:
        at = _launched_at() or dt.datetime.now().astimezone()
        return Path("stepscope-runs").absolute() / f"{_name_of(command)}-{at:%Y%m%d-%H%M%S}"
    folder = out.absolute()
    if folder.exists() and not folder.is_dir():
        raise StepscopeError(f"{out} is a file", hint="choose a new folder: --out DIR", exit_code=2)
    if is_one_of_many():
        return folder
    if folder.exists() and any(folder.iterdir()):
        raise StepscopeError(
            f"the folder {out} is not empty", hint=f"choose another one, or rm -r {out}", exit_code=2
        )
    return folder


def short(folder: Path) -> str:
    """A folder as one would type it."""
    try:
        return str(folder.relative_to(Path.cwd()))
    except (OSError, ValueError):
        return str(folder)


def _name_of(command: Sequence[str]) -> str:
    """What to call a run: its script."""
    scripts = [Path(word).stem for word in command[1:] if word.endswith(".py")]
    modules = [after for word, after in pairwise(command) if word == "-m"]
    return (scripts or modules or [Path(command[0]).name])[0]


def is_one_of_many() -> bool:
    """Whether a launcher such as torchrun has started this process as one of several ranks."""
    return int(os.environ.get("WORLD_SIZE", "1") or 1) > 1 and "RANK" in os.environ


def _launched_at() -> dt.datetime | None:
    """When the launcher of this rank was started: a time that all ranks of a host know."""
    if not is_one_of_many():
        return None
    try:
        started = os.stat(f"/proc/{os.getppid()}").st_ctime  # noqa: PTH116
    except OSError:
        return None
    return dt.datetime.fromtimestamp(started).astimezone()


def run_program(command: Sequence[str], variables: dict[str, str]) -> int:
    """Runs a command to its end and gives its exit code, negative for a signal.

    Ctrl-C in a terminal reaches the program by itself. Signals that were sent to us alone are passed on.
    """
    try:
        program = subprocess.Popen(list(command), env={**os.environ, **variables})  # noqa: S603  # what the user typed
    except OSError as error:
        raise StepscopeError(
            f"{command[0]} cannot be run: {error.strerror}", hint=f"ls -l {command[0]}"
        ) from error
    before = {number: signal.signal(number, lambda n, _: program.send_signal(n)) for number in _PASSED_ON}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, lambda n, _: _pass_on_if_alone(program, n))
    try:
        return program.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _pass_on_if_alone(program: subprocess.Popen[bytes], number: int) -> None:
    """Ctrl-C goes to everybody in front of the terminal; without one it was sent to us."""
    if not _is_in_front():
        program.send_signal(number)


def _is_in_front() -> bool:
    """Whether this process has the terminal."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def die_like(signal_number: int) -> NoReturn:
    """Ends this process by the signal that ended the program."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # one core file, that of the program, is enough
    if signal_number != signal.SIGKILL:
        signal.signal(signal_number, signal.SIG_DFL)
    os.kill(os.getpid(), signal_number)
    os._exit(128 + signal_number)
