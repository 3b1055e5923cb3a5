"""Reads a profile into a store."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

from stepscope import units
from stepscope.cli.output import say
from stepscope.cli.traces import open_with_progress

__all__ = ["ingest"]


def ingest(
    trace: Annotated[str, "a profile: path, URL, or - for standard input"],
    *,
    also: Annotated[tuple[str, ...], "another file or folder of the same run, whose rows are added"] = (),
    store: Annotated[Path | None, "where to keep what was read, instead of the cache"] = None,
    refresh: Annotated[bool, "read it again even if a store exists"] = False,
) -> None:
    """Reads a profile into a store, so that later commands are fast.

    Other commands do this on their own. Prints the folder of the store, which you can use instead of TRACE.
    With --also, which can be given several times, the store combines several files of one run.
    """
    began = time.monotonic()
    opened = open_with_progress(trace, also=also, store=store, refresh=refresh)
    spent = (time.monotonic() - began) * 1e9
    meta = opened.meta
    say(str(opened.folder))
    text = "of JSON" if {one.kind for one in meta.sources} == {"kineto"} else "unpacked"
    rows = units.counted(sum(meta.rows.values()), "row") if not meta.events else ""
    read = f"{rows or units.counted(meta.events, 'event')}, {units.size(meta.bytes)} {text}"
    say(f"{read}, in {units.duration(spent)} ({units.rate(meta.bytes, spent)})")
    for added in meta.sources[1:]:
        say(f"also {added.source} ({added.kind}), events: {units.count(added.events)}")
    for one in meta.damage:
        say(f"damage: {units.count(one.count)} x {one.reason}")
