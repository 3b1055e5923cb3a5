"""Writes a trace for other tools."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from stepscope.cli.output import notice
from stepscope.cli.signature import NameIn, Written
from stepscope.cli.traces import PassOption, RankOption, WantedPass, open_with_progress
from stepscope.errors import StepscopeError

__all__ = ["export"]


def export(
    trace: Annotated[str | None, "a profile (path, URL or -), a folder with one, a run, or a store"] = None,
    *,
    output: Annotated[str, Written(), "-o", "the file to write; .gz or .zst behind its ending compresses it"],
    format: Annotated[
        str | None, NameIn("exports"), "what to write; default: what the ending of the file says"
    ] = None,
    force: Annotated[bool, "overwrite the output file"] = False,
    demo: Annotated[bool, "use the small profile that comes with stepscope"] = False,
    rank: RankOption = None,
    pass_: PassOption = None,
    store: Annotated[Path | None, "where to keep what was read, instead of the cache"] = None,
) -> None:
    """Writes a trace in the format of another tool, with what stepscope found out.

    Open a .pftrace file in ui.perfetto.dev: kernels of one stream that overlap have lanes of their own,
    arrows lead from launches to their work, and tracks called stepscope show idle gaps with their cause, the
    critical path of the steps, and the findings. `stepscope cut` writes a part of a trace. Tables are written
    by `stepscope query --format parquet` and `show`, figures for dashboards by `report --format prometheus`.
    """
    from stepscope import units
    from stepscope.exports import format_for
    from stepscope.writing import check_apart

    write = format_for(output, format)
    if Path(output).is_file() and output != "-" and not force:
        raise StepscopeError(f"{output} exists already", hint="choose another name, or overwrite it: --force")
    wanted = WantedPass(rank, pass_, "stacks")
    opened = open_with_progress(trace, store=store, demo=demo, wanted=wanted)
    if output != "-":
        check_apart(Path(output))
    written = write(opened, output)
    where = "standard output" if output == "-" else f"{output}, {units.size(written.bytes)}"
    notice(f"wrote {where}")
