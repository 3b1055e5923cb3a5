"""Runs a program, measures and records its steps, and prints the report."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

from stepscope.cli.output import notice, to_standard_error
from stepscope.cli.signature import Rest
from stepscope.errors import StepscopeError

__all__ = ["run"]


def run(
    program: Annotated[
        tuple[str, ...], Rest(), "a script, or -m MODULE, or -- COMMAND, with all of its arguments"
    ],
    *,
    out: Annotated[Path | None, "the run folder to write (default: a new one in stepscope-runs)"] = None,
    light: Annotated[bool, "record the light profile only: honest times, no lines of code"] = False,
    full: Annotated[bool, "record the full profile only: stacks, shapes and memory"] = False,
    memory: Annotated[bool, "also write a snapshot of the GPU memory allocator, with its history"] = False,
    steps: Annotated[int | None, "how many steps to measure and to record (default: by their length)"] = None,
    skip: Annotated[
        int | None, "how many steps to leave out first (default: until their time settles)"
    ] = None,
    when: Annotated[
        Literal["settled", "slow"], "record once the time of a step has settled, or only slow steps"
    ] = "settled",
    module: Annotated[str | None, "a step is a call of the module of this class"] = None,
    max_size: Annotated[int, "most MB of JSON in one profile"] = 500,
    max_memory: Annotated[int, "most MB of memory that a recording may take"] = 4000,
    gather: Annotated[bool, "ranks on other hosts: bring their profiles to the folder of rank 0"] = False,
    stop_after: Annotated[bool, "end the program when everything is recorded"] = False,
    report: Annotated[bool, "print the report when the program has ended"] = True,
) -> int:
    """Runs a program as it is, measures and records its steps, and prints the report.

    The program needs no changes. Its step is first measured without a profiler, then recorded twice: a
    light profile for the times, a full one for the lines of code. Everything goes to a run folder, which
    other commands read: `stepscope report RUN`. Options of stepscope stand before the program; all that
    follows is the program's own. The exit code is that of the program, and stepscope prints to standard
    error only.
    """
    from stepscope.capture.launching import command_of, die_like, new_folder, run_program
    from stepscope.capture.settings import Settings

    if light and full:
        raise StepscopeError(
            "give --light or --full, or neither for both", hint="stepscope run --help", exit_code=2
        )
    passes = [name for name, other in (("light", full), ("full", light)) if not other and when == "settled"]
    command = command_of(program)
    folder = new_folder(out, command)
    settings = Settings(
        folder=str(folder),
        command=tuple(command),
        passes=("unprofiled", *passes),
        steps=steps,
        skip=skip,
        memory=memory,
        slow=when == "slow",
        stop_after=stop_after,
        gather=gather,
        module=module,
        most_raw_bytes=max_size * 1_000_000,
        most_memory_bytes=max_memory * 1_000_000,
    )
    code = run_program(command, settings.environment())
    _tell(folder, code, report=report)
    if code < 0:
        die_like(-code)
    return code


def _tell(folder: Path, code: int, *, report: bool) -> None:
    """Says what was recorded, and prints the report of it."""
    from stepscope.capture.launching import short
    from stepscope.capture.run_folder import merge

    found = merge(folder, code, ended=True)
    if found is None:
        notice("stepscope: nothing was recorded: no steps were seen")
        notice("  hint: call stepscope.step() once in each iteration of your loop")
        return
    if int(os.environ.get("RANK", "0") or 0) > 0:
        return  # the first rank says it for all
    for note in dict.fromkeys(note for rank in found["ranks"] for note in rank["notes"]):
        notice(f"stepscope: {note}")
    if report and any(rank["files"] for rank in found["ranks"]):
        from stepscope.cli.commands.report import report as print_report

        with to_standard_error():
            print_report((str(folder),))
    notice(f"stepscope: the run is in {short(folder)}; again: stepscope report {short(folder)}")
