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
    (20GB), the least recently used traces are removed. What killed runs left there or in $TMPDIR is listed,
    too; it is removed by --clear, or when the next profile is read.
    """
    from stepscope.store import cache as kept

    where = store or kept.root()
    left = kept.left_behind(where)
    found = kept.clear(where) if clear else kept.entries(where)
    total, rest = (sum(entry.bytes for entry in some) for some in (found, left))
    if clear:
        say(f"removed {units.counted(len(found), 'store')}, {units.size(total)}, from {where}")
        if left:
            say(f"removed what killed runs left: {units.size(rest)}")
        return
    for entry in (*found, *left):
        used = dt.datetime.fromtimestamp(entry.used, dt.UTC).astimezone()
        name = entry.folder.name if entry.folder.parent == where else str(entry.folder)
        say(f"{used:%Y-%m-%d %H:%M}  {units.size(entry.bytes):>8}  {name}  ({entry.source})")
    say(
        f"{units.counted(len(found), 'store')}, {units.size(total)} of {units.size(kept.limit())}, in {where}"
    )
    if left:
        say(f"{units.size(rest)} left by killed runs: stepscope cache --clear removes all of this")
