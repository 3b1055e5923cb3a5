"""A trace or a part of it in Perfetto's format, for the viewer that a page hands it to."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.background import BackgroundTask
from starlette.responses import FileResponse

from stepscope import units
from stepscope.errors import StepscopeError
from stepscope.exports.pftrace import pftrace as write
from stepscope.store.cutting import Window, extent, inside
from stepscope.store.leftovers import scratch

if TYPE_CHECKING:
    from starlette.responses import Response

    from stepscope.store.trace import Trace
    from stepscope.web.opened import Opened

__all__ = ["pftrace"]

MOST_BYTES = 2_000_000_000
"""More than this the viewer does not take."""


def pftrace(opened: Opened, given: Mapping[str, str]) -> Response:
    """Gives what lies between `from` and `to`, in ns after the trace's base time, or all of it."""
    trace = opened.trace(given.get("trace")).trace
    window = _window(trace, given)
    selection = inside(trace, window) if window else None
    with tempfile.NamedTemporaryFile(dir=scratch(), suffix=".pftrace", delete=False) as file:
        path = Path(file.name)
    try:
        _check(write(trace, str(path), selection, marked=window).bytes)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return FileResponse(
        path,
        media_type="application/octet-stream",
        headers={"content-disposition": 'attachment; filename="stepscope.pftrace"'},
        background=BackgroundTask(path.unlink, missing_ok=True),
    )


def _check(size: int) -> None:
    if size > MOST_BYTES:
        raise StepscopeError(
            f"this is {units.size(size)}, more than the viewer takes",
            hint="zoom in on the timeline: the visible range is handed over",
        )


def _window(trace: Trace, given: Mapping[str, str]) -> Window | None:
    if not given.get("from") and not given.get("to"):
        return None
    first, last = extent(trace)
    start = max(_ns(given, "from", first), first)
    end = min(_ns(given, "to", last + 1), last + 1)
    if start >= end:
        raise StepscopeError("there is nothing in this range", hint="from has to be before to")
    return Window(start, end)


def _ns(given: Mapping[str, str], name: str, default: int) -> int:
    text = given.get(name, "")
    if not text:
        return default
    try:
        value = int(text) if len(text) < 20 else None
    except ValueError:
        value = None
    if value is None:
        raise StepscopeError(f"{name}={text[:40]!r} is no time in ns")
    return value
