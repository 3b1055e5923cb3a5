"""The command `stepscope`: finds the verb, calls it, and turns errors into words and exit codes."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from stepscope import interrupts, memory, registry
from stepscope.cli._quick_arrow import own_process
from stepscope.cli.output import notice, put, say
from stepscope.cli.screen import fence, fenced, let_go
from stepscope.errors import StepscopeError
from stepscope.writing import one_command

__all__ = ["main"]

_COMMANDS = "cli.commands"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line and returns its exit code."""
    if argv is not None:
        with fenced():
            return _ended(list(argv))
    if memory.address_space() is not None:
        from stepscope.cli.supervision import is_needed, supervised

        if is_needed():
            try:
                return supervised()
            except StepscopeError as error:
                return _told(error)
    interrupts.watch()
    fence()
    own_process()
    # Modules and tables stay until the end: to look for garbage among them again and again finds none.
    gc.set_threshold(1_000_000, 20, 20)
    try:
        code = _ended(sys.argv[1:])
        interrupts.unwatch()
        interrupts.pass_on()
    except BaseException:
        # What fails because it was interrupted is no error.
        if not interrupts.caught():
            raise
        code = interrupts.exit_code()
    return _exit(code)


def _exit(code: int) -> NoReturn:
    """Ends the process after its temporary files were removed.

    Python would take every module and table apart first, which takes time, and libraries whose objects are in
    use then say so on the terminal. What was not flushed is not printed: after a signal it is not whole.
    """
    atexit._run_exitfuncs()  # noqa: SLF001  # the public way is to end as Python does
    os._exit(code)


def _ended(argv: list[str]) -> int:
    """Runs a command line to the last byte that it prints; what the user can fix is said in words."""
    try:
        try:
            with one_command():
                code = _run(argv)
        except SystemExit:  # of argparse, after help or an error
            sys.stdout.flush()
            raise
        interrupts.pass_on()
        sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader has seen enough. The interpreter flushes once more as it ends: into nothing.
        let_go(sys.stdout)
        return 141
    except Exception as error:
        interrupts.pass_on()
        if memory.is_lack_of_memory(error) and not isinstance(error, StepscopeError):
            error = memory.not_enough()
        if not isinstance(error, StepscopeError):
            raise
        with contextlib.suppress(
            StepscopeError, BrokenPipeError
        ):  # that it cannot be written may be what is said
            sys.stdout.flush()
        return _told(error)
    return code


def _told(error: StepscopeError) -> int:
    notice(f"stepscope: {error.message}")
    if error.hint:
        notice(f"  hint: {error.hint}")
    return error.exit_code


def _run(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help"):
        put(_help())
        return 0 if argv else 2
    if argv[0] == "--version":
        from importlib.metadata import version

        say(f"stepscope {version('stepscope')}")
        return 0
    if argv[0].startswith("-"):
        raise StepscopeError(f"unknown option {argv[0]!r}", hint="stepscope --help", exit_code=2)
    if argv[0] not in dict(registry.names(_COMMANDS)) and _names_a_trace(argv[0]):
        argv = ["report", *argv]
    command = registry.load(_COMMANDS, argv[0])
    # Only now: reading signatures costs imports that --help does without.
    from stepscope.cli.signature import call

    return call(command, argv[1:], prog=f"stepscope {argv[0]}") or 0


def _names_a_trace(word: str) -> bool:
    """Whether a first word that is no command is a file, a folder or an address."""
    return word == "-" or "://" in word or "." in word or os.sep in word or os.path.exists(word)  # noqa: PTH110


def _help() -> str:
    commands = registry.names(_COMMANDS)
    width = max((len(name) for name, _ in commands), default=0)
    lines = [
        "usage: stepscope TRACE",
        "       stepscope COMMAND ...",
        "",
        "Says why a PyTorch program is slow, where in your code, what to change and what you gain.",
        "`stepscope TRACE` is short for `stepscope report TRACE`.",
        "",
        "commands:",
        *(f"  {name:<{width}}  {first_line}" for name, first_line in commands),
        "",
        "`stepscope COMMAND --help` describes one command. `stepscope --version` prints the version.",
    ]
    return "".join(f"{line}\n" for line in lines)


if __name__ == "__main__":
    sys.exit(main())
