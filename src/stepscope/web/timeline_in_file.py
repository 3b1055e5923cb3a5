"""What the timeline asks, answered in advance for a page in a file: a range, as finely as a file can hold."""

from __future__ import annotations

import base64
import gzip
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from stepscope import registry
from stepscope.errors import StepscopeError
from stepscope.store.timeline import WIDTH_NS, names_in_tile, tile_ns, timeline_of
from stepscope.web.api import ANSWERS
from stepscope.web.clocks import clocked
from stepscope.web.numbers import whole

if TYPE_CHECKING:
    from stepscope.store.timeline import Timeline
    from stepscope.web.opened import Opened
    from stepscope.web.page import Request

__all__ = ["timeline_answers"]

_MOST_BYTES = 16 << 20
"""What the boxes of all traces take before they are compressed: some 300,000 of them."""
_MOST_TILES = 20_000
_FEWEST_PIXELS = 400
"""As wide as the narrowest screen on which one looks at a file."""
_CURVE_PIXELS = 4000
_NAMES_AT_ONCE = 4000


def timeline_answers(request: Request) -> dict[str, Any]:
    """The range of the address, or everything, of the ranks that are shown; and what is selected."""
    opened, options, chosen = request.opened, request.options, request.trace.key
    first, last = timeline_of(request.trace.trace).span_ns
    since, until = max(whole(options, "from", first), first), min(whole(options, "to", last), last)
    if until <= since:
        raise StepscopeError("there is nothing in this range", hint="zoom out, and save again")
    others = options.get("ranks", "").split(",")
    clocks = [one for one in clocked(opened, chosen) if one["key"] == chosen or one["key"] in others]
    answers: dict[str, Any] = {}
    for clock in clocks:
        own = [round((time - clock["shift"]) / clock["rate"]) for time in (since, until)]
        answers |= _of_trace(opened, clock["key"], own[0], own[1], _MOST_BYTES // len(clocks))
    return answers | _of_selection(opened, chosen, options)


def _of_trace(opened: Opened, key: str, since: int, until: int, most_bytes: int) -> dict[str, Any]:
    timeline = timeline_of(opened.trace(key).trace)
    finest, tiles = _tiles(timeline, since, until, most_bytes)
    window = {"from": str(since), "to": str(until), "pixels": str(_CURVE_PIXELS)}
    told = _answer(opened, "tracks", key)
    return {
        f"tracks {key}": {**told, "first_ns": since, "last_ns": until, "finest": finest},
        f"names {key}": _names(opened, key, tiles.values()),
        f"tiles {key}": _packed(tiles),
        f"marks {key} steps": _answer(opened, "marks", key, parts="steps"),
        f"marks {key} gaps": _answer(opened, "marks", key, parts="gaps", **window),
        f"counters {key}": _answer(opened, "counters", key, **window),
    }


def _of_selection(opened: Opened, chosen: str, options: Mapping[str, str]) -> dict[str, Any]:
    """What is told of an event, a range or a finding that the address names."""
    found = {}
    if "event" in options:
        key, event = options.get("on", chosen), options["event"]
        found[f"event {key} {event}"] = _answer(opened, "event", key, event=event, wait="1")
    since, _, until = options.get("range", "").partition(",")
    if "finding" in options:
        told = _answer(opened, "marks", chosen, parts="findings")
        found[f"marks {chosen} findings"] = told
        places = [one["shown"] for one in told["findings"] if one["id"] == options["finding"]]
        if places and places[0] and not until:
            since, until = (str(places[0][0][end]) for end in ("start_ns", "end_ns"))
    if until:
        window = {"from": since, "to": until, "wait": "1"}
        found[f"range {chosen} {since} {until}"] = _answer(opened, "range", chosen, **window)
    return found


def _answer(opened: Opened, name: str, key: str, **given: str) -> dict[str, Any]:
    answer = registry.load(ANSWERS, name)
    found: dict[str, Any] = answer(opened, {"trace": key, **given})
    return found


# ------------------------------------------------ boxes


def _tiles(timeline: Timeline, since: int, until: int, most_bytes: int) -> tuple[int, dict[str, bytes]]:
    """The finest level that fits, and the tiles of all levels from it to the one that shows the range."""
    kept: dict[str, bytes] = {}
    level = _widest(timeline, (until - since) / _FEWEST_PIXELS)
    left = most_bytes
    for finer in range(level, -1, -1):
        found: dict[str, bytes] = {}
        for place, tile in _of_level(timeline, finer, since, until):
            found[place] = tile
            left -= len(tile)
            if kept and (left < 0 or len(found) > _MOST_TILES):
                return level, kept
        kept |= found
        level = finer
    return level, kept


def _widest(timeline: Timeline, pixel_ns: float) -> int:
    """The coarsest level that anybody asks for."""
    level = 0
    while level < timeline.levels - 1 and pixel_ns >= WIDTH_NS * 4**level:
        level += 1
    return level


def _of_level(timeline: Timeline, level: int, since: int, until: int) -> Iterator[tuple[str, bytes]]:
    """The tiles of a range that have boxes."""
    span_ns = tile_ns(level)
    for track in timeline.tracks():
        first, last = max(since, track.first_ns), min(until, track.last_ns)
        for index in range(first // span_ns, last // span_ns + 1):
            tile = timeline.tile(track.id, level, index)
            if int.from_bytes(tile[:4], "little"):
                yield f"{track.id}:{level}:{index}", tile


def _packed(tiles: Mapping[str, bytes]) -> dict[str, Any]:
    """All tiles one after another, and how long each is."""
    data = gzip.compress(b"".join(tiles.values()), 6, mtime=0)
    lengths = {place: len(tile) for place, tile in tiles.items()}
    return {"lengths": lengths, "gzip": base64.b64encode(data).decode("ascii")}


def _names(opened: Opened, key: str, tiles: Iterable[bytes]) -> dict[str, str]:
    """The texts of the names that boxes have by number."""
    wanted = sorted(set().union(*map(names_in_tile, tiles)))
    found: dict[str, str] = {}
    for start in range(0, len(wanted), _NAMES_AT_ONCE):
        some = wanted[start : start + _NAMES_AT_ONCE]
        texts = _answer(opened, "names", key, ids=",".join(map(str, some)))["names"]
        found |= {str(one): text for one, text in zip(some, texts, strict=True) if text}
    return found
