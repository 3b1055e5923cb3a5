"""The command `stepscope`: finds the verb, calls it, and turns errors into words and exit codes."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from stepscope import interrupts, registry
from stepscope.errors import StepscopeError

__all__ = ["main"]

_COMMANDS = "cli.commands"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line and returns its exit code."""
    if argv is not None:
        return _ended(list(argv))
    interrupts.watch()
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
    """Runs a command line; what the user can fix is said in words."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show a character shows its code instead of failing the command.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = _run(argv)
        interrupts.pass_on()
        sys.stdout.flush()
    except StepscopeError as error:
        interrupts.pass_on()
        sys.stdout.flush()
        print(f"stepscope: {error.message}", file=sys.stderr)
        if error.hint:
            print(f"  hint: {error.hint}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader has seen enough. The interpreter flushes once more as it ends: into nothing.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return code


def _run(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help"):
        print(_help(), end="")
        return 0 if argv else 2
    if argv[0] == "--version":
        from importlib.metadata import version

        print(f"stepscope {version('stepscope')}")
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
