"""Tiles of the timeline, one or many in an answer."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING

from starlette.responses import Response

from stepscope.errors import StepscopeError
from stepscope.store.timeline import begin_timeline

if TYPE_CHECKING:
    from stepscope.web.opened import Opened

__all__ = ["tile"]

_MOST = 256
_TILE = re.compile(r"(\d{1,10}):(\d{1,2}):(-?\d{1,18})")


def tile(opened: Opened, given: Mapping[str, str]) -> Response:
    """The bytes of a tile: `trace`, `track`, `level`, `index`; they are described in `store/timeline.py`.

    Or many: `tiles=TRACK:LEVEL:INDEX,…`. Their answer is, little-endian: uint32 count; uint32 0; of each
    uint32 its length; zeros up to a multiple of 8; then each tile, with zeros up to a multiple of 8.
    """
    timeline = begin_timeline(opened.trace(given.get("trace")).trace)
    many = given.get("tiles")
    if many is None:
        found = timeline.tile(*_number(":".join(given.get(name, "") for name in ("track", "level", "index"))))
        return Response(found, media_type="application/octet-stream")
    asked = [_number(one) for one in many.split(",", _MOST)]
    if len(asked) > _MOST:
        raise StepscopeError("too many tiles", hint=f"ask for at most {_MOST} at a time")
    parts = [timeline.tile(*one) for one in asked]
    head = struct.pack(f"<{2 + len(parts)}I", len(parts), 0, *map(len, parts))
    return Response(b"".join(map(_padded, [head, *parts])), media_type="application/octet-stream")


def _number(text: str) -> tuple[int, int, int]:
    found = _TILE.fullmatch(text)
    if not found:
        raise StepscopeError(f"{text[:40]!r} is no tile", hint="TRACK:LEVEL:INDEX, as in 3:2:17")
    return int(found[1]), int(found[2]), int(found[3])


def _padded(part: bytes) -> bytes:
    return part + bytes(-len(part) % 8)
