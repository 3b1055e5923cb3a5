"""Shows a trace or a run in the browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from stepscope.cli._quick_arrow import quick_arrow
from stepscope.cli.output import notice, say, write
from stepscope.cli.signature import NameIn, Written
from stepscope.cli.traces import DEMO, here
from stepscope.errors import StepscopeError
from stepscope.memory import keep_little, limit_database

__all__ = ["open"]

_DATABASE_BYTES = 400_000_000
"""The timeline and the pages take memory, too: all together stays under a gibibyte."""


def open(  # noqa: A001 - what people type
    trace: Annotated[
        tuple[str, ...], "a profile (path, URL or -), a store, a run, or the profiles of a run's ranks"
    ] = (),
    *,
    against: Annotated[str | None, "a profile or run to compare it with, recorded before"] = None,
    page: Annotated[str | None, NameIn("web.pages"), "the page to begin with; default: findings"] = None,
    save: Annotated[
        str | None, Written(), "write the page to this HTML file, which needs no server, and open nothing"
    ] = None,
    perfetto: Annotated[bool, "hand the trace to Perfetto's viewer in your browser"] = False,
    port: Annotated[int, "of the server; default: any that is free"] = 0,
    host: Annotated[str, "where the server listens; default: this machine only"] = "127.0.0.1",
    no_browser: Annotated[bool, "print the address and open nothing"] = False,
    demo: Annotated[bool, "use the small profile that comes with stepscope"] = False,
    store: Annotated[Path | None, "where to keep what was read, instead of the cache"] = None,
) -> None:
    """Shows a trace or a run in the browser: findings, timeline, tables, what-if and SQL.

    The server runs on this machine until Ctrl-C, and sends nothing elsewhere. Over SSH, forward its port with
    the command that is printed, and open the address on your own machine. `--save FILE.html` writes one page
    to a file that you can send to somebody. `--perfetto` hands the trace to the viewer of ui.perfetto.dev;
    your browser loads that viewer from there, and the trace stays in your browser.
    """
    from stepscope.cli.progress import ProgressLine
    from stepscope.findings.thresholds import nearest_thresholds
    from stepscope.web.opened import Opened

    if bool(trace) == demo:
        problem = "give either a trace or --demo, not both" if demo else "no trace given"
        raise StepscopeError(problem, hint="stepscope open TRACE, or stepscope open --demo", exit_code=2)
    if perfetto and (save or page):
        raise StepscopeError(
            "--perfetto shows the trace in another viewer, so there is no page to choose or save",
            hint="stepscope export TRACE -o FILE.pftrace writes what Perfetto reads",
            exit_code=2,
        )
    keep_little()
    quick_arrow()
    words = (str(DEMO),) if demo else trace
    opened = Opened(
        words, against=against, store=store, thresholds=nearest_thresholds(here()), listener=ProgressLine()
    )
    if demo:
        opened.typed = ("--demo",)
    if save is not None:
        from stepscope.web.saving import saved

        opened.start()
        opened.wait()
        text = saved(opened, page or "findings", {})
        write(Path(save), text)
        say(f"saved: {save}")
        return
    from stepscope.web.serving import Place, serve

    limit_database(_DATABASE_BYTES)
    first = "perfetto" if perfetto else page or ""
    serve(opened, Place(host, port, first), browser=not no_browser, say=say, notice=notice)
