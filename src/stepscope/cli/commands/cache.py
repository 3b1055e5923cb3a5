"""Lists and clears the stores that were kept."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Annotated

from stepscope import units

__all__ = ["cache"]


def cache(
    *,
    clear: Annotated[bool, "remove all of them"] = False,
    store: Annotated[Path | None, "another folder than the cache"] = None,
) -> None:
    """Lists the stores that were kept, the last used first, or clears them.

    They are kept in the platform's cache folder, or in $STEPSCOPE_CACHE. Beyond $STEPSCOPE_CACHE_LIMIT (20GB)
    the least used go first.
    """
    from stepscope.store import cache as kept

    where = store or kept.root()
    found = kept.clear(where) if clear else kept.entries(where)
    total = sum(entry.bytes for entry in found)
    if clear:
        print(f"removed {units.count(len(found))} stores, {units.size(total)}, from {where}")
        return
    for entry in found:
        used = dt.datetime.fromtimestamp(entry.used, dt.timezone.utc).astimezone()
        print(f"{used:%Y-%m-%d %H:%M}  {units.size(entry.bytes):>8}  {entry.folder.name}  ({entry.source})")
    print(f"{units.count(len(found))} stores, {units.size(total)} of {units.size(kept.limit())}, in {where}")
