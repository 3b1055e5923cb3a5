"""Writes a trace in the format of another tool."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from stepscope import registry
from stepscope.cli import output as out
from stepscope.cli.signature import NameIn, Written
from stepscope.cli.traces import PassOption, RankOption, WantedPass, open_with_progress
from stepscope.errors import StepscopeError

__all__ = ["export"]

_FOLDER = "exports"


def export(
    trace: Annotated[str | None, "a profile (path, URL or -), a folder with one, a run, or a store"] = None,
    *,
    format: Annotated[str | None, NameIn(_FOLDER), "which format; default: by the ending of -o"] = None,
    output: Annotated[str, Written(), "-o", "the file to write; - for standard output"],
    demo: Annotated[bool, "use the small profile that comes with stepscope"] = False,
    rank: RankOption = None,
    pass_: PassOption = None,
    store: Annotated[Path | None, "where to keep what was read, instead of the cache"] = None,
) -> None:
    """Writes a trace in the format of another tool, with what stepscope found out.

    For tables use `stepscope query --format parquet` and `stepscope show --format csv`, for figures of a
    dashboard `stepscope report --format prometheus`.
    """
    name = format or _by_ending(output)
    function = registry.load(_FOLDER, name)
    opened = open_with_progress(trace, store=store, demo=demo, wanted=WantedPass(rank, pass_, "stacks"))
    pieces = function(opened)
    if output == "-":
        for piece in pieces:
            out.binary().write(piece)
        return
    from stepscope import units
    from stepscope.writing import written

    size = 0
    with written(Path(output)) as file:
        for piece in pieces:
            size += file.write(piece)
    out.notice(f"{name}: {output}, {units.size(size)}")


def _by_ending(output: str) -> str:
    from stepscope.exports import ending_of

    known = {
        ending_of(registry.load(_FOLDER, name)): name for name, _ in registry.names(_FOLDER, installed=True)
    }
    fitting = [ending for ending in known if output.endswith(ending)]
    if not fitting:
        raise StepscopeError(
            f"the ending of {output} is that of no format",
            hint=f"--format {' or '.join(known.values())}, or a file that ends in {', '.join(known)}",
            exit_code=2,
        )
    return known[max(fitting, key=len)]
