"""Lists and clears cached traces."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Annotated

from stepscope import units
from stepscope.cli.output import say

__all__ = ["cache"]


def cache(
    *,
    clear: Annotated[bool, "remove all of them"] = False,
    store: Annotated[Path | None, "another folder instead of the cache"] = None,
) -> None:
    """Lists cached traces, most recently used first, or clears them.

    The cache is the platform's cache folder, or $STEPSCOPE_CACHE. When it exceeds $STEPSCOPE_CACHE_LIMIT
    (20GB), the least recently used traces are removed.
    """
    from stepscope.store import cache as kept

    where = store or kept.root()
    found = kept.clear(where) if clear else kept.entries(where)
    total = sum(entry.bytes for entry in found)
    if clear:
        say(f"removed {units.counted(len(found), 'store')}, {units.size(total)}, from {where}")
        return
    for entry in found:
        used = dt.datetime.fromtimestamp(entry.used, dt.UTC).astimezone()
        say(f"{used:%Y-%m-%d %H:%M}  {units.size(entry.bytes):>8}  {entry.folder.name}  ({entry.source})")
    say(
        f"{units.counted(len(found), 'store')}, {units.size(total)} of {units.size(kept.limit())}, in {where}"
    )
