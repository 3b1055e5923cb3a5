"""The tracks of the timeline, and how far its pyramid is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from stepscope.store.timeline import KINDS, TILE_PIXELS, WIDTH_NS, begin_timeline

if TYPE_CHECKING:
    from stepscope.web.opened import Opened

__all__ = ["tracks"]


def tracks(opened: Opened, given: Mapping[str, str]) -> dict[str, Any]:
    """The tracks of a trace: `trace`.

    Answers at once, also while the timeline is made: `made` is the share that is. A track that is not `done`
    tells what is known so far, and its tiles hold what is made so far. `finest` is the lowest level that has
    tiles: a page in a file may have fewer than there are. `base` is a text, for it has more
    digits than a number of JavaScript; all other times count from it.
    """
    trace = opened.trace(given.get("trace")).trace
    timeline = begin_timeline(trace)
    made = timeline.made  # first: what is told next may be newer, not older
    first_ns, last_ns = timeline.span_ns
    return {
        "base": str(trace.meta.base_ns),
        "first_ns": first_ns,
        "last_ns": last_ns,
        "finest": 0,
        "levels": timeline.levels,
        "width_ns": WIDTH_NS,
        "tile_pixels": TILE_PIXELS,
        "kinds": KINDS,
        "made": made,
        "tracks": [asdict(track) for track in timeline.tracks()],
    }
